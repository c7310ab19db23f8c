"""What the probe costs: a script that times its own steps, run with and without it, interleaved."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.jobs import ROOT, settle
from benchmarks.report import Options, Report, Row
from collectors.clock import StoppingRule
from collectors.processor import available_cpus
from perfmodel.errors import MeasurementError

SCRIPT = ROOT / "tests" / "scripts" / "training" / "timed_steps.py"
RELATIVE = 0.01
ABSOLUTE_SECONDS = 50e-6
"""The allowed difference is the larger of the two."""

ROUNDS = 15
QUICK_ROUNDS = 3
ENDLESS = StoppingRule(
    relative_precision=0.0, max_samples=10**9, max_seconds=1e9, min_seconds=1e9
)  # the script ends by itself


@dataclass(frozen=True)
class Steps:
    """A kind of step: width of the model, samples per batch, steps, threads."""

    name: str
    width: int
    batch: int
    count: int
    threads: int = 1

    @property
    def arguments(self) -> list[str]:
        """For the script."""
        flags = {"width": self.width, "batch": self.batch, "steps": self.count}
        flags["threads"] = self.threads
        return [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]


KINDS = (
    Steps("short", width=64, batch=32, count=1500),
    Steps("medium", width=512, batch=128, count=300),
    Steps("long", width=1024, batch=512, count=60),
    # Every core computes, so that reading the probe's messages must take from one of them.
    Steps("all_cores", width=512, batch=128, count=300, threads=available_cpus()),
)


def measure_overhead(options: Options, report: Report) -> None:
    """One row per kind of step: the median of the paired differences of medians."""
    settle()
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    for kind in KINDS:
        name = f"overhead/{kind.name}"
        if not options.wants(name):
            continue
        bare: list[float] = []
        differences: list[float] = []
        for number in range(rounds):
            order = (plain_seconds, probed_seconds)
            taken = {run: run(kind) for run in (order if number % 2 else order[::-1])}
            bare.append(taken[plain_seconds])
            differences.append(taken[probed_seconds] - taken[plain_seconds])
        report.add(_row(name, bare, differences))


def _row(name: str, bare: Sequence[float], differences: Sequence[float]) -> Row:
    step = statistics.median(bare)
    allowed = max(RELATIVE * step, ABSOLUTE_SECONDS)
    difference = statistics.median(differences)
    low, high = median_interval(differences)
    return Row(
        name,
        f"seconds the probe adds to a step of {step * 1e3:.3g} ms",
        difference,
        low=low,
        high=high,
        n=len(differences),
        target=allowed,
        met=difference < allowed,
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A distribution-free 95 % interval of the median; the extremes when values are few."""
    ordered = sorted(values)
    count = len(ordered)
    reach = 1.96 * math.sqrt(count) / 2
    first = max(0, math.floor((count - 1) / 2 - reach))
    last = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return ordered[first], ordered[last]


def plain_seconds(kind: Steps) -> float:
    """Median step of the script by itself, by its own clock."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        command = [sys.executable, str(SCRIPT), *kind.arguments, "--out", str(path)]
        subprocess.run(command, check=True)
        return _median_of(path)


def probed_seconds(kind: Steps) -> float:
    """Median step of the script in a trial of ours, by its own clock."""
    from collectors.machine import recognise_device, recognise_software
    from collectors.script.command import ScriptCommand, script_workload
    from collectors.script.runner import Trial, run_trial
    from perfmodel.records import Configuration

    command = ScriptCommand(
        (sys.executable, str(SCRIPT), *kind.arguments, "--out", "{trial_dir}/steps.json")
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        software = recognise_software(None)
        measurement = run_trial(
            Trial(
                command=command,
                configuration=Configuration({}),
                device=recognise_device(software),
                software=software,
                workload=script_workload(command),
                name="overhead",
                folder=Path(folder),
                rule=ENDLESS,
            )
        )
        if measurement.failure is not None:
            raise MeasurementError(f"{SCRIPT.name} failed: {measurement.failure.detail}")
        return _median_of(Path(folder) / "steps.json")


def _median_of(path: Path) -> float:
    steps: list[float] = json.loads(path.read_text())
    return statistics.median(steps[len(steps) // 10 :])
