"""Measures every configuration of the examples in interleaved rounds, to be replayed later.

Each round visits all configurations in a fresh random order. Every measurement is kept at once in
a journal beside the sweep, so an interrupted sweep goes on where it was.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.job.jobs import EXAMPLES, Example, settle
from benchmarks.job.recording import (
    ROUND,
    SUFFIX,
    Sweep,
    extended,
    load,
    own_parts,
    save,
    with_shared,
)
from benchmarks.report import Options, Report
from collectors.clock import StoppingRule
from perfmodel.errors import RecordError
from perfmodel.history import Study
from perfmodel.records import Configuration, Facts, Measurement

MAX_SECONDS = 0.9
"""Timed steps of one configuration in one round; start-up comes on top."""
MIN_SECONDS = 0.5
DEADLINE_SECONDS = 60.0


def measure_sweeps(options: Options, report: Report, folder: Path) -> None:
    """Bring every example's sweep to `options.rounds` rounds, one round of each at a time."""
    settle()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        for example in EXAMPLES:
            if options.wants(f"sweep/{example.name}"):
                _round(example, number, report, folder)


def _round(example: Example, number: int, report: Report, folder: Path) -> None:
    path = folder / f"{example.name}{SUFFIX}"
    journal = folder / f"{example.name}.journal"
    sweep = begun(example, path)
    sweep = extended(sweep, _journalled(journal, sweep))
    order = list(sweep.study.space)
    random.Random(f"{example.name} {number}").shuffle(order)
    missing = [c for c in order if (number, c) not in sweep.table]
    if not missing:
        return
    started = time.monotonic()
    new: list[Measurement] = []
    with journal.open("a", encoding="utf-8") as stream:
        for done, measurement in enumerate(_measured(sweep.study, example, missing, number), 1):
            stream.write(json.dumps(own_parts(measurement)) + "\n")
            stream.flush()
            new.append(measurement)
            if done % 20 == 0 or done == len(missing):
                elapsed = time.monotonic() - started
                left = elapsed / done * (len(missing) - done)
                report.progress(
                    f"sweep {example.name} round {number}: {done} of {len(missing)}, "
                    f"{elapsed:.0f} s, {left:.0f} s left"
                )
    save(extended(sweep, tuple(new)), path)
    journal.unlink()


def study_of(example: Example) -> Study:
    """The study that `tune run` would make of it here and now."""
    from collectors.machine import recognise_device, recognise_software
    from collectors.script.command import script_workload

    job = example.job()
    software = recognise_software(job.command.interpreter)
    return Study(
        device=recognise_device(software),
        software=software,
        workload=script_workload(job.command),
        space=job.space,
        objective=job.objective.name,
        samples=job.objective.samples,
    )


def begun(example: Example, path: Path) -> Sweep:
    """The sweep as far as it was saved; RecordError when it is of another question."""
    study = study_of(example)
    if not path.exists():
        return Sweep(study, example.job().default, ())
    saved = load(path)
    for part in ("device", "software", "workload", "space"):
        if getattr(saved.study, part) != getattr(study, part):
            raise RecordError(
                f"{path} was recorded with another {part} than today's; move it away to sweep "
                "anew, or name another folder with --data"
            )
    return saved


def _journalled(journal: Path, sweep: Sweep) -> tuple[Measurement, ...]:
    """What a round that was interrupted had measured; a line cut short by a kill is left out."""
    found = []
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
        try:
            measurement = with_shared(json.loads(line), sweep.study)
        except (ValueError, RecordError):
            continue
        if (measurement.conditions[ROUND], measurement.configuration) not in sweep.table:
            found.append(measurement)
    return tuple(found)


def measure_once(
    study: Study, example: Example, configuration: Configuration, rule: StoppingRule
) -> Measurement:
    """One trial, as `tune run` makes it."""
    from collectors.script.runner import Limits, Trial, run_trial

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return run_trial(
            Trial(
                command=example.job().command,
                configuration=configuration,
                device=study.device,
                software=study.software,
                workload=study.workload,
                name="benchmark",
                folder=Path(folder),
                rule=rule,
                limits=Limits(deadline_seconds=DEADLINE_SECONDS),
            )
        )


def _measured(
    study: Study, example: Example, configurations: list[Configuration], number: int
) -> Iterator[Measurement]:
    rule = StoppingRule(max_seconds=MAX_SECONDS, min_seconds=MIN_SECONDS)
    for configuration in configurations:
        measured = measure_once(study, example, configuration, rule)
        yield replace(measured, conditions=Facts({**measured.conditions, ROUND: number}))
