"""Where a step ends: one period of the repeating sequence of optimizer calls.

A script calls its optimizers in a repeating order: `D D D D D G` for a GAN with five critic steps,
one call for an ordinary loop, hundreds for one optimizer per parameter. The period is the shortest
sequence that the last calls repeat three times and that explains the recent calls: `D D D` is not
taken for a period of one while `G` was called not long ago, and it is given up when `G` appears. A
call that is left out now and then (an AMP step that was skipped) is tolerated: it is time, not a
step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

REPEATS = 3
"""Periods that must agree before one is believed."""

MAX_CALLS = 30_000
"""Recent calls that are looked at; a period longer than a third of this isn't found."""

OMISSION_SHARE = 0.2
"""Share of recent periods with a call left out above which the period is given up."""

MIN_LOOSE_OPTIMIZERS = 8
MIN_LOOSE_ROUNDS = 20


@dataclass(frozen=True)
class Period:
    """The calls of one step, rotated so that it ends where `context` (its last calls) ends.

    `context` occurs once in a period, so hearing it means that a step has ended. `loose` is for one
    optimizer per parameter where the parameters in use change (a mixture of experts): each step
    holds its last call once and any of the others.
    """

    pattern: tuple[int, ...]
    context: tuple[int, ...]
    loose: bool = False

    @property
    def boundary(self) -> int | None:
        """The optimizer whose every call ends a step, if there is one."""
        return self.context[0] if len(self.context) == 1 else None


def find_period(calls: Sequence[int], *, repeats: int = REPEATS) -> Period | None:
    """The shortest period that the end of `calls` repeats `repeats` times; None if there is none.

    It must also explain the second half of `calls`, save for a call left out here and there.
    """
    calls = calls[-MAX_CALLS:]
    recent = set(calls[len(calls) // 2 :])
    agreement = _agreement(calls)
    refused: list[int] = []
    for length in range(len(recent) or 1, len(calls) // repeats + 1):
        if agreement[length] < (repeats - 1) * length:
            continue
        if any(length % shorter == 0 for shorter in refused):
            continue  # its repetition
        pattern = tuple(calls[-length:])
        if set(pattern) >= recent:
            period = _rotated(pattern)
            if _explains(period, calls[len(calls) // 2 :]):
                return period
        refused.append(length)
    return None


def find_rounds(calls: Sequence[int]) -> Period | None:
    """For many optimizers of which some are left out each time: one whose calls delimit rounds.

    A round holds no optimizer twice and, mostly, at least half of them.
    """
    recent = calls[len(calls) // 2 :]
    counts = Counter(recent)
    top = max(counts.values(), default=0)
    if len(counts) < MIN_LOOSE_OPTIMIZERS or top < MIN_LOOSE_ROUNDS:
        return None
    anchor = max(o for o, count in counts.items() if count == top)
    rounds = list(_split(recent, anchor))
    regular = sum(len(set(r)) == len(r) and 2 * len(r) >= len(counts) for r in rounds)
    if regular < 0.9 * len(rounds):
        return None
    others = tuple(sorted(o for o in counts if o != anchor))
    return Period((*others, anchor), (anchor,), loose=True)


def _split(calls: Sequence[int], anchor: int) -> Iterator[list[int]]:
    current: list[int] = []
    for call in calls[calls.index(anchor) + 1 :]:
        current.append(call)
        if call == anchor:
            yield current
            current = []


def _agreement(calls: Sequence[int]) -> list[int]:
    """[p]: how many of the last calls equal the one p before them (the Z function, reversed)."""
    text = list(reversed(calls))
    size = len(text)
    z = [size] + [0] * size
    left = right = 0
    for i in range(1, size):
        k = min(right - i, z[i - left]) if i < right else 0
        while i + k < size and text[k] == text[i + k]:
            k += 1
        z[i] = k
        if i + k > right:
            left, right = i, i + k
    return z


def _rotated(pattern: tuple[int, ...]) -> Period:
    counts = Counter(pattern)
    once = [optimizer for optimizer, count in counts.items() if count == 1]
    size = len(pattern)
    if once:
        # The one seen last for the first time: it ends the script's own loop, usually.
        end = pattern.index(max(once)) + 1
        return Period(pattern[end:] + pattern[:end], (max(once),))
    for length in range(2, size + 1):
        doubled = pattern + pattern
        contexts = [doubled[i : i + length] for i in range(size)]
        seen = Counter(contexts)
        unique = [i for i in range(size) if seen[contexts[i]] == 1]
        if unique:
            end = (unique[0] + length) % size
            return Period(pattern[end:] + pattern[:end], contexts[unique[0]])
    raise AssertionError(f"{pattern} is itself a repetition")


class _Splitter:
    """Cuts calls into segments, each ended by a period's context."""

    def __init__(self, period: Period) -> None:
        self._context = period.context
        self._tail: deque[int] = deque(maxlen=len(period.context))
        self.segment: list[int] = []

    def ends(self, call: int) -> list[int] | None:
        """The segment that `call` ends, or None."""
        self._tail.append(call)
        self.segment.append(call)
        if call != self._context[-1] or tuple(self._tail) != self._context:
            return None
        ended, self.segment = self.segment, []
        return ended


def _explains(period: Period, calls: Sequence[int]) -> bool:
    splitter = _Splitter(period)
    segments = [s for call in calls if (s := splitter.ends(call)) is not None]
    omitted = 0
    for segment in segments[1:]:
        left_out = _omissions(segment, period.pattern)
        if left_out is None:
            return False
        omitted += left_out > 0
    return omitted <= OMISSION_SHARE / 2 * len(segments)


def _omissions(segment: Sequence[int], pattern: tuple[int, ...]) -> int | None:
    """Calls left out of `segment` (whole periods); None if more than omissions are needed."""
    if tuple(segment) == pattern:
        return 0
    for repeats in range(1, 4):
        expected = iter(pattern * repeats)
        if all(call in expected for call in segment):
            return len(pattern) * repeats - len(segment)
    return None


class StepFinder:
    """Turns the calls of one process, as they come, into seconds per step.

    `generation` goes up when the period turns out to be another: durations given before are void.
    With `step_optimizer`, each call of that optimizer ends a step and nothing is searched.
    """

    def __init__(self, step_optimizer: int | None = None) -> None:
        self.step_optimizer = step_optimizer
        self.period: Period | None = None
        if step_optimizer is not None:
            self.period = Period((step_optimizer,), (step_optimizer,))
        self.generation = 0
        self.counts: Counter[int] = Counter()
        self._calls: list[int] = []
        self._times: list[float | None] = []
        self._splitter: _Splitter | None = None
        self._last: float | None = None
        self._recent: deque[bool] = deque(maxlen=20)
        self._next_search = REPEATS

    def add(self, optimizer: int, seconds: float | None) -> list[float]:
        """One more call, which ended at `seconds`; the durations of the steps that it completes."""
        self.counts[optimizer] += 1
        if self.step_optimizer is not None:
            return self._ended(seconds) if optimizer == self.step_optimizer else []
        self._calls.append(optimizer)
        self._times.append(seconds)
        self._forget_old()
        if self.period is not None and self._splitter is not None:
            durations = self._follow(self.period, self._splitter, optimizer, seconds)
            if durations is not None:
                return durations
            self._give_up()
        if len(self._calls) >= self._next_search:
            return self._search(REPEATS)
        return []

    def settle(self) -> list[float]:
        """No more calls will come: accept a period seen only twice; the steps' durations."""
        return [] if self.period is not None else self._search(REPEATS - 1)

    def _search(self, repeats: int) -> list[float]:
        count = len(self._calls)
        self._next_search = count + 1 + count // 10
        period = find_period(self._calls, repeats=repeats) or find_rounds(self._calls)
        if period is None:
            return []
        self.period, self._splitter = period, _Splitter(period)
        self._recent.clear()
        self._last = None
        start = max(count - repeats * len(period.pattern), 0)
        durations: list[float] = []
        for optimizer, seconds in zip(self._calls[start:], self._times[start:], strict=True):
            if self._splitter.ends(optimizer) is not None:
                durations += self._ended(seconds)
        return durations

    def _forget_old(self) -> None:
        if len(self._calls) > 2 * MAX_CALLS:
            del self._calls[:-MAX_CALLS], self._times[:-MAX_CALLS]
            self._next_search = MAX_CALLS + MAX_CALLS // 10

    def _follow(
        self, period: Period, splitter: _Splitter, optimizer: int, seconds: float | None
    ) -> list[float] | None:
        """The steps ended by this call; None if the period no longer explains the calls."""
        segment = splitter.ends(optimizer)
        if segment is None:
            known = period.loose or optimizer in period.pattern
            return [] if known and len(splitter.segment) <= 4 * len(period.pattern) else None
        if not period.loose:
            left_out = _omissions(segment, period.pattern)
            if left_out is None:
                return None
            self._recent.append(left_out > 0)
            if sum(self._recent) >= max(2.0, OMISSION_SHARE * len(self._recent)):
                return None
        return self._ended(seconds)

    def _give_up(self) -> None:
        self.period = None
        self.generation += 1
        self._next_search = len(self._calls)

    def _ended(self, seconds: float | None) -> list[float]:
        last, self._last = self._last, seconds
        if seconds is None or last is None or seconds <= last:
            return []
        return [seconds - last]
