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

LOOKS = (3, 6)
"""Rounds after which the answer is looked at; each look is a chance to be fooled."""

MIN_ROUNDS, MAX_ROUNDS = LOOKS

FINALIST = "finalist"
"""The `purpose` among a measurement's conditions that marks the finals."""

CONFIDENCE = 0.95
"""Two-sided, over all challengers and looks together (Bonferroni)."""


@dataclass(frozen=True)
class Gain:
    """How much better a configuration is than the baseline: value ratio - 1 with its interval."""

    configuration: Configuration
    gain: float
    low: float
    high: float
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Verdict:
    """What finals say: gains over `baseline`, best first, and the winner."""

    baseline: Configuration
    gains: tuple[Gain, ...]
    rounds: int

    @property
    def winner(self) -> Configuration:
        """The best if it beats the baseline by more than the noise, else the baseline."""
        best = self.gains[0] if self.gains else None
        return best.configuration if best and best.low > 0 else self.baseline


def rotated(configurations: Sequence[Configuration], round_number: int) -> Iterator[Configuration]:
    """The order of one round: each round starts one further on, so no place is always first."""
    start = round_number % len(configurations)
    yield from (*configurations[start:], *configurations[:start])


def gains(scores: Mapping[Configuration, Sequence[float]], baseline: Configuration) -> list[Gain]:
    """Gains over `baseline` from scores per round, best first.

    `scores` holds one logarithmic score per complete round and configuration (higher is better).
    A two-way layout: score = configuration + round + noise, the noise pooled over all
    configurations, Student's t with (k-1)(n-1) degrees of freedom.
    """
    from scipy.stats import t

    others = [c for c in scores if c != baseline]
    rounds = min((len(s) for s in scores.values()), default=0)
    if not others or baseline not in scores or rounds == 0:
        return []
    table = np.array([scores[c][:rounds] for c in (baseline, *others)])
    means = table.mean(axis=1)
    residual = table - means[:, None] - table.mean(axis=0)[None, :] + table.mean()
    degrees = (len(table) - 1) * (rounds - 1)
    half = math.inf
    if degrees > 0:
        variance = float((residual**2).sum()) / degrees
        doubt = (1 - CONFIDENCE) / (len(others) * len(LOOKS))
        half = float(t.ppf(1 - doubt / 2, degrees)) * math.sqrt(2 * variance / rounds)
    found = [
        Gain(c, _ratio(difference), _ratio(difference - half), _ratio(difference + half), rounds)
        for c, difference in zip(others, means[1:] - means[0], strict=True)
    ]
    return sorted(found, key=lambda g: -g.gain)


def _ratio(log_difference: float) -> float:
    return math.expm1(log_difference) if log_difference < 700 else math.inf


def finished(found: Sequence[Gain], rounds: int) -> bool:
    """Whether the finals are over: the best is decided at a look, or all rounds are made."""
    if rounds >= MAX_ROUNDS or not found:
        return True
    return rounds in LOOKS and found[0].decided


@dataclass(frozen=True)
class Finals:
    """One session of finals: its complete rounds and the configuration they compare with."""

    rounds: tuple[tuple[Measurement, ...], ...]
    baseline: Configuration

    @property
    def carried_through(self) -> bool:
        """Whether there are enough rounds for an answer."""
        return len(self.rounds) >= MIN_ROUNDS

    def scores(self, score: Callable[[Measurement], float]) -> dict[Configuration, list[float]]:
        """Scores by round of the configurations that worked in every one."""
        found: dict[Configuration, list[float]] = {}
        for measurement in (m for r in self.rounds for m in r if m.ok):
            found.setdefault(measurement.configuration, []).append(score(measurement))
        return {c: s for c, s in found.items() if len(s) == len(self.rounds)}

    def verdict(self, score: Callable[[Measurement], float], default: Configuration) -> Verdict:
        """The answer against `default` if it took part, else against the session's own baseline."""
        scores = self.scores(score)
        baseline = default if default in scores else self.baseline
        return Verdict(baseline, tuple(gains(scores, baseline)), len(self.rounds))


def finals_of(measurements: Sequence[Measurement], *, study: str) -> Finals | None:
    """The finals of `study` (its address) that count: the latest that were carried through.

    Where none were, the latest. A round that a kill or the budget cut short doesn't count.
    """
    sessions: dict[str, dict[int, list[Measurement]]] = {}
    for measurement in measurements:
        conditions = measurement.conditions
        if conditions.get("purpose") == FINALIST and conditions.get("study") == study:
            session = sessions.setdefault(str(conditions["session"]), {})
            session.setdefault(int(conditions["round"]), []).append(measurement)
    found = [_finals(sessions[name]) for name in sorted(sessions)]
    through = [finals for finals in found if finals.carried_through]
    return (through or found)[-1] if found else None


def _finals(rounds: Mapping[int, Sequence[Measurement]]) -> Finals:
    complete = tuple(
        tuple(r) for _, r in sorted(rounds.items()) if len(r) == r[0].conditions["entrants"]
    )
    everyone = [m for r in rounds.values() for m in r]
    marked = [m.configuration for m in everyone if m.conditions.get("baseline")]
    return Finals(complete, marked[0] if marked else everyone[0].configuration)
