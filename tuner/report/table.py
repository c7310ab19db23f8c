"""The table of a study, its headline, and the list of launches."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from collectors.clock import warnings
from perfmodel.history import Launch
from perfmodel.records import Configuration, Measurement, Prediction, value_text
from tuner.finals import CONFIDENCE, Gain
from tuner.objective import Objective
from tuner.quantities import bytes_text, number_text, seconds_text
from tuner.study import Outcome, failure_text

WIDE = 400
"""Columns where no terminal limits them: a pipe's reader wants whole values."""


def report_console() -> Console:
    """Standard output: as wide as the terminal, or as wide as the values where there is none."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WIDE)
    return console


def percent(ratio: float) -> str:
    """`+12.3 %`; an infinite bound is `?`."""
    return "?" if not math.isfinite(ratio) else f"{ratio:+.1%}".replace("%", " %")


def gain_text(gain: Gain) -> str:
    """`+31.0 % (95 % interval +28.2 % … +33.9 %, 3 interleaved rounds)`."""
    interval = f"{percent(gain.low)} … {percent(gain.high)}"
    return (
        f"{percent(gain.gain)} ({100 * CONFIDENCE:.0f} % interval {interval}, "
        f"{gain.rounds} interleaved rounds)"
    )


def prediction_text(prediction: Prediction) -> str:
    """`12.3 ms/step (90 % interval 11.9 ms … 12.8 ms)` and what limits its worth."""
    text = (
        f"{seconds_text(prediction.seconds)}/step (90 % interval "
        f"{seconds_text(prediction.low)} … {seconds_text(prediction.high)})"
    )
    if prediction.extrapolating:
        text += ", extrapolating"
    return text if prediction.calibrated else f"{text}, uncalibrated device"


def trials_table(outcome: Outcome, objective: Objective) -> Table:
    """Every configuration measured: time, spread, throughput, memory, status."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in outcome.study.space.names:
        table.add_column(name, justify="right")
    for name in ("step time", "spread", "samples/s", "peak memory", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    by_configuration: dict[Configuration, list[Measurement]] = {}
    for measurement in outcome.measurements:
        by_configuration.setdefault(measurement.configuration, []).append(measurement)
    for configuration, runs in by_configuration.items():
        names = [value_text(configuration[n]) for n in outcome.study.space.names]
        style = "bold" if configuration == outcome.winner else None
        table.add_row(
            *names, *_cells(runs, objective), _status(configuration, runs, outcome), style=style
        )
    return table


def _cells(runs: Sequence[Measurement], objective: Objective) -> list[str]:
    worked = [m for m in runs if m.ok]
    if not worked:
        return ["-", "-", "-", "-", str(len(runs))]
    spreads = [m.spread for m in worked if not math.isnan(m.spread)]
    throughput = statistics.median(objective.throughput(m) for m in worked)
    peaks = [m.memory.peak_bytes for m in worked if m.memory.peak_bytes is not None]
    return [
        seconds_text(statistics.median(m.seconds for m in worked)),
        f"{statistics.median(spreads):.1%}" if spreads else "-",
        "-" if math.isnan(throughput) else number_text(throughput),
        bytes_text(max(peaks)) if peaks else "-",
        str(len(runs)),
    ]


def _status(configuration: Configuration, runs: Sequence[Measurement], outcome: Outcome) -> str:
    marks = []
    if configuration == outcome.default:
        marks.append("default")
    if configuration == outcome.winner:
        marks.append("winner")
    marks.append(failure_text(runs[-1]))
    return ", ".join(marks)


def headline(
    outcome: Outcome, objective: Objective, *, assumed: Sequence[str], default_given: bool
) -> list[str]:
    """The lines under the table: default, winner, gain, prediction beside measurement."""
    lines = []
    worked = [m for m in outcome.of(outcome.default) if m.ok]
    value = statistics.median(objective.value(m) for m in worked) if worked else math.nan
    word = "default" if default_given else "assumed default"
    reached = objective.text(value) if worked else "did not run"
    lines.append(f"{word}: {outcome.default}: {reached}")
    lines += _winner_lines(outcome, objective, default_given=default_given)
    if assumed and default_given:
        lines.append(f"assumed, because no --default names it: {', '.join(assumed)}")
    lines += _doubts(outcome)
    if outcome.predicted is not None:
        seconds = statistics.median(m.seconds for m in outcome.of(outcome.winner) if m.ok)
        lines.append(
            f"predicted for the winner, unseen: {prediction_text(outcome.predicted)};"
            f" measured: {seconds_text(seconds)}/step"
        )
    return lines


def _winner_lines(outcome: Outcome, objective: Objective, *, default_given: bool) -> list[str]:
    if outcome.winner == outcome.default:
        if outcome.gains:
            return ["winner: the default stays; nothing beat it by more than the noise"]
        return ["winner: the default stays; nothing else could be compared with it"]
    best = statistics.median(objective.value(m) for m in outcome.of(outcome.winner) if m.ok)
    lines = [f"winner: {outcome.winner}: {objective.text(best)}"]
    if not default_given:
        lines.append("gain: not shown, since no --default says what you run today")
    elif outcome.gain is not None:
        lines.append(f"gain: {gain_text(outcome.gain)}")
    elif not any(m.ok for m in outcome.of(outcome.default)):
        lines.append("gain: unknown, since the default doesn't run")
    else:
        lines.append("gain: unknown, since the default was not part of the finals")
    return lines


def _doubts(outcome: Outcome) -> list[str]:
    """Why the latest timing of default and winner may not be trusted, and what to do."""
    lines = []
    for word, configuration in (("default", outcome.default), ("winner", outcome.winner)):
        worked = [m for m in outcome.of(configuration) if m.ok]
        if worked and not (word == "winner" and outcome.winner == outcome.default):
            lines += [f"note: {word}: {text}" for text in warnings(worked[-1])]
    return lines


def launches_table(launches: Sequence[Launch], objectives: Sequence[Objective]) -> Table:
    """Earlier launches: what was chosen, predicted and reached."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (
        "started",
        "workload",
        "configuration",
        "predicted",
        "reached",
        "samples/s",
        "exit",
        "ran",
    ):
        table.add_column(name)
    for launch, objective in zip(launches, objectives, strict=True):
        achieved = launch.achieved
        throughput = objective.throughput(achieved) if achieved else math.nan
        table.add_row(
            launch.started_at[:19].replace("T", " "),
            launch.study.workload.name,
            str(launch.configuration),
            f"{seconds_text(launch.predicted.seconds)}/step" if launch.predicted else "-",
            f"{seconds_text(achieved.seconds)}/step" if achieved and achieved.ok else "-",
            "-" if math.isnan(throughput) else number_text(throughput),
            "-" if launch.exit_code is None else str(launch.exit_code),
            "end not seen" if launch.seconds is None else seconds_text(launch.seconds),
        )
    return table


def launch_lines(launch: Launch, objective: Objective) -> list[str]:
    """What the launched run reached, beside what was predicted."""
    achieved = launch.achieved
    predicted = f"predicted {prediction_text(launch.predicted)}" if launch.predicted else ""
    if achieved is None or not achieved.ok:
        reached = "made no step that could be timed"
    else:
        reached = f"reached {seconds_text(achieved.seconds)}/step"
        throughput = objective.throughput(achieved)
        reached += "" if math.isnan(throughput) else f" ({number_text(throughput)} samples/s)"
    lines = [f"the run {reached}; {predicted}" if predicted else f"the run {reached}"]
    if launch.seconds is not None:
        ran = seconds_text(launch.seconds)
        lines.append(f"it ran {ran} and ended with exit code {launch.exit_code}")
    return lines
