"""The rule that skips warm-up and stops, over simulated step times (seeded; no clock is read)."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.clock import (
    AdaptiveClock,
    State,
    StoppingRule,
    median_half_width,
    warm_up_length,
    warnings,
)
from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Software,
    Workload,
)


class FakeSteps:
    """Step times of a simulated script: noise, outliers, drift, slow steps at the start."""

    def __init__(
        self,
        seconds: float,
        *,
        noise: float = 0.0,
        outliers: float = 0.0,
        drift: float = 0.0,
        first: tuple[float, ...] = (),
        seed: int = 0,
    ) -> None:
        self._seconds = seconds
        self._noise = noise
        self._outliers = outliers
        self._drift = drift
        self._first = first
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[float]:
        yield from self._first
        level = self._seconds
        while True:
            factor = math.exp(self._random.gauss(0, self._noise))
            if self._random.random() < self._outliers:
                factor *= self._random.uniform(1.5, 6)
            yield level * factor
            level *= 1 + self._drift


def run(clock: AdaptiveClock, steps: FakeSteps, limit: int = 5000) -> int:
    for count, sample in enumerate(steps, start=1):
        if clock.add(sample) is State.DONE or count == limit:
            return count
    raise AssertionError("unreachable")


def test_quiet_steps_need_the_fewest_samples() -> None:
    clock = AdaptiveClock()
    assert run(clock, FakeSteps(0.2)) == 8
    assert clock.reason == "precise"
    assert clock.seconds == 0.2


def test_more_noise_needs_more_samples() -> None:
    counts = [
        run(AdaptiveClock(), FakeSteps(0.1, noise=noise, seed=4)) for noise in (0.005, 0.03, 0.06)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("seed", range(20))
def test_the_stated_precision_is_reached(seed: int) -> None:
    clock = AdaptiveClock(StoppingRule(relative_precision=0.02, max_seconds=1e9))
    run(clock, FakeSteps(0.1, noise=0.05, outliers=0.05, seed=seed))
    assert clock.reason == "precise"
    assert clock.relative_half_width <= 0.02
    assert abs(clock.seconds / 0.1 - 1) < 0.05


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(5)
    hits = 0
    deviate = StoppingRule().deviate
    for _ in range(400):
        samples = [math.exp(generator.gauss(0, 0.1)) for _ in range(30)]
        width = median_half_width(samples, deviate)
        hits += abs(statistics.median(samples) - 1) <= width
    assert hits / 400 > 0.90


def test_neighbours_that_agree_widen_the_interval() -> None:
    generator = random.Random(6)
    independent = [1 + generator.gauss(0, 0.05) for _ in range(60)]
    grouped = sorted(independent[:30]) + sorted(independent[30:])
    deviate = StoppingRule().deviate
    assert median_half_width(grouped, deviate) > 1.5 * median_half_width(independent, deviate)


def test_compiling_steps_are_dropped() -> None:
    clock = AdaptiveClock()
    run(clock, FakeSteps(0.1, noise=0.01, first=(9.0, 0.1, 4.0, 0.1), seed=1))
    assert clock.warm_up >= 3
    assert max(clock.samples) < 0.2


def test_a_slow_start_is_dropped() -> None:
    ramp = tuple(0.2 - 0.01 * i for i in range(10))
    clock = AdaptiveClock()
    run(clock, FakeSteps(0.1, noise=0.005, first=ramp, seed=2))
    assert clock.warm_up >= 7
    assert clock.seconds == pytest.approx(0.1, rel=0.01)


def test_outliers_in_between_are_kept_and_do_no_harm() -> None:
    clock = AdaptiveClock(StoppingRule(relative_precision=0.001))
    run(clock, FakeSteps(0.1, noise=0.01, outliers=0.1, seed=3))
    assert clock.seconds == pytest.approx(0.1, rel=0.01)
    assert max(clock.samples) > 0.14


def test_a_drift_uses_the_budget_up() -> None:
    clock = AdaptiveClock(StoppingRule(max_seconds=20))
    run(clock, FakeSteps(0.1, drift=0.01))
    assert clock.reason == "budget"
    assert clock.relative_half_width > 0.01


def test_the_budget_ends_it_once_there_are_three_samples() -> None:
    clock = AdaptiveClock(StoppingRule(max_seconds=5))
    assert run(clock, FakeSteps(4.0)) == 3
    assert clock.reason == "budget"
    assert len(clock.samples) == 3


@pytest.mark.parametrize("first", [(12.0,), (0.5, 12.0), (12.0, 0.5, 9.0)])
def test_warm_up_does_not_use_the_budget_up(first: tuple[float, ...]) -> None:
    """As a recompilation at the first or second step does."""
    clock = AdaptiveClock(StoppingRule(relative_precision=0.0, max_seconds=10))
    run(clock, FakeSteps(0.5, noise=0.02, first=first))
    assert clock.reason == "budget"
    assert sum(clock.samples) == pytest.approx(10, abs=0.7)
    assert max(clock.samples) < 1


def test_a_script_that_ends_early() -> None:
    clock = AdaptiveClock()
    for sample in (0.5, 0.1, 0.1, 0.1):
        clock.add(sample)
    assert clock.state is State.WARMING
    clock.finish("ended")
    assert (clock.state, clock.reason, clock.samples) == (State.DONE, "ended", (0.1, 0.1, 0.1))


def test_short_steps_are_watched_for_a_while() -> None:
    clock = AdaptiveClock(StoppingRule(min_seconds=0.5))
    run(clock, FakeSteps(0.001, noise=0.001))
    assert clock.elapsed_seconds >= 0.5


def test_reopening_goes_on() -> None:
    clock = AdaptiveClock()
    run(clock, FakeSteps(0.2))
    clock.reopen()
    assert clock.state is State.MEASURING
    assert clock.add(0.2) is State.DONE


@given(st.lists(st.floats(1e-6, 1e3), max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_samples_give_a_sane_answer(samples: list[float]) -> None:
    clock = AdaptiveClock()
    for sample in samples:
        clock.add(sample)
    clock.finish("ended")
    assert 0 <= warm_up_length(samples) <= len(samples) // 2
    assert len(clock.samples) >= len(samples) // 2 or clock.reason != "ended"
    assert clock.relative_half_width >= 0


def measurement(samples: tuple[float, ...], **conditions: float | int | str) -> Measurement:
    return Measurement(
        device=Device("cpu", "v", "m", "a", 1, 2),
        software=Software(),
        workload=Workload("step", "w"),
        configuration=Configuration(batch_size=1),
        measured_at="2026-01-01T00:00:00.000000+00:00",
        samples=samples,
        conditions=Facts(conditions),
    )


def test_a_good_measurement_has_no_warnings() -> None:
    good = measurement((0.1,) * 10, load1=0.5, cpus_available=2, stop_reason="precise")
    assert warnings(good) == []


@pytest.mark.parametrize(
    ("bad", "number"),
    [
        (measurement((0.1,) * 3), "only 3 samples"),
        (measurement((0.1, 0.2) * 5), "67%"),
        (measurement((2e-4,) * 10), "200 µs"),
        (measurement((0.1,) * 10, load1=9.0, cpus_available=2), "9.0 on 2"),
        (measurement((0.1,) * 10, gpu_other_processes=2), "2 other processes"),
        (measurement((0.1,) * 10, gpu_throttle_reasons="power_cap"), "power_cap"),
        (measurement((0.1,) * 10, stop_reason="budget", relative_precision=0.03), "±3.0%"),
        (measurement((0.1,) * 9, stop_reason="deadline", precision_unknown=True), "9 samples are"),
        (measurement((0.1,) * 10, notes="threads=4 is not in force"), "threads=4"),
    ],
)
def test_each_warning_names_its_number(bad: Measurement, number: str) -> None:
    (warning,) = warnings(bad)
    assert number in warning


def test_a_failure_has_no_warnings() -> None:
    failed = Measurement(
        device=Device("cpu", "v", "m", "a", 1, 2),
        software=Software(),
        workload=Workload("step", "w"),
        configuration=Configuration(batch_size=1),
        measured_at="2026-01-01T00:00:00.000000+00:00",
        failure=Failure(FailureReason.TIMEOUT),
    )
    assert warnings(failed) == []
