"""Periods of optimizer calls: found from their order, corrected when they were false."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.script.period import Period, StepFinder, find_period


def follow(finder: StepFinder, calls: list[int], *, start: float = 0.0) -> list[float]:
    """Durations given by `finder` for calls one second apart; void ones are dropped."""
    durations: list[float] = []
    for i, optimizer in enumerate(calls):
        generation = finder.generation
        new = finder.add(optimizer, start + i)
        if finder.generation != generation:
            durations = []
        durations += new
    return durations


def rotations(pattern: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {pattern[i:] + pattern[:i] for i in range(len(pattern))}


def test_one_optimizer_counts_each_call() -> None:
    finder = StepFinder()
    assert follow(finder, [0] * 10) == [1.0] * 9
    assert finder.period == Period((0,), (0,))


def test_two_optimizers_make_one_step() -> None:
    assert follow(StepFinder(), [0, 1] * 8) == [2.0] * 7


@pytest.mark.parametrize("critic_steps", [2, 3, 5, 20])
def test_critic_steps_are_part_of_the_step(critic_steps: int) -> None:
    finder = StepFinder()
    durations = follow(finder, ([0] * critic_steps + [1]) * 6)
    assert finder.period is not None
    assert finder.period.pattern == (0,) * critic_steps + (1,)
    assert finder.period.boundary == 1
    assert set(durations) == {critic_steps + 1.0}


def test_a_false_short_period_is_given_up_when_another_optimizer_appears() -> None:
    finder = StepFinder()
    assert follow(finder, [0] * 5) == [1.0] * 4
    assert finder.generation == 0
    finder.add(1, 5.0)
    assert finder.period is None
    assert finder.generation == 1


def test_a_phase_with_more_critic_steps_is_left_behind() -> None:
    calls = ([0] * 20 + [1]) * 4 + ([0] * 5 + [1]) * 30
    finder = StepFinder()
    durations = follow(finder, calls)
    assert finder.period is not None
    assert len(finder.period.pattern) == 6
    assert durations[-1] == 6.0


def test_one_optimizer_per_parameter() -> None:
    finder = StepFinder()
    durations = follow(finder, list(range(300)) * 6)
    assert set(durations) == {300.0}
    assert finder.period is not None
    assert finder.period.boundary == 299


def test_one_optimizer_per_parameter_where_some_are_unused_at_random() -> None:
    generator = random.Random(3)
    finder = StepFinder()
    calls: list[int] = []
    for _ in range(80):
        calls += [o for o in range(16) if o % 4 == 0 or generator.random() < 0.7]
    durations = follow(finder, calls)
    assert finder.period is not None
    assert finder.period.loose
    assert len(durations) > 10
    assert all(4 <= duration <= 16 for duration in durations)


def test_a_call_left_out_now_and_then_is_time_and_not_a_step() -> None:
    calls = [0, 1] * 10 + [0] + [0, 1] * 10 + [1] + [0, 1] * 10
    finder = StepFinder()
    durations = follow(finder, calls)
    assert finder.generation == 0
    assert sorted(set(durations)) == [1.0, 2.0, 3.0]
    assert durations.count(2.0) >= len(durations) - 2


def test_a_period_that_contains_a_shorter_one_is_found_at_last() -> None:
    calls = ([0, 1] * 3 + [0]) * 12
    finder = StepFinder()
    durations = follow(finder, calls)
    assert finder.period is not None
    assert len(finder.period.pattern) == 7
    assert durations[-1] == 7.0


def test_no_optimizer_that_is_called_once() -> None:
    finder = StepFinder()
    durations = follow(finder, [0, 0, 1, 1] * 8)
    assert finder.period is not None
    assert finder.period.boundary is None
    assert set(durations) == {4.0}


def test_the_override_counts_only_that_optimizer() -> None:
    finder = StepFinder(step_optimizer=1)
    assert follow(finder, [0, 0, 1, 0, 1, 1]) == [2.0, 1.0]


def test_irregular_calls_have_no_period() -> None:
    generator = random.Random(1)
    calls = [generator.randrange(3) for _ in range(400)]
    finder = StepFinder()
    follow(finder, calls)
    assert finder.period is None
    assert finder.settle() == []


def test_a_period_seen_twice_is_taken_when_the_script_ends() -> None:
    finder = StepFinder()
    follow(finder, [0, 0, 0, 1] * 2)
    assert finder.period is None
    assert finder.settle() == [4.0]


def test_times_that_were_not_read_give_no_duration() -> None:
    finder = StepFinder()
    for i in range(20):
        durations = finder.add(i % 2, float(i) if i % 2 else None)
    assert durations == [2.0]


patterns = st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple)


def primitive(pattern: tuple[int, ...]) -> tuple[int, ...]:
    """The shortest sequence that `pattern` repeats."""
    for size in range(1, len(pattern)):
        if len(pattern) % size == 0 and pattern == pattern[:size] * (len(pattern) // size):
            return pattern[:size]
    return pattern


@given(patterns, st.integers(0, 8), st.integers(8, 14))
@settings(max_examples=200, deadline=None)
def test_any_repeated_pattern_is_found(pattern: tuple[int, ...], phase: int, repeats: int) -> None:
    stream = itertools.islice(itertools.cycle(pattern), phase, phase + repeats * len(pattern))
    calls = list(stream)
    finder = StepFinder()
    durations = follow(finder, calls)
    expected = primitive(pattern)
    assert finder.period is not None
    # A period with a shorter one inside (0 1 0 1 0 1 0) is told from calls left out of that only
    # after some of its own repetitions.
    assert finder.period.pattern in rotations(expected) or len(expected) > 6
    assert durations


@given(patterns, st.lists(st.integers(0, 3), max_size=20))
@settings(max_examples=200, deadline=None)
def test_what_came_before_does_not_matter(pattern: tuple[int, ...], before: list[int]) -> None:
    calls = before + list(pattern) * (3 + 2 * (len(before) // len(pattern) + 1))
    period = find_period(calls)
    assert period is not None
    assert period.pattern in rotations(primitive(pattern))


@given(patterns)
@settings(max_examples=100, deadline=None)
def test_the_context_occurs_once_in_a_period(pattern: tuple[int, ...]) -> None:
    period = find_period(list(pattern) * 4)
    assert period is not None
    doubled = period.pattern * 2
    width = len(period.context)
    ends = [i for i in range(len(period.pattern)) if doubled[i : i + width] == period.context]
    assert len(ends) == 1
    assert period.pattern[-width:] == period.context
