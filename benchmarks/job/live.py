"""One real `tune run` per example: its choice against the sweep's best, and what a repeat costs."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.job.choice import TARGET, within_target
from benchmarks.job.jobs import EXAMPLES, Example, settle
from benchmarks.job.recording import SUFFIX, load
from benchmarks.job.replay import TRIALS
from benchmarks.job.sweep import measure_once, study_of
from benchmarks.report import Options, Report, Row
from collectors.clock import StoppingRule
from perfmodel.errors import RecordError
from perfmodel.records import Configuration

ROUNDS = 7
TRIAL_SECONDS = 3.0
BUDGET = "20m"


def measure_live(options: Options, report: Report, folder: Path) -> None:
    """Tune each example in a fresh database, then give the very same command again."""
    if options.quick:
        report.note("live: left out by --quick (about 3 minutes per example)")
        return
    settle()
    for example in EXAMPLES:
        if not options.wants(f"live/{example.name}"):
            continue
        with tempfile.TemporaryDirectory() as fresh:
            database = Path(fresh) / "timings.db"
            first = tune_run(example, database, report)
            if first is None:
                continue
            _add_gain(example, first, report)
            _confirm(example, Configuration(first["winner"]), folder, report)
            again = tune_run(example, database, report)
            if again is not None:
                _add_again(example, first, again, report)


def tune_run(example: Example, database: Path, report: Report) -> dict[str, Any] | None:
    """The document of one `tune run --json --no-launch`; None (and a note) if it failed."""
    command = [
        *(sys.executable, "-m", "tuner", "run", "--db", str(database), "--json", "--no-launch"),
        *("--trials", str(TRIALS), "--trial-time", "2s", "--budget", BUDGET),
        *example.arguments(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        report.note(f"live/{example.name}: `tune run` exited with {done.returncode}: {last}")
        return None
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _add_gain(example: Example, document: dict[str, Any], report: Report) -> None:
    gain = document["gain"]
    trials = sum(t["conditions"].get("purpose") == "trial" for t in document["trials"])
    report.add(Row(f"live/{example.name}/trials", "search trials", trials, target=TRIALS,
                   met=trials <= TRIALS))  # fmt: skip
    if gain is None:
        report.note(f"live/{example.name}: no gain; the default stays")
        return
    report.add(
        Row(
            f"live/{example.name}/gain",
            "gain over the default, from the finals",
            gain["ratio"],
            low=gain["low"],
            high=gain["high"],
            n=gain["rounds"],
        )
    )


def _add_again(
    example: Example, first: dict[str, Any], again: dict[str, Any], report: Report
) -> None:
    started = again["measured_now"]
    if again["winner"] != first["winner"]:
        report.note(f"live/{example.name}: the second run chose {again['winner']}")
    report.add(
        Row(
            f"live/{example.name}/again",
            "trials of the same command given again",
            started,
            target=1,
            met=started <= 1,
        )
    )


def _confirm(example: Example, chosen: Configuration, folder: Path, report: Report) -> None:
    """Measure the live choice and the sweep's best anew, interleaved."""
    name = f"live/{example.name}/regret"
    path = folder / f"{example.name}{SUFFIX}"
    try:
        sweep = load(path) if path.exists() else None
    except RecordError as error:
        report.note(str(error))
        sweep = None
    if sweep is None or not sweep.rounds:
        report.note(f"{name}: not measured, there is no complete sweep {path.name} to compare with")
        return
    report.note(
        f"live/{example.name}: chose {chosen}, number {sweep.rank(chosen)} of the sweep "
        f"(its best: {sweep.best})"
    )
    ratios = [0.0] if chosen == sweep.best else _log_ratios(example, sweep.best, chosen)
    if not ratios:
        report.add(Row(name, "regret against the sweep's best", None, target=TARGET, met=False))
        report.note(f"{name}: the trials failed; run `tune run` on the example by hand")
        return
    middle, half = statistics.fmean(ratios), half_width(ratios)
    report.add(
        Row(
            name,
            "regret against the sweep's best, measured interleaved",
            math.expm1(middle),
            low=math.expm1(middle - half),
            high=math.expm1(middle + half),
            n=len(ratios),
            target=TARGET,
            met=within_target(math.expm1(middle), half),
        )
    )


def _log_ratios(example: Example, best: Configuration, chosen: Configuration) -> list[float]:
    """log(objective of best / objective of chosen) per round; the order alternates."""
    study, objective = study_of(example), example.job().objective
    rule = StoppingRule(max_seconds=TRIAL_SECONDS)
    found = []
    for number in range(ROUNDS):
        order = (best, chosen) if number % 2 else (chosen, best)
        scores = {c: objective.score(measure_once(study, example, c, rule)) for c in order}
        if all(math.isfinite(score) for score in scores.values()):
            found.append(scores[best] - scores[chosen])
    return found


def half_width(values: Sequence[float]) -> float:
    """Half the width of the mean's 95 % interval (Student's t); 0 for a single value."""
    from scipy.stats import t

    if len(values) < 2:
        return 0.0
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(t.ppf(0.975, len(values) - 1)) * error
