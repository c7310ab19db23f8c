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
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from collectors.clock import StoppingRule
from collectors.isolate import peak_resident_bytes
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
    step_optimizer: int | None = None,
    output: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Launch:
    """Run `command` to its end and return the record; its exit code is `Launch.exit_code`.

    `output` is a file descriptor for its standard output (None: ours). SIGINT and SIGTERM that
    reach us are forwarded; a Ctrl-C on the terminal goes to the run alone. MeasurementError if it
    can't be started.
    """
    variables, settings = runtime_parameters.split(
        chosen.configuration, placeholders=command.placeholders
    )
    folder = Path(tempfile.mkdtemp(prefix="perfmodel-launch-")) if command.uses_trial_dir else None
    argv = command.fill(chosen.configuration, folder)
    base = {**(os.environ if environment is None else environment), **variables}
    started_at = datetime.now(UTC).isoformat(timespec="microseconds")
    start = time.monotonic()
    with Listener() as listener:
        full = probe_environment(base, listener.path, settings)
        stream = StepStream(listener, LAUNCH_RULE, step_optimizer=step_optimizer)
        process = _start(argv, full, output)
        with _foreground(process), _forwarding(process):
            resident = _watch(process, listener, stream)
    seconds = time.monotonic() - start
    return Launch(
        study=chosen.study,
        configuration=chosen.configuration,
        command=argv,
        started_at=started_at,
        seconds=seconds,
        exit_code=_exit_code(process.returncode),
        predicted=chosen.predicted,
        achieved=_achieved(chosen, stream, resident, seconds),
    )


def _start(
    argv: tuple[str, ...], environment: Mapping[str, str], output: int | None
) -> subprocess.Popen[bytes]:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return subprocess.Popen(argv, env=dict(environment), stdout=output, process_group=0)
    except OSError as error:
        raise MeasurementError(f"command {argv[0]!r} can't be started: {error.strerror}") from error


def _watch(process: subprocess.Popen[bytes], listener: Listener, stream: StepStream) -> int | None:
    """Hear the steps until the run ends; its largest rank's peak resident set, in bytes."""
    resident = 0
    while process.poll() is None:
        # Waiting for the process, not for its messages, wakes us less often.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        if not listener.closed:
            stream.poll()
            resident = max(resident, *peak_resident_bytes(stream.pids).values(), 0)
            if stream.done or stream.hopeless:
                listener.close()
    if not listener.closed:
        stream.poll()
    stream.finish("ended")
    return resident or None


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
        ),
    )


def _exit_code(returncode: int) -> int:
    """As a shell reports it: 128 + signal for a run that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode


@contextmanager
def _foreground(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Give the terminal to the run's process group, as a shell does, and take it back."""
    try:
        terminal = sys.stdin.fileno()
        ours = os.tcgetpgrp(terminal) == os.getpgrp()
    except (OSError, ValueError):  # no terminal, or standard input is closed or replaced
        ours = False
    if not ours:
        yield
        return
    # Taking the terminal back from the background would stop us.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, process.pid)
            # It may have asked for the terminal before it was given it.
            os.killpg(process.pid, signal.SIGCONT)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward SIGINT, SIGTERM and SIGHUP to the run's process group."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
