"""Rows of the replayed searches: how far each approach's choice is from the best of the sweep."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from benchmarks.job.recording import SUFFIX, Sweep, load
from benchmarks.job.replay import APPROACHES, TRIALS, Choice
from benchmarks.report import Anchor, Options, Report, Row
from perfmodel.errors import RecordError

TARGET = 0.03
"""Regret of the choice that is allowed, beyond noise."""

OURS = "guided"
QUICK_SEEDS = 3


def within_target(regret: float, noise: float) -> bool:
    """Whether a regret known to ±`noise` meets the target.

    Noise excuses no more than the target itself, so that a noisy machine can't pass for a good one.
    """
    return regret - min(noise, TARGET) <= TARGET


def measure_choices(options: Options, report: Report, folder: Path) -> None:
    """Replay every sweep of `folder`, also those of scripts that this benchmark has never seen."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        report.note(
            f"choice: no sweep (*{SUFFIX}) in {folder}; record them with "
            "`python -m benchmarks.main_job --only sweep`, or name a folder with --data"
        )
    unplaced = []
    for path in paths:
        name = path.name.removesuffix(SUFFIX)
        if not options.wants(f"choice/{name}"):
            continue
        try:
            sweep = load(path)
            if not sweep.rounds:
                raise RecordError(f"{path.name} holds no complete round")
            if not np.isfinite(sweep.truth).any():
                raise RecordError(f"{path.name}: no configuration worked")
        except RecordError as error:
            unplaced.append(str(error))
            continue
        _describe(name, sweep, report)
        _replay(name, sweep, options, report)
    if unplaced:
        report.add(Row("choice/unplaced", "files that aren't sweeps", len(unplaced)))
        for text in unplaced:
            report.note(text)


def _describe(name: str, sweep: Sweep, report: Report) -> None:
    space, best = sweep.study.space, sweep.best
    report.note(
        f"{name}: {len(space)} configurations, {len(sweep.rounds)} complete rounds on "
        f"{sweep.study.device.model}; best {best}; noise between rounds {sweep.noise:.1%}, so a "
        f"difference is known to ±{sweep.tolerance:.1%}"
    )
    if sweep.tolerance > TARGET:
        report.note(
            f"{name}: too noisy to judge {TARGET:.0%}; sweep more --rounds on a quiet machine"
        )
    if "batch_size" in space.names:
        sizes = sorted({c["batch_size"] for c in space}, key=float)
        inside = best["batch_size"] not in (sizes[0], sizes[-1])
        report.add(
            Row(
                f"choice/{name}/inside",
                "1 if the best batch size is inside its range",
                float(inside),
            )
        )
    default = sweep.regret(sweep.default)
    report.add(Row(f"choice/{name}/default", "regret of the default", default, n=len(sweep.rounds)))


def _replay(name: str, sweep: Sweep, options: Options, report: Report) -> None:
    """A row of regrets per approach, ours with the best rival's as its anchor."""
    seeds = min(options.seeds, QUICK_SEEDS) if options.quick else options.seeds
    chosen: dict[str, list[Choice]] = {}
    for approach, search in APPROACHES.items():
        chosen[approach] = [search(sweep, seed) for seed in range(seeds)]
        report.progress(f"choice/{name}: {approach} replayed {seeds} times")
    regrets = {a: [sweep.regret(c.configuration) for c in found] for a, found in chosen.items()}
    worst = {a: max(found) for a, found in regrets.items()}
    for approach, found in regrets.items():
        own = approach == OURS
        rival = min((a for a in regrets if a != approach), key=lambda a: worst[a])
        least = max(0.0, worst[approach] - sweep.tolerance)
        report.add(
            Row(
                f"choice/{name}/{approach}",
                f"regret after {TRIALS} trials, worst seed (interval: noise of the sweep)",
                worst[approach],
                low=least,
                high=worst[approach] + sweep.tolerance,
                n=seeds,
                anchor=Anchor(rival, worst[rival]) if own else None,
                target=TARGET if own else None,
                met=within_target(worst[approach], sweep.tolerance) if own else None,
            )
        )
        report.add(
            Row(
                f"choice/{name}/{approach}/median",
                "regret, median seed (interval: all seeds)",
                statistics.median(found),
                low=min(found),
                high=max(found),
                n=seeds,
            )
        )
    _starts(name, chosen, seeds, report)


def _starts(name: str, chosen: dict[str, list[Choice]], seeds: int, report: Report) -> None:
    starts = [c.starts for c in chosen[OURS]]
    report.add(
        Row(
            f"choice/{name}/starts",
            "starts of the script, finals included",
            statistics.median(starts),
            low=min(starts),
            high=max(starts),
            n=seeds,
        )
    )
