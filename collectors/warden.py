"""The process between us and a trial: starts the command, drains it, and ends all of it with us.

Run under `python -I -S` with the standard library, processes.py and cgroups.py only; its arguments
are the descriptor of a socket to the parent and the parent's process id. Lines of JSON go both
ways. In comes a request, then possibly {"grace_seconds": s}: end it. Out goes "started" or
"failed", and "ended" once nothing of the command is left.

This process is the child subreaper, so whatever the command leaves behind, also through setsid and
double forks, becomes a child here: when wait() says there are no children, nothing is left. It has
one thread, so running Python between fork and exec is safe here, unlike in the parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from collectors.cgroups import oom_kills
from collectors.processes import MemoryWatch, descendants, read_text

TAIL_BYTES = 64 * 1024
KILL_SECONDS = 10.0  # how long a SIGKILL may take: freeing 100 GB, a driver's cleanup
_STRAY_GRACE_SECONDS = 0.5  # what a command left behind when it ended, or when we died
_READ_BYTES = 1 << 20
_TRIAL_OOM_SCORE = 500  # let the kernel choose the trial before this process and its parent
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Output:
    """The command's merged output: always drained, its end kept, all of it counted."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(OSError):
            # Room for what is printed while this process looks at memory.
            fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, _READ_BYTES)
        self.total = 0
        self._tail = bytearray()

    def drain(self) -> bool:
        """Take what is there; False when nothing can come any more."""
        for _ in range(16):  # then see to the other events
            try:
                data = os.read(self.read_end, _READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.total += len(data)
            self._tail += data[-TAIL_BYTES:]
            del self._tail[:-TAIL_BYTES]
        return True

    def tail(self) -> str:
        """The last 64 KiB as text, a character cut at the front left out."""
        start = 0
        while self.total > len(self._tail) and start < 4 and self._tail[start] & 0xC0 == 0x80:
            start += 1
        return self._tail[start:].decode("utf-8", "replace")


class Warden:
    """Runs one command from its start to the end of its last descendant."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._received = b""
        self._orphaned = self._told_to_end = False
        self._selector = selectors.DefaultSelector()
        self._output = Output()
        self._command = 0
        self._status: int | None = None
        self._largest_resident = 0
        self._kills_before = oom_kills()

    def run(self) -> None:
        """The whole life."""
        request = self._request()
        if request is None:
            return
        self._register()
        if not self._start(request):
            return
        limit = request["memory_limit_bytes"]
        watch = MemoryWatch(os.getpid(), limit) if limit else None
        grace, over = _STRAY_GRACE_SECONDS, None
        while self._status is None:
            self._wait(watch.seconds_left if watch else 1.0)
            self._reap()
            order = self._take_orders()
            if self._status is not None or self._orphaned or self._told_to_end:
                break
            if order is not None:
                grace = order
                break
            if watch and (over := watch.over()) is not None:
                grace = 0.0
                break
        ordered = self._status is None and over is None
        self._finish(grace)
        self._report(ordered=ordered, over_limit_bytes=over)

    def _request(self) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            data = self._control.recv(_READ_BYTES)
            if not data:
                return None
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line)
        return request

    def _start(self, request: dict[str, Any]) -> bool:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # adopt the orphans among our descendants
        environment = {_bytes(k): _bytes(v) for k, v in request["environment"].items()}
        directory = request["directory"]
        try:
            # The object is let go at once: its own waiting would compete with ours.
            child = subprocess.Popen(
                [_bytes(part) for part in request["command"]],
                stdin=subprocess.DEVNULL,
                stdout=self._output.write_end,
                stderr=self._output.write_end,
                env=environment,
                cwd=None if directory is None else _bytes(directory),
                start_new_session=True,
                preexec_fn=_prepare_child(os.getpid()),
            )
        except OSError as error:
            where = error.filename or b""
            text = where if isinstance(where, str) else os.fsdecode(where)
            self._send({"event": "failed", "errno": error.errno, "file": text})
            return False
        except (ValueError, subprocess.SubprocessError) as error:
            self._send({"event": "failed", "errno": None, "file": str(error)})
            return False
        child.returncode = 0
        self._command = child.pid
        os.close(self._output.write_end)
        self._send({"event": "started", "pid": child.pid})
        return True

    def _register(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started us may block some
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._wake = (wake_read, wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._told)
        self._selector.register(wake_read, selectors.EVENT_READ, "wake")
        self._selector.register(self._control, selectors.EVENT_READ, "control")
        self._selector.register(self._output.read_end, selectors.EVENT_READ, "output")
        # A fork of the parent that never called exec holds the socket open after its death.
        with contextlib.suppress(OSError):
            self._selector.register(os.pidfd_open(self._parent), selectors.EVENT_READ, "parent")

    def _told(self, *_: object) -> None:
        self._told_to_end = True

    def _wait(self, timeout: float) -> None:
        """Sleep until something happens; output is drained, the rest noted."""
        for key, _ in self._selector.select(timeout):
            if key.data == "wake":
                with contextlib.suppress(BlockingIOError):
                    self._wake[0].recv(4096)
            elif key.data == "output" and not self._output.drain():
                self._selector.unregister(key.fileobj)
            elif key.data == "parent":
                self._orphaned = True
        if os.getppid() != self._parent:
            self._orphaned = True

    def _reap(self) -> bool:
        """Collect the dead; True when there is no child left, dead or alive."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._largest_resident = max(self._largest_resident, usage.ru_maxrss * 1024)
            if pid == self._command:
                self._status = status

    def _take_orders(self) -> float | None:
        """The seconds of grace if the parent said to end."""
        waiting = select.poll()  # select() takes no descriptor above 1023
        waiting.register(self._control, select.POLLIN)
        while waiting.poll(0):
            try:
                data = self._control.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                self._orphaned = True
                return None
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        return float(json.loads(lines[0])["grace_seconds"]) if lines else None

    def _finish(self, grace: float) -> None:
        """Leave nothing of the command running."""
        for key in list(self._selector.get_map().values()):
            if key.data in ("control", "parent"):
                self._selector.unregister(key.fileobj)
        if grace > 0 and not self._reap():
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)
            self._wait_until_gone(grace)
        deadline = time.monotonic() + KILL_SECONDS
        while not self._reap() and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)
            self._wait_until_gone(0.05)
        self._output.drain()

    def _wait_until_gone(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._reap() and (left := deadline - time.monotonic()) > 0:
            self._wait(min(left, 0.02))

    def _signal_all(self, number: int) -> None:
        """Signal every descendant; SIGKILL goes to whole groups, which a fork can't outrun."""
        tree = descendants(os.getpid())
        if number == signal.SIGKILL:
            # Groups of processes seen now: the command's own may be another's once it was reaped.
            for group in {process.group for process in tree.values()}:
                if group != os.getpgrp():
                    with contextlib.suppress(OSError):
                        os.killpg(group, number)
        for pid in tree:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _report(self, *, ordered: bool, over_limit_bytes: int | None) -> None:
        kills = [
            None if before is None or after is None else after - before
            for before, after in zip(self._kills_before, oom_kills(), strict=True)
        ]
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        self._send(
            {
                "event": "ended",
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "ordered": ordered,
                "output": self._output.tail(),
                "output_bytes": self._output.total,
                "largest_resident_bytes": self._largest_resident or None,
                "over_limit_bytes": over_limit_bytes,
                "group_oom_kills": kills[0],
                "machine_oom_kills": kills[1],
                "survivors": sorted(descendants(os.getpid())),
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a parent that is gone needs no answer
            self._control.sendall(json.dumps(message).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _prepare_child(warden: int) -> Callable[[], None]:
    """What the command's process does to itself between fork and exec."""

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # if someone kills the warden
        if os.getppid() != warden:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored here; handlers end with exec
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a crash isn't worth 20 GB
        with contextlib.suppress(OSError, ValueError):
            score = int(read_text("/proc/self/oom_score_adj") or 1000)
            if score < _TRIAL_OOM_SCORE:
                with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                    file.write(str(_TRIAL_OOM_SCORE))

    return prepare


def _bytes(text: str) -> bytes:
    """The bytes that the parent sent as one character each."""
    return text.encode("latin-1")


def main() -> None:
    """Entry point: `main` is all that the process runs."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    Warden(control, int(sys.argv[2])).run()
