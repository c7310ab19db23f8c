"""The launch: the whole run with the chosen configuration, and what it really reached.

The child keeps our terminal, standard input and outputs. It gets the probe and the runtime
parameters, and nothing else of a trial's environment. Once its median step time is known the
connection is closed and the probe falls silent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from collectors.clock import StoppingRule
from collectors.processes import peak_resident_bytes
from collectors.script import runtime_parameters
from collectors.script.command import ScriptCommand
from collectors.script.events import Listener, probe_environment
from collectors.script.session import StepStream
from perfmodel.errors import MeasurementError
from perfmodel.history import Launch, Study
from perfmodel.records import Configuration, Facts, Measurement, Memory, Prediction

LAUNCH_RULE = StoppingRule(relative_precision=0.005, min_samples=50, max_seconds=120.0)
"""How long a launched run is watched: it costs nothing to know it better than a trial."""

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Chosen:
    """What to launch: the study's answer and what the model says it will reach."""

    study: Study
    configuration: Configuration
    predicted: Prediction | None = None


def launch_run(
    command: ScriptCommand,
    chosen: Chosen,
    *,
    folder: Path | None = None,
    record: Callable[[Launch], object] = lambda launch: None,
    step_optimizer: int | None = None,
    output: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Launch:
    """Run `command` to its end and return the record; its exit code is `Launch.exit_code`.

    `record` is given the launch as it starts and again when its step time is known, so that one
    whose end nobody sees is known too; the end is the caller's to record.
    `folder` is what `{trial_dir}` stands for, made when the command uses it. `output` is a
    file descriptor for its standard output (None: ours). SIGINT and SIGTERM that
    reach us are forwarded; a Ctrl-C on the terminal goes to the run alone. MeasurementError if it
    can't be started.
    """
    variables, settings = runtime_parameters.split(
        chosen.configuration, placeholders=command.placeholders
    )
    if command.uses_trial_dir and folder is not None:
        _make(folder)
    argv = command.fill(chosen.configuration, folder)
    base = {**(os.environ if environment is None else environment), **variables}
    started_at = datetime.now(UTC).isoformat(timespec="microseconds")
    start = time.monotonic()
    with Listener() as listener:
        full = probe_environment(base, listener.path, settings)
        stream = StepStream(listener, LAUNCH_RULE, step_optimizer=step_optimizer)
        launch = Launch(
            chosen.study, chosen.configuration, argv, started_at, predicted=chosen.predicted
        )

        def known(resident: int | None) -> Launch:
            return replace(
                launch, achieved=_achieved(chosen, stream, resident, time.monotonic() - start)
            )

        with _Run(argv, full, output) as run:
            record(launch)
            launch = _watch(run, listener, stream, known=known, record=record)
    return replace(launch, seconds=time.monotonic() - start, exit_code=run.exit_code)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeasurementError(
            f"the launch's folder {folder} can't be made: {error.strerror}; start from a folder "
            "that may be written"
        ) from error


class _Run:
    """The run as a job of ours, handled as a shell handles one.

    It has its own process group, gets the terminal while it runs, hears the signals that reach us,
    and when Ctrl-Z stops it we stop too and go on with it.
    """

    def __init__(
        self, argv: tuple[str, ...], environment: Mapping[str, str], output: int | None
    ) -> None:
        self._argv = argv
        self._environment = dict(environment)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._handlers: dict[int, Any] = {}
        self._terminal = _own_terminal()
        self.exit_code = -1

    def __enter__(self) -> _Run:
        sys.stdout.flush()
        sys.stderr.flush()
        # Before the start, so that no signal finds us without the run.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._forward)
        try:
            self._process = subprocess.Popen(
                self._argv, env=self._environment, stdout=self._output, process_group=0
            )
        except OSError as error:
            self._restore()
            raise MeasurementError(
                f"command {self._argv[0]!r} can't be started: {error.strerror}"
            ) from error
        if self._terminal is not None:
            # Taking the terminal back from the background would stop us.
            self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            self._give_terminal()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None and process.poll() is None:  # an error of ours: end it
            self._forward(signal.SIGTERM, None)
            process.wait()
        self._take_terminal()
        self._restore()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; whether it has ended (`exit_code` then says how)."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            # As a shell reports it: 128 + signal for a run that a signal ended.
            self.exit_code = 128 - code if code < 0 else code
            return True
        if self._terminal is not None and self._stopped():
            self._stop_with_it()
        return False

    def _stopped(self) -> bool:
        assert self._process is not None
        flags = os.WSTOPPED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        return False

    def _stop_with_it(self) -> None:
        self._take_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._give_terminal()

    def _give_terminal(self) -> None:
        assert self._process is not None
        if self._terminal is None:
            return
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._terminal, self._process.pid)
            # It may have been stopped, or have asked for the terminal before it was given it.
            os.killpg(self._process.pid, signal.SIGCONT)

    def _take_terminal(self) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._terminal, os.getpgrp())

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _own_terminal() -> int | None:
    """Standard input if it is a terminal and we are in its foreground, else None."""
    try:
        terminal = sys.stdin.fileno()
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):  # closed, replaced, or no terminal
        return None


def _watch(
    run: _Run,
    listener: Listener,
    stream: StepStream,
    *,
    known: Callable[[int | None], Launch],
    record: Callable[[Launch], object],
) -> Launch:
    """Hear the steps until their time is known or the run ends, and wait for its end."""
    resident = 0
    # Waiting for the process, not for its messages, wakes us less often.
    while not run.wait(POLL_SECONDS):
        stream.poll()
        resident = max(resident, *peak_resident_bytes(stream.pids).values(), 0)
        if stream.done or stream.hopeless or stream.blind:
            listener.close()
            launch = known(resident or None)
            record(launch)
            while not run.wait(POLL_SECONDS):
                pass
            return launch
    stream.poll()
    stream.finish("ended")
    return known(resident or None)


def _achieved(
    chosen: Chosen, stream: StepStream, resident: int | None, seconds: float
) -> Measurement | None:
    observed = stream.observed()
    if observed is None:
        return None
    return Measurement(
        device=chosen.study.device,
        software=chosen.study.software,
        workload=chosen.study.workload,
        configuration=chosen.configuration,
        measured_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        samples=observed.samples,
        memory=Memory(
            allocated_bytes=observed.allocated_bytes,
            reserved_bytes=observed.reserved_bytes,
            device_bytes=observed.device_bytes,
            resident_bytes=resident,
        ),
        ranks=observed.ranks,
        conditions=Facts(
            purpose="launch",
            study=chosen.study.address,
            elapsed_seconds=seconds,
            warm_up_steps=observed.warm_up,
            stop_reason=observed.reason,
            python=observed.python,
            torch=observed.torch,
            cuda_used=observed.cuda_used,
        ),
    )
