"""When a time is known: the one rule that skips warm-up and stops, and what spoils a measurement.

Nothing here reads a clock: samples come in, a decision comes out, so all of it is tested with
simulated timings.

Warm-up. Let m and s be the median and the robust standard deviation (1.4826 MAD, at least 1 % of m)
of the second half of the samples. Within the first half (at most WARM_UP_LIMIT samples) everything
up to the last sample beyond SPIKE times m and beyond all of the second half (a compilation, an
allocator that grows) is dropped, and then samples as long as the median of three of them lies more
than three s away from m.

Stopping. The confidence interval of the median is the distribution-free one of order statistics: no
shape of the noise is assumed. Neighbouring steps are not independent (another process runs for a
while), so the interval is widened by what the run of the signs of (sample - median) says about
that: n samples with sign correlation r count as n (1 - r) / (1 + r). A drift widens it likewise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfmodel.records import Measurement, Value

SPIKE = 2.0
FEW_SAMPLES = 8
WARM_UP_LIMIT = 50
MIN_USABLE = 3
"""Samples below which there is no measurement at all."""


@dataclass(frozen=True)
class StoppingRule:
    """Stop when the median is known to `relative_precision` (half the width of its interval).

    `max_seconds` is the budget of one trial, counted from the end of the warm-up as it is detected:
    a recompilation of 12 s doesn't use up a budget of 10 s. When it is used, the samples taken by
    then are the measurement, once there are MIN_USABLE. The trial's deadline bounds the rest.
    """

    relative_precision: float = 0.01
    confidence: float = 0.95
    min_samples: int = 8
    max_samples: int = 2000
    min_seconds: float = 0.5
    max_seconds: float = 30.0

    @property
    def deviate(self) -> float:
        """The normal deviate of `confidence`."""
        return statistics.NormalDist().inv_cdf(0.5 + self.confidence / 2)


class State(StrEnum):
    """Where a clock is."""

    WARMING = "warming"
    MEASURING = "measuring"
    DONE = "done"


def warm_up_length(samples: Sequence[float]) -> int:
    """How many of the first samples are warm-up (see the module's text)."""
    half = len(samples) // 2
    if half < 1:
        return 0
    later = samples[half:]
    middle = statistics.median(later)
    deviation = max(1.4826 * statistics.median(abs(x - middle) for x in later), 0.01 * middle)
    limit = min(half, WARM_UP_LIMIT)
    spike = max(SPIKE * middle, *later)
    cut = max((i + 1 for i in range(limit) if samples[i] > spike), default=0)
    while cut < limit:
        if abs(statistics.median(samples[cut : cut + 3]) - middle) <= 3 * deviation:
            break
        cut += 1
    return cut


def warm_up_seconds(samples: Sequence[float]) -> float:
    """How much of these samples' sum isn't the budget's.

    That is their warm-up; while few are left, where it ends isn't sure yet, and a spike among them
    counts as SPIKE times their median only.
    """
    length = warm_up_length(samples)
    kept = samples[length:]
    seconds = sum(samples[:length])
    if 0 < len(kept) < FEW_SAMPLES:
        limit = SPIKE * statistics.median(kept)
        seconds += sum(x - limit for x in kept if x > limit)
    return seconds


def median_half_width(samples: Sequence[float], deviate: float) -> float:
    """Half the width of the median's confidence interval; infinite for too few samples."""
    count = len(samples)
    if count < 2:
        return math.inf
    ordered = sorted(samples)
    correlation = _sign_correlation(samples, statistics.median(ordered))
    spread = deviate * math.sqrt(count) / 2 * math.sqrt((1 + correlation) / (1 - correlation))
    low = math.floor((count - 1) / 2 - spread)
    high = math.ceil((count - 1) / 2 + spread)
    if low < 0 or high > count - 1:
        return math.inf
    return (ordered[high] - ordered[low]) / 2


def _sign_correlation(samples: Sequence[float], middle: float) -> float:
    """Lag-one correlation of the signs of (sample - middle), between 0 and 0.9."""
    signs = [(x > middle) - (x < middle) for x in samples]
    pairs = [a * b for a, b in itertools.pairwise(signs) if a and b]
    if len(pairs) < MIN_USABLE:
        return 0.0
    # A few pairs say little: only what goes beyond their own noise counts.
    correlation = sum(pairs) / len(pairs) - 1 / math.sqrt(len(pairs))
    return min(max(correlation, 0.0), 0.9)


class AdaptiveClock:
    """Takes the seconds of each step in order and says when enough is known."""

    def __init__(self, rule: StoppingRule | None = None) -> None:
        self.rule = rule or StoppingRule()
        self.state = State.WARMING
        self.reason = ""
        self.warm_up = 0
        self.relative_half_width = math.inf
        self.elapsed_seconds = 0.0
        self.warm_up_seconds = 0.0
        self._samples: list[float] = []
        self._next_check = self.rule.min_samples

    @property
    def samples(self) -> tuple[float, ...]:
        """The samples after warm-up."""
        return tuple(self._samples[self.warm_up :])

    @property
    def seconds(self) -> float:
        """Their median; NaN if there are none."""
        kept = self._samples[self.warm_up :]
        return statistics.median(kept) if kept else math.nan

    @property
    def used_up(self) -> bool:
        """Whether the budget is used, as far as warm-up was detected by now."""
        return self.elapsed_seconds - self.warm_up_seconds >= self.rule.max_seconds

    def add(self, sample: float) -> State:
        """One more step took `sample` seconds; ignored once done."""
        if self.state is State.DONE:
            return self.state
        self._samples.append(sample)
        self.elapsed_seconds += sample
        if self.used_up or len(self._samples) >= self._next_check:
            self._check()
        return self.state

    def finish(self, reason: str) -> None:
        """No more samples will come (the script ended, a deadline): settle on what there is."""
        if self.state is not State.DONE:
            self._settle()
            self._done(reason)

    def reopen(self) -> None:
        """Go on although the rule is satisfied: the parent knows of a reason to doubt it."""
        self.state, self.reason = State.MEASURING, ""
        self._next_check = len(self._samples) + 1

    def _check(self) -> None:
        self._next_check = len(self._samples) + 1 + len(self._samples) // 20
        self._settle()
        kept = len(self._samples) - self.warm_up
        if self.used_up and kept >= MIN_USABLE:
            self._done("budget")
        elif kept < self.rule.min_samples:
            return
        elif kept >= self.rule.max_samples:
            self._done("samples")
        elif self.elapsed_seconds >= self.rule.min_seconds and (
            self.relative_half_width <= self.rule.relative_precision
        ):
            self._done("precise")
        elif self.state is State.WARMING:
            self.state = State.MEASURING

    def _settle(self) -> None:
        self.warm_up = warm_up_length(self._samples)
        self.warm_up_seconds = warm_up_seconds(self._samples)
        kept = self._samples[self.warm_up :]
        half_width = median_half_width(kept, self.rule.deviate)
        self.relative_half_width = half_width / self.seconds if kept else math.inf

    def _done(self, reason: str) -> None:
        self.state, self.reason = State.DONE, reason


WIDE_SPREAD = 0.10
SHORT_SECONDS = 1e-3
BUSY_LOAD = 1.5
_HARMLESS_CLOCK_EVENTS = ("", "gpu_idle", "idle", "none")


def warnings(measurement: Measurement) -> list[str]:
    """What makes this timing less trustworthy: one sentence each, with the number and a remedy."""
    if not measurement.ok:
        return []
    found = [*_sample_warnings(measurement), *_condition_warnings(measurement)]
    note = measurement.conditions.get("notes")
    return [*found, str(note)] if note else found


def _sample_warnings(measurement: Measurement) -> list[str]:
    found = []
    count, spread = len(measurement.samples), measurement.spread
    if count < FEW_SAMPLES:
        found.append(
            f"only {count} samples (at least {FEW_SAMPLES} are wanted): give each trial more time "
            "or let the script make more steps"
        )
    if spread >= WIDE_SPREAD:
        found.append(
            f"the steps' times spread by {spread:.0%} of their median (under {WIDE_SPREAD:.0%} is "
            "wanted): end other programs, or give each trial more time"
        )
    if measurement.seconds < SHORT_SECONDS:
        found.append(
            f"a step takes {measurement.seconds * 1e6:.0f} µs, and observing it some µs of that: "
            "compare only with other measurements, or use a larger batch"
        )
    return found


def _condition_warnings(measurement: Measurement) -> list[str]:
    found = []
    conditions = measurement.conditions
    load, cpus = conditions.get("load1"), conditions.get("cpus_available")
    if isinstance(load, float) and isinstance(cpus, int) and load > BUSY_LOAD * cpus:
        found.append(
            f"the load was {load:.1f} on {cpus} available CPUs before the trial: end other "
            "programs and measure again"
        )
    others = conditions.get("gpu_other_processes")
    if isinstance(others, int) and others > 0:
        found.append(f"{others} other processes used the GPU: end them and measure again")
    events = str(conditions.get("gpu_throttle_reasons", "")).split(",")
    if slowed := [event for event in events if event not in _HARMLESS_CLOCK_EVENTS]:
        found.append(
            f"the GPU's clock was held down ({', '.join(slowed)}): check its cooling and power "
            "limit, or lock its clock, and measure again"
        )
    precision = conditions.get("relative_precision")
    if conditions.get("stop_reason") != "precise" and isinstance(precision, float):
        found.append(
            f"the median is known to ±{precision:.1%} only ({_WHY.get(_reason(conditions), '')}"
            "): give each trial more time"
        )
    elif conditions.get("precision_unknown"):
        found.append(
            f"{len(measurement.samples)} samples are too few to say how well the median is known "
            f"({_WHY.get(_reason(conditions), '')}): give each trial more time"
        )
    return found


_WHY = {
    "budget": "the trial's time was used up",
    "samples": "the limit of samples was reached",
    "ended": "the script ended early",
    "deadline": "the trial's deadline passed",
}


def _reason(conditions: Mapping[str, Value]) -> str:
    return str(conditions.get("stop_reason", ""))
