"""The main job's figures: choice, live runs, overhead, start-up, third-party scripts, faults.

    python -m benchmarks.main_job                 everything (about an hour)
    python -m benchmarks.main_job --quick         recorded sweeps with few seeds, short overhead run
    python -m benchmarks.main_job --only sweep    record the sweeps (about 25 minutes a round)

`--data` is a folder of sweeps, `*.json.gz`; without it, those of the repository are taken
(benchmarks/sweeps). The sweep goes on where it was interrupted and stops at --rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.job.choice import measure_choices
from benchmarks.job.faults import measure_faults
from benchmarks.job.live import measure_live
from benchmarks.job.overhead import measure_overhead
from benchmarks.job.recording import SUFFIX
from benchmarks.job.startup import measure_startup
from benchmarks.job.sweep import measure_sweeps
from benchmarks.job.third_party import measure_third_party
from benchmarks.report import Options, Report, run

SWEEPS = Path(__file__).parent / "sweeps"


def _on_sweeps(measure: Callable[[Options, Report, Path], None]) -> Callable[..., None]:
    """A section that works on the folder of sweeps."""

    def section(options: Options, report: Report) -> None:
        measure(options, report, options.data or SWEEPS)

    return section


def _sweep(options: Options, report: Report, folder: Path) -> None:
    """Sweep when asked by name, or when a full run finds nothing recorded to replay."""
    if options.only or not (options.quick or any(folder.glob(f"*{SUFFIX}"))):
        measure_sweeps(options, report, folder)


SECTIONS = {
    "sweep": _on_sweeps(_sweep),
    "choice": _on_sweeps(measure_choices),
    "live": _on_sweeps(measure_live),
    "overhead": measure_overhead,
    "startup": measure_startup,
    "scripts": measure_third_party,
    "faults": measure_faults,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    return run("main_job", "The figures of `tune run`, end to end.", SECTIONS, argv)


if __name__ == "__main__":
    sys.exit(main())
