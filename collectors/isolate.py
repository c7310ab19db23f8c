"""Run one command in isolation: nothing it starts outlives it, its trial, or this process.

    tune ──control socket──▶ warden (own session, child subreaper) ──▶ command (own session)

The warden (warden.py) is a small process of ours between the two. It starts the command, drains its
output, watches its memory limit, and kills every descendant when the command ends, when `end` is
called, and when this process goes away, however that happens: the control socket's end of file is
the one signal that nobody has to send. Orphans (double forks, setsid) are re-parented to the warden
by Linux, so they are found too. No signal handler is registered here, and nothing but `exec` runs
between fork and exec in this process, which may have threads.

From a selector loop: register the object (it has `fileno`) for reading and call `poll` when it is
readable; it returns None until the command has ended. Nothing has to be read to keep the command
going: the warden drains the output. A deadline is the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from collectors import processes
from collectors.ended import Ended, classify_failure, last_lines
from perfmodel.errors import MeasurementError

__all__ = ["Ended", "IsolatedProcess", "classify_failure", "last_lines"]

_START_SECONDS = 30.0  # a loaded machine may take a while to start a Python
_KILL_SECONDS = 20.0  # the warden gives up after half of it
_SEND_SECONDS = 2.0
_READ_BYTES = 1 << 20
# Our root goes last: nothing beside our packages can shadow the standard library.
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv.pop(1)); from collectors.warden import main; main()"
)


class IsolatedProcess:
    """A running command. Use as a context manager: leaving the block ends it."""

    def __init__(
        self,
        warden: subprocess.Popen[bytes],
        control: socket.socket,
        memory_limit_bytes: int | None,
    ) -> None:
        """Only `start` calls this."""
        self.pid = 0
        """The command's own process (also its session and process group)."""
        self._warden = warden
        self._control = control
        self._memory_limit_bytes = memory_limit_bytes
        self._received = b""
        self._failed: dict[str, Any] | None = None
        self._ended: Ended | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path | None = None,
        memory_limit_bytes: int | None = None,
    ) -> IsolatedProcess:
        """Start `command`; returns once it runs (about 50 ms).

        `environment` is its complete environment; the command is looked up in its PATH. stdin is
        /dev/null. MeasurementError names what can't be started and why.
        """
        if not command or not command[0]:
            raise MeasurementError("the command is empty; allowed: a program and its arguments")
        directory = directory or _working_directory()
        request = {
            "command": [_text(part) for part in command],
            "environment": {_text(name): _text(value) for name, value in environment.items()},
            "directory": _text(str(directory)),
            "memory_limit_bytes": memory_limit_bytes,
        }
        process = cls(*_start_warden(), memory_limit_bytes)
        try:
            process._send(request, seconds=_START_SECONDS)
            process._receive_until(lambda: bool(process.pid or process._failed), _START_SECONDS)
        except BaseException:
            process._control.close()  # its end of file ends the warden and what it started
            process._reap_warden()
            raise
        if not process.pid:
            process.close()
            raise MeasurementError(
                _why_not_started(process._failed, command, environment, directory)
            )
        return process

    def fileno(self) -> int:
        """For a selector: readable when the command has ended."""
        return self._control.fileno()

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs; never blocks. By then nothing of it is left."""
        if self._ended is None:
            self._receive()
        return self._ended

    def wait(self, timeout_seconds: float | None = None) -> Ended | None:
        """Block until it has ended or the time is up; None if it still runs."""
        self._receive_until(lambda: self._ended is not None, timeout_seconds)
        return self._ended

    def end(self, *, grace_seconds: float = 1.0) -> Ended:
        """End it and every descendant: SIGTERM, and SIGKILL to what is left after the grace.

        Idempotent; after an end of its own accord it returns that one (`ordered` is False).
        """
        if self.poll() is None:
            self._send({"grace_seconds": grace_seconds}, seconds=_SEND_SECONDS)
            self.wait(grace_seconds + _KILL_SECONDS)
        if self._ended is None:
            self._give_up("the process that watches over the trial doesn't answer")
        assert self._ended is not None
        return self._ended

    def close(self) -> None:
        """End it if it runs, and give back the file descriptor."""
        try:
            if self.pid:
                self.end()
        finally:
            self._control.close()
            self._reap_warden()

    def _reap_warden(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._warden.wait(_SEND_SECONDS)

    def __enter__(self) -> IsolatedProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, message: dict[str, Any], *, seconds: float) -> None:
        """Say something to the warden; if it is gone, the next read finds out."""
        self._control.settimeout(seconds)
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _receive_until(self, done: Callable[[], bool], timeout_seconds: float | None) -> None:
        if done():
            return
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not done() and self._ended is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            if waiting.poll(None if left is None else left * 1000):
                self._receive()

    def _receive(self) -> None:
        """Take what the warden has said, without waiting."""
        self._control.settimeout(0)
        gone = False
        while not gone:
            try:
                data = self._control.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            gone = not data
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._note(json.loads(line))
        if gone and self._ended is None:
            self._give_up("the process that watches over the trial was killed")

    def _note(self, message: dict[str, Any]) -> None:
        event = message.pop("event")
        if event == "started":
            self.pid = message["pid"]
        elif event == "failed":
            self._failed = message
        elif event == "ended":
            message["survivors"] = tuple(message["survivors"])
            self._ended = Ended(**message, memory_limit_bytes=self._memory_limit_bytes)

    def _give_up(self, why: str) -> None:
        """Without the warden, kill what can be found: its descendants and the command's session."""
        doomed = set(processes.descendants(self._warden.pid))
        if self.pid:
            table = processes.process_table()
            doomed |= {pid for pid, process in table.items() if process.session == self.pid}
        for pid in (*doomed, self._warden.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._ended = Ended(lost=why)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise MeasurementError(
            f"the working directory is gone ({error.strerror}); change to one that exists"
        ) from error


def _start_warden() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    root = Path(__file__).resolve().parent.parent
    arguments = [str(root), str(theirs.fileno()), str(os.getpid())]
    try:
        warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    except OSError as error:
        ours.close()
        raise MeasurementError(
            f"can't start a process with {sys.executable!r}: {error.strerror}"
        ) from error
    finally:
        theirs.close()
    return warden, ours


def _why_not_started(
    failed: dict[str, Any] | None,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
) -> str:
    program = command[0]
    if failed is None:
        return f"the process that watches over {program!r} didn't start ({sys.executable})"
    number, file = failed["errno"], failed["file"]
    where = directory / program
    if file == str(directory):
        return f"can't run in the directory {file!r}: {os.strerror(number)}"
    if number == errno.ENOENT and "/" not in program:
        path = environment.get("PATH", os.defpath)
        return f"command {program!r} not found in PATH={path}"
    if number == errno.ENOENT and where.exists():
        return f"command {program!r}: the interpreter that its first line names doesn't exist"
    if number == errno.ENOENT:
        return f"command {program!r} not found"
    if number == errno.EACCES and where.is_dir():
        return f"command {program!r} is a directory; allowed: a program"
    if number == errno.EACCES:
        return f"command {program!r} isn't executable (chmod +x, or name its interpreter)"
    if number == errno.ENOEXEC:
        return f"command {program!r} is no program and has no #! line; name its interpreter"
    if number == errno.E2BIG:
        return f"command {program!r}: its arguments or environment are too long for the system"
    reason = os.strerror(number) if number else file
    return f"can't start {shlex.join(command)[:200]}: {reason}"


def _text(text: str) -> str:
    """The file system's bytes as one character each: both ends may use different encodings."""
    return os.fsencode(text).decode("latin-1")
