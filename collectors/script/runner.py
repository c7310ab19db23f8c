"""One trial: the user's script runs in isolation until its step time is known, then is ended."""

from __future__ import annotations

import math
import os
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from collectors.clock import MIN_USABLE, StoppingRule
from collectors.isolate import Ended, IsolatedProcess, classify_failure
from collectors.machine import machine_conditions
from collectors.processes import peak_resident_bytes
from collectors.script import runtime_parameters
from collectors.script.command import ScriptCommand, script_workload
from collectors.script.events import Listener, probe_environment
from collectors.script.session import Observed, StepStream
from collectors.script.trial_environment import trial_environment
from perfmodel.errors import MeasurementError
from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Memory,
    Software,
    Value,
    Workload,
)

__all__ = ["Limits", "Progress", "ScriptCommand", "Trial", "run_trial", "script_workload"]

POLL_SECONDS = 0.05
MEMORY_EVERY_SECONDS = 0.5

HELLO_SECONDS = 30.0
"""A Python that hasn't answered by then never will; a launcher may start its Python much later."""

BLIND_SECONDS = 15.0
"""How long the script may go on without a step that can be seen, once there is a reason for it."""


@dataclass(frozen=True)
class Limits:
    """What a trial may use."""

    deadline_seconds: float = 300.0
    """From its start to the end of its measurement."""
    hello_seconds: float | None = None
    """From its start until the probe must have answered; None: HELLO_SECONDS for a command that is
    a Python itself, else the deadline."""
    memory_limit_bytes: int | None = None
    """Host memory of all of its processes together."""
    grace_seconds: float = 1.0
    """Between SIGTERM and SIGKILL when it is ended."""

    def hello_within(self, command: ScriptCommand) -> float:
        """The seconds until the probe in `command` must have answered."""
        if self.hello_seconds is not None:
            return self.hello_seconds
        longest = HELLO_SECONDS if command.is_python else math.inf
        return min(longest, self.deadline_seconds)


@dataclass(frozen=True)
class Progress:
    """Where a trial is: starting, importing, warming up or measuring."""

    phase: str
    steps: int
    seconds: float
    elapsed_seconds: float


@dataclass(frozen=True)
class Trial:
    """What is to be measured, under which rule and limits."""

    command: ScriptCommand
    configuration: Configuration
    device: Device
    software: Software
    workload: Workload
    name: str
    folder: Path
    rule: StoppingRule = field(default_factory=StoppingRule)
    limits: Limits = field(default_factory=Limits)
    step_optimizer: int | None = None
    directory: Path | None = None
    """Where the script runs; our own working directory if None."""


def run_trial(
    trial: Trial,
    *,
    environment: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Measurement:
    """Run `trial` and return its measurement; a failure of the script is one, not an exception.

    MeasurementError if it could not be attempted at all (no such program, no socket). Whatever
    happens, no process of it is left.
    """
    before = machine_conditions(trial.device)
    argv = trial.command.fill(trial.configuration, trial.folder)
    variables, settings = runtime_parameters.split(
        trial.configuration, placeholders=trial.command.placeholders
    )
    try:
        trial.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeasurementError(
            f"the trial's folder {trial.folder} can't be made: {error.strerror}"
        ) from error
    base = {**(os.environ if environment is None else environment), **variables}
    with Listener() as listener:
        full = probe_environment(
            trial_environment(base, name=trial.name, folder=trial.folder), listener.path, settings
        )
        stream = StepStream(listener, trial.rule, step_optimizer=trial.step_optimizer)
        with IsolatedProcess.start(
            argv,
            environment=full,
            directory=trial.directory,
            memory_limit_bytes=trial.limits.memory_limit_bytes,
        ) as process:
            run = _Run(trial, argv, process, listener, stream, on_progress)
            return run.measure(before)


class _Run:
    """A trial's process while it is watched."""

    def __init__(
        self,
        trial: Trial,
        argv: tuple[str, ...],
        process: IsolatedProcess,
        listener: Listener,
        stream: StepStream,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._trial = trial
        self._argv = argv
        self._process = process
        self._listener = listener
        self._stream = stream
        self._on_progress = on_progress
        self._started = time.monotonic()
        self._resident = 0
        self._memory_read_at = 0.0
        self._blind_since = math.inf

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def measure(self, before: Facts) -> Measurement:
        """Watch until the time is known, the script has ended or a deadline has passed."""
        stopped = self._watch()
        self._read_memory()
        under_load = machine_conditions(self._trial.device)
        ended = self._process.end(grace_seconds=self._trial.limits.grace_seconds)
        self._stream.poll()
        self._stream.finish("deadline" if stopped == "late" else "ended")
        observed = self._stream.observed()
        failure = self._failure(stopped, ended, observed)
        # What our own trial does to the load and to the GPU isn't a condition of it.
        own = {k: v for k, v in before.items() if k in ("load1", "gpu_other_processes")}
        conditions = {**under_load, **own, **self._facts(observed)}
        return Measurement(
            device=self._trial.device,
            software=self._trial.software,
            workload=self._trial.workload,
            configuration=self._trial.configuration,
            measured_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            samples=observed.samples if observed is not None and failure is None else (),
            memory=self._memory(observed, ended),
            failure=failure,
            ranks=observed.ranks if observed is not None else 1,
            conditions=Facts(conditions),
        )

    def _watch(self) -> str:
        """Why watching stopped: done, ended, silent (no hello), late or hopeless (no order)."""
        deadline = self._trial.limits.deadline_seconds
        hello = self._trial.limits.hello_within(self._trial.command)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process, selectors.EVENT_READ)
            while True:
                # The probes' messages wait: waking up for each would take time from the script.
                selector.select(POLL_SECONDS)
                self._stream.poll()
                if self._stream.done:
                    return "done"
                if self._process.poll() is not None:
                    return "ended"
                if self._stream.hopeless or self._blind_too_long():
                    return "hopeless"
                if not self._stream.heard and self._elapsed > hello:
                    return "silent"
                if self._elapsed > deadline:
                    return "late"
                self._tell()

    def _blind_too_long(self) -> bool:
        if not self._stream.blind:
            self._blind_since = math.inf
        elif self._blind_since == math.inf:
            self._blind_since = self._elapsed
        return self._elapsed - self._blind_since > BLIND_SECONDS

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._memory_read_at < MEMORY_EVERY_SECONDS:
            return
        self._memory_read_at = now
        self._read_memory()
        if self._on_progress is not None:
            stream = self._stream
            phase = "starting"
            if stream.steps:
                phase = "measuring"
            elif stream.torch_version:
                phase = "warming up"
            elif stream.heard:
                phase = "importing"
            self._on_progress(Progress(phase, stream.steps, stream.seconds, self._elapsed))

    def _read_memory(self) -> None:
        peaks = peak_resident_bytes(self._stream.pids)
        self._resident = max(self._resident, *peaks.values(), 0)

    def _memory(self, observed: Observed | None, ended: Ended) -> Memory:
        resident = self._resident or ended.largest_resident_bytes
        memory = Memory(resident_bytes=resident)
        if observed is None:
            return memory
        return replace(
            memory,
            allocated_bytes=observed.allocated_bytes,
            reserved_bytes=observed.reserved_bytes,
            device_bytes=observed.device_bytes,
        )

    def _facts(self, observed: Observed | None) -> dict[str, Value]:
        facts: dict[str, Value] = {"elapsed_seconds": self._elapsed, "steps": self._stream.steps}
        if self._stream.notes:
            facts["notes"] = "; ".join(self._stream.notes)
        if observed is not None:
            facts["warm_up_steps"] = observed.warm_up
            facts["stop_reason"] = observed.reason
            facts["calls_per_step"] = observed.calls_per_step
            facts["slowest_rank"] = observed.rank
            facts["python"] = observed.python
            facts["executable"] = observed.executable
            facts["torch"] = observed.torch
            facts["cuda_used"] = observed.cuda_used
            if math.isfinite(observed.relative_precision):
                facts["relative_precision"] = observed.relative_precision
            else:
                facts["precision_unknown"] = True
        return facts

    def _failure(self, stopped: str, ended: Ended, observed: Observed | None) -> Failure | None:
        said = ended.last_words
        if stopped == "silent":
            return Failure(FailureReason.NOT_PROBED, self._why_silent(), output=said)
        if stopped == "ended" and not ended.succeeded:
            return classify_failure(ended)
        hopeless = stopped == "hopeless" and not self._stream.blind
        if observed is not None and not hopeless:
            return None
        if stopped in ("hopeless", "done"):
            return Failure(FailureReason.NO_STEPS, self._steps_made(), output=said)
        if stopped == "late":
            return self._late(ended)
        if not self._stream.heard:
            return Failure(FailureReason.NOT_PROBED, self._why_silent(), 0, said)
        return Failure(FailureReason.NO_STEPS, self._why_no_steps(), 0, said)

    def _late(self, ended: Ended) -> Failure:
        seconds = self._trial.limits.deadline_seconds
        failure = classify_failure(ended, deadline_seconds=seconds)
        if failure.reason is not FailureReason.TIMEOUT:  # a rank out of memory, the others waiting
            return failure
        reason = FailureReason.NO_STEPS if self._stream.blind else FailureReason.TIMEOUT
        detail = f"no step time within {seconds:g} s: {self._steps_made()}"
        return replace(failure, reason=reason, detail=detail, exit_code=None)

    def _why_silent(self) -> str:
        command = " ".join(self._argv)[:200]
        flags = self._trial.command.ignoring_flags
        if flags:
            return (
                f"the probe can't get into `{command}`: {' '.join(flags)} makes the interpreter "
                "ignore PYTHONPATH; leave it out"
            )
        return (
            f"the probe didn't answer from `{command}` within {self._elapsed:.0f} s: it isn't "
            "Python, its interpreter ignores PYTHONPATH (-I, -E, -S), another sitecustomize "
            "stands before ours, or it runs elsewhere (a container, a remote launcher)"
        )

    def _why_no_steps(self) -> str:
        return (
            f"the script ended with exit code 0 and there is nothing to time: {self._steps_made()}"
        )

    def _steps_made(self) -> str:
        stream = self._stream
        if stream.blind:
            return stream.blind
        if not stream.torch_version:
            return "it never imported torch"
        counts = stream.call_counts
        if not counts:
            return "it imported torch and never called an optimizer's step"
        calls = ", ".join(f"{n} of optimizer {o}" for o, n in list(counts.items())[:8])
        if stream.steps == 0 and sum(counts.values()) > MIN_USABLE and len(counts) > 1:
            return (
                f"its optimizer calls ({calls}) repeat in no regular order; name the one that ends "
                "a step with --step-optimizer N"
            )
        return f"it made too few steps (calls: {calls}); {MIN_USABLE + 1} or more are needed"
