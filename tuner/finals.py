"""The finals: default and finalists re-measured interleaved, and whether a winner really won.

Timings of separate blocks lie (other load, clock, temperature), so every round measures each
configuration once, in rotated order, and only differences within rounds count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.records import Configuration, Measurement

MIN_ROUNDS = 3
MAX_ROUNDS = 6
FINALIST = "finalist"
"""The `purpose` among a measurement's conditions that marks the finals."""

CONFIDENCE = 0.95
"""Two-sided confidence of every gain's interval."""


@dataclass(frozen=True)
class Gain:
    """How much better a configuration is than the default: value ratio - 1 with its interval."""

    configuration: Configuration
    gain: float
    low: float
    high: float
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def rotated(configurations: Sequence[Configuration], round_number: int) -> Iterator[Configuration]:
    """The order of one round: each round starts one further on, so no place is always first."""
    start = round_number % len(configurations)
    yield from (*configurations[start:], *configurations[:start])


def gains(scores: Mapping[Configuration, Sequence[float]], default: Configuration) -> list[Gain]:
    """Gains over `default` from scores per round, best first.

    `scores` holds one logarithmic score per complete round and configuration (higher is better).
    A two-way layout: score = configuration + round + noise, the noise pooled over all
    configurations, Student's t with (k-1)(n-1) degrees of freedom.
    """
    from scipy.stats import t

    others = [c for c in scores if c != default]
    rounds = min((len(s) for s in scores.values()), default=0)
    if not others or default not in scores or rounds == 0:
        return []
    table = np.array([scores[c][:rounds] for c in (default, *others)])
    means = table.mean(axis=1)
    residual = table - means[:, None] - table.mean(axis=0)[None, :] + table.mean()
    degrees = (len(table) - 1) * (rounds - 1)
    half = math.inf
    if degrees > 0:
        variance = float((residual**2).sum()) / degrees
        half = float(t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(2 * variance / rounds)
    found = [
        Gain(c, _ratio(difference), _ratio(difference - half), _ratio(difference + half), rounds)
        for c, difference in zip(others, means[1:] - means[0], strict=True)
    ]
    return sorted(found, key=lambda g: -g.gain)


def _ratio(log_difference: float) -> float:
    return math.expm1(min(log_difference, 700.0))


def finished(found: Sequence[Gain], rounds: int) -> bool:
    """Whether another round could still change the answer: best against default decided."""
    if rounds >= MAX_ROUNDS or not found:
        return True
    return rounds >= MIN_ROUNDS and found[0].decided


def winner(found: Sequence[Gain], default: Configuration) -> Configuration:
    """The best configuration if it beats the default by more than the noise, else the default."""
    return found[0].configuration if found and found[0].low > 0 else default


def rounds_of(measurements: Sequence[Measurement], *, study: str) -> list[list[Measurement]]:
    """The latest finals of `study` (its address) among `measurements`, one list per round."""
    own = [
        m
        for m in measurements
        if m.conditions.get("purpose") == FINALIST and m.conditions.get("study") == study
    ]
    latest = max((str(m.conditions["session"]) for m in own), default="")
    rounds: dict[int, list[Measurement]] = {}
    for measurement in own:
        if measurement.conditions["session"] == latest:
            rounds.setdefault(int(measurement.conditions["round"]), []).append(measurement)
    return [rounds[number] for number in sorted(rounds)]


def scores_by_round(
    rounds: Sequence[Sequence[Measurement]], score: Callable[[Measurement], float]
) -> dict[Configuration, list[float]]:
    """Scores of the configurations that were measured, and worked, in every complete round.

    The last round may have been cut short by the budget or a kill; it only counts when it holds
    every configuration of the first.
    """
    complete = [r for r in rounds if len(r) == len(rounds[0])]
    found: dict[Configuration, list[float]] = {}
    for measurement in (m for r in complete for m in r if m.ok):
        found.setdefault(measurement.configuration, []).append(score(measurement))
    return {c: s for c, s in found.items() if len(s) == len(complete)}
