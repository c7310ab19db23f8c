"""From what the probes say to the step times of one run: one clock per process, one answer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collectors.clock import (
    MIN_USABLE,
    WARM_UP_LIMIT,
    AdaptiveClock,
    State,
    StoppingRule,
    warm_up_seconds,
)
from collectors.script.events import (
    Armed,
    Bye,
    Calls,
    Captured,
    Event,
    Failed,
    Hello,
    Known,
    Listener,
    Note,
)
from collectors.script.period import StepFinder

PATIENCE_CALLS = 120
"""Calls for which an optimizer that exists but wasn't called yet keeps the measurement open."""

RANK_WAIT_SECONDS = 10.0
"""How long a rank whose time is known waits for ranks that have not made a step."""


@dataclass(frozen=True)
class Observed:
    """The slowest rank's step times and what is known about the run."""

    samples: tuple[float, ...]
    rank: int
    ranks: int
    warm_up: int
    steps: int
    calls_per_step: int
    reason: str
    relative_precision: float
    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    python: str
    executable: str
    """Name of the interpreter's file, without its folder."""
    torch: str
    cuda_used: bool


@dataclass
class _Process:
    """What one process has said."""

    hello: Hello | None = None
    torch: str = ""
    known: int = 0
    rank: int = 0
    world_size: int = 1
    gone: bool = False
    lost: bool = False
    captured: bool = False
    failed: str = ""
    next_settling: int = 0
    first_call: float | None = None
    last_call: float = 0.0
    first_gaps: list[float] = field(default_factory=list)
    warm_up_seconds: float = 0.0
    calls: int = 0
    steps: int = 0
    generation: int = 0
    reading_all: bool = True
    memory: dict[str, int] = field(default_factory=dict)
    finder: StepFinder = field(default_factory=StepFinder)
    clock: AdaptiveClock = field(default_factory=AdaptiveClock)

    def heard_at(self, seconds: float) -> None:
        """A call ended at this time."""
        if self.first_call is None:
            self.first_call = seconds
        elif len(self.first_gaps) < 2 * WARM_UP_LIMIT:
            self.first_gaps.append(seconds - self.last_call)
            self.warm_up_seconds = warm_up_seconds(self.first_gaps)
        self.last_call = seconds

    @property
    def spent_seconds(self) -> float:
        """Since its first call, without what the first calls took to warm up (compilations)."""
        if self.first_call is None:
            return 0.0
        return self.last_call - self.first_call - self.warm_up_seconds

    @property
    def usable(self) -> bool:
        # What precedes the capture of a graph is a rehearsal, not the steps that follow it.
        return len(self.clock.samples) >= MIN_USABLE and not self.captured

    @property
    def settled(self) -> bool:
        return self.clock.state is State.DONE or self.gone


class StepStream:
    """Hears the events of one run; `done` when every rank's step time is known.

    Used alike by a trial, which ends the script then, and by a launch, which closes the listener.
    """

    def __init__(
        self, listener: Listener, rule: StoppingRule, *, step_optimizer: int | None = None
    ) -> None:
        self._listener = listener
        self._rule = rule
        self._step_optimizer = step_optimizer
        self._processes: dict[int, _Process] = {}
        self.notes: list[str] = []

    def poll(self, timeout_seconds: float = 0.0) -> bool:
        """Hear what has arrived, waiting up to `timeout_seconds`; whether there was anything."""
        events = self._listener.poll(timeout_seconds)
        self.feed(events)
        return bool(events)

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in their order of arrival."""
        for event in events:
            process = self._process(event.connection)
            match event:
                case Hello():
                    process.hello = event
                case Armed(torch=version):
                    process.torch = version
                case Known(optimizers=count):
                    process.known = count
                case Note(text=text):
                    self._note(text)
                case Captured():
                    process.captured = True
                case Failed(text=text):
                    process.failed = text
                    self._note(f"the probe failed: {text}")
                case Bye():
                    process.gone = True
                case Calls():
                    self._hear(process, event)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _process(self, connection: int) -> _Process:
        process = self._processes.get(connection)
        if process is None:
            process = _Process(
                finder=StepFinder(self._step_optimizer), clock=AdaptiveClock(self._rule)
            )
            self._processes[connection] = process
        return process

    def _hear(self, process: _Process, event: Calls) -> None:
        process.rank, process.world_size = event.rank, event.world_size
        process.captured = False
        for name in ("allocated_bytes", "reserved_bytes", "device_bytes"):
            value = getattr(event, name)
            if value is not None:
                process.memory[name] = max(process.memory.get(name, 0), value)
        for optimizer, seconds in event.calls:
            self._call(process, optimizer, seconds)
        self._give_orders(process, event.connection)

    def _call(self, process: _Process, optimizer: int, seconds: float | None) -> None:
        process.calls += 1
        if seconds is not None:
            process.heard_at(seconds)
        durations = process.finder.add(optimizer, seconds)
        if process.finder.generation != process.generation:
            process.generation = process.finder.generation
            process.clock = self._fresh_clock(process)
            process.steps = 0
        if process.finder.period is None and self._used_up(process) and not process.lost:
            durations = self._settle(process)
        for duration in durations:
            process.steps += 1
            process.clock.add(duration)
        if process.clock.reason == "precise" and self._doubtful(process):
            process.clock.reopen()

    def _settle(self, process: _Process) -> list[float]:
        """The budget is used and there is no period: accept a weaker one, or give up later."""
        if process.calls < max(process.next_settling, MIN_USABLE + 1):
            return []
        process.next_settling = process.calls + process.calls // 4
        durations = process.finder.settle()
        lost = process.spent_seconds > 2 * self._rule.max_seconds
        process.lost = process.finder.period is None and lost
        return durations

    def _fresh_clock(self, process: _Process) -> AdaptiveClock:
        clock = AdaptiveClock(self._rule)
        clock.elapsed_seconds = process.spent_seconds  # the trial's budget goes on
        return clock

    def _used_up(self, process: _Process) -> bool:
        return process.spent_seconds >= self._rule.max_seconds

    def _doubtful(self, process: _Process) -> bool:
        # An optimizer that wasn't called yet may belong to the period (`G` after 100 `D`).
        if self._step_optimizer is not None or process.calls >= PATIENCE_CALLS:
            return False
        return process.known > len(process.finder.counts) and not self._used_up(process)

    def _give_orders(self, process: _Process, connection: int) -> None:
        # With hundreds of optimizers, reading the time (and waiting for the GPU) at each of their
        # calls would slow the script: one time a step is enough once the period is known.
        period = process.finder.period
        boundary = period.boundary if period is not None else None
        several = len(process.finder.counts) > 1
        if boundary is not None and several and process.reading_all:
            self._listener.order(connection, f"only {boundary}")
            process.reading_all = False
        elif boundary is None and not process.reading_all:
            self._listener.order(connection, "all")
            process.reading_all = True

    @property
    def _stepping(self) -> list[_Process]:
        return [p for p in self._processes.values() if p.calls]

    @property
    def heard(self) -> bool:
        """Whether any interpreter said hello."""
        return any(p.hello for p in self._processes.values())

    @property
    def torch_version(self) -> str:
        """The version of torch that was imported; "" if none was."""
        return next((p.torch for p in self._processes.values() if p.torch), "")

    @property
    def steps(self) -> int:
        """Steps made by the process that has made the most."""
        return max((p.steps for p in self._stepping), default=0)

    @property
    def call_counts(self) -> dict[int, int]:
        """Calls of each optimizer in the process with the most calls."""
        most = max(self._stepping, key=lambda p: p.calls, default=None)
        return dict(sorted(most.finder.counts.items())) if most else {}

    @property
    def seconds(self) -> float:
        """The slowest rank's median so far; NaN before there is one."""
        return max((p.clock.seconds for p in self._stepping if p.usable), default=math.nan)

    @property
    def pids(self) -> list[int]:
        """Processes that have made a step and still run (a pid may be another's afterwards)."""
        return [p.hello.pid for p in self._stepping if p.hello is not None and not p.gone]

    @property
    def stepping_interpreter(self) -> str | None:
        """Path of the interpreter that makes the steps; None before the first or if unknown."""
        return next((p.hello.executable or None for p in self._stepping if p.hello), None)

    @property
    def done(self) -> bool:
        """Whether every rank's step time is known.

        A process that has gone before its time was known holds nothing up, but is no reason to
        stop: how the run ends will tell whether that was a failure.
        """
        stepping = self._stepping
        known = [p for p in stepping if p.usable and p.clock.state is State.DONE]
        if not known or not all(p.settled for p in stepping):
            return False
        expected = {p.hello.rank for p in self._processes.values() if p.hello and p.hello.rank}
        if len({p.rank for p in stepping}) >= len(expected):
            return True
        waited = (p.spent_seconds for p in stepping)
        return max(waited) > self._rule.max_seconds + RANK_WAIT_SECONDS

    @property
    def hopeless(self) -> bool:
        """Whether the calls repeat in no order, so that waiting longer is of no use."""
        stepping = self._stepping
        return any(p.lost for p in stepping) and all(p.lost or p.settled for p in stepping)

    @property
    def blind(self) -> str:
        """Why steps can't be seen any more; "" while they can."""
        for process in self._processes.values():
            if process.captured:
                return "the step is captured in a CUDA graph, and replays of a graph can't be seen"
            if process.failed:
                return f"the probe failed in the script ({process.failed})"
        return ""

    def finish(self, reason: str) -> None:
        """No more events will come (the script ended, a deadline): settle on what there is."""
        for process in self._stepping:
            for duration in process.finder.settle():
                process.steps += 1
                process.clock.add(duration)
            process.clock.finish(reason)

    def observed(self) -> Observed | None:
        """The slowest rank's samples; None if no rank has made enough steps."""
        usable = [p for p in self._stepping if p.usable]
        if not usable:
            return None
        slowest = max(usable, key=lambda p: p.clock.seconds)
        period = slowest.finder.period
        return Observed(
            samples=slowest.clock.samples,
            rank=slowest.rank,
            ranks=max(max(p.world_size for p in usable), len({p.rank for p in usable})),
            warm_up=slowest.clock.warm_up,
            steps=slowest.steps,
            calls_per_step=len(period.pattern) if period else 1,
            reason=slowest.clock.reason or "running",
            relative_precision=slowest.clock.relative_half_width,
            allocated_bytes=self._most("allocated_bytes"),
            reserved_bytes=self._most("reserved_bytes"),
            device_bytes=self._most("device_bytes"),
            python=slowest.hello.python if slowest.hello else "",
            executable=Path(slowest.hello.executable).name if slowest.hello else "",
            torch=slowest.torch,
            cuda_used=any(p.memory for p in self._stepping),
        )

    def _most(self, name: str) -> int | None:
        return max((p.memory[name] for p in self._stepping if name in p.memory), default=None)
