"""The probe: streams every optimizer call of the process it is in to the parent, decides nothing.

It runs inside the user's training process, under the user's own interpreter, and imports only the
standard library and torch. It must never break or noticeably slow the script: a failure of its own
makes it fall silent, and a send never blocks. Calls of fast steps are sent together, some twenty
times a second; each has its own time.

Versions it was run with: Python 3.8 with torch 1.13.1, 3.9 with 2.0.1, 3.12 with 2.4.1 and 3.11
with 2.13.0, the last by the test suite; torch.compile with all that have it. Without torch: 3.7,
3.10 and 3.13. Python 2.7 and 3.6 can't parse it and are left alone. That its syntax is Python 3.8's
is tested; PERFMODEL_TEST_PYTHONS and PERFMODEL_TEST_TORCHES name interpreters to run tests with.

What is sent: one SOCK_SEQPACKET message each, a letter and tab-separated fields.
    H hello     pid, python version, executable, RANK, LOCAL_RANK, WORLD_SIZE, the command line
    A armed     torch version, how the calls are seen (hook | patch)
    O known     number of optimizers the process holds at its first call
    C calls     rank, world size, allocated, reserved, device bytes (-1: unknown), calls
                as "optimizer:seconds" joined by commas; seconds are empty where no time was read
    N note      what could not be applied, or is no longer in force
    G graph     a step was captured in a CUDA graph: its replays can't be seen
    F failed    what failed in the probe itself, which falls silent
What is received: "only N" (read the time of optimizer N's calls alone; the others are listed with
the next of these) and "all". The end of the stream means: fall silent.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque

from _perfmodel_socket import Connection  # type: ignore[import-not-found]
from _perfmodel_torch import watch_imports  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SOCKET_VARIABLE = "PERFMODEL_PROBE_SOCKET"
SETTINGS_VARIABLE = "PERFMODEL_PROBE_SETTINGS"

_MAX_PENDING = 4096
_MAX_RECORDS = 2048
_FLUSH_EVERY_SECONDS = 0.05
_FLUSH_ALWAYS_CALLS = 8
_MEMORY_EVERY_SECONDS = 0.25
_MEMORY_ALWAYS_CALLS = 8


class Identities:
    """Numbers the optimizers in the order of their first calls.

    One that takes the place of a dead one of the same class (a script that builds its optimizer
    anew for each fold) takes over its number.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.references: dict[int, Any] = {}
        self.free: dict[type, list[int]] = {}
        self.count = 0

    def number(self, optimizer: Any) -> int:
        """The number of `optimizer`."""
        key = id(optimizer)
        number = self.numbers.get(key)
        return self._new(key, optimizer) if number is None else number

    def _new(self, key: int, optimizer: Any) -> int:
        import weakref

        kind = type(optimizer)
        freed = self.free.get(kind)
        if freed:
            number = freed.pop(0)
        else:
            number = self.count
            self.count += 1
        self.numbers[key] = number

        def died(_: object) -> None:
            self.numbers.pop(key, None)
            self.references.pop(key, None)
            self.free.setdefault(kind, []).append(number)

        self.references[key] = weakref.ref(optimizer, died)
        return number


class Probe:
    """What this process knows: its connection, its optimizers and the calls not sent yet."""

    def __init__(self, path: str, settings: dict[str, Any]) -> None:
        self.connection = Connection(path)
        self.settings = settings
        self.torch: Any = None
        self.how = ""
        self.identities = Identities()
        self.pending: deque[tuple[int, float | None]] = deque()
        self.only: int | None = None
        self.calls = 0
        self.captured = False
        self.memory = (-1, -1, -1)
        self.memory_read_at = 0.0
        self.flushed_at = 0.0
        self.place: tuple[Any, Any] | None = None

    def forked(self) -> None:
        """In a forked child: nothing is sent before a step of its own, which connects anew."""
        self.connection.forked()
        self.pending.clear()
        self.only = None
        self.calls = 0
        self.captured = False
        self.place = None

    def armed(self, how: str) -> None:
        """Optimizer calls are seen from now on."""
        self.how = how
        self.connection.send("A", self.torch.__version__, how)

    def call(self, optimizer: Any) -> None:
        """A call of an optimizer's step has ended; never raises."""
        if self.connection.closed:
            return
        try:
            self._call(optimizer)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Fall silent for good and say why, as far as that is possible; never raises."""
        try:
            self.connection.send("F", _one_line(error))
        finally:
            self.connection.close()

    def _call(self, optimizer: Any) -> None:
        if self.connection.socket is None:
            self.connection.open()
            self.armed(self.how)
        number = self.identities.number(optimizer)
        if self.calls == 0:
            self._first_call()
        self.calls += 1
        only = self.only
        if only is not None and number != only and len(self.pending) < _MAX_PENDING:
            self.pending.append((number, None))
            return
        cuda = self.torch.cuda
        on_cuda = cuda.is_initialized()
        if on_cuda and cuda.is_current_stream_capturing():
            self._capture()
            return
        self.captured = False
        if on_cuda:
            cuda.synchronize()
        now = time.monotonic()
        self.pending.append((number, now))
        if on_cuda:
            self._read_memory(now)
        if now - self.flushed_at >= _FLUSH_EVERY_SECONDS or self.calls <= _FLUSH_ALWAYS_CALLS:
            self.flushed_at = now
            self.flush()

    def flush(self) -> None:
        """Send what is pending, as far as the parent's queue takes it; never raises."""
        try:
            while self.pending and self._flush():
                pass
        except Exception as error:
            self.fail(error)

    def _capture(self) -> None:
        """A step that is being recorded: it takes no time, and waiting for it isn't allowed."""
        if not self.captured:
            self.captured = True
            self.flush()
            self.connection.send("G")

    def _first_call(self) -> None:
        try:
            self.connection.send("O", _known_optimizers(self.torch))
        except Exception as error:
            self.connection.send("N", "optimizers could not be counted: " + _one_line(error))
        for name, value in self.settings.items():
            try:
                actual = _read_setting(self.torch, name)
            except Exception as error:
                self.connection.send("N", f"{name} could not be read back: {_one_line(error)}")
                continue
            if actual is not None and actual != value:
                self.connection.send(
                    "N", f"{name}={value} is not in force: the script itself has set {actual}"
                )

    def _read_memory(self, now: float) -> None:
        due = now - self.memory_read_at >= _MEMORY_EVERY_SECONDS
        if not due and self.calls > _MEMORY_ALWAYS_CALLS:
            return
        self.memory_read_at = now
        cuda = self.torch.cuda
        free, total = cuda.mem_get_info()
        self.memory = (cuda.max_memory_allocated(), cuda.max_memory_reserved(), total - free)

    def _rank_and_world_size(self) -> tuple[Any, Any]:
        if self.place is not None:
            return self.place
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self.place = (distributed.get_rank(), distributed.get_world_size())
            return self.place
        return _number("RANK", 0), _number("WORLD_SIZE", 1)

    def _flush(self) -> bool:
        """Send what is pending; False if the parent's queue is full (it is kept for the next)."""
        records: list[tuple[int, float | None]] = []
        while self.pending and len(records) < _MAX_RECORDS:
            try:
                records.append(self.pending.popleft())
            except IndexError:  # another thread was faster
                break
        calls = ",".join(["%d:%s" % (n, "" if t is None else repr(t)) for n, t in records])
        place = self._rank_and_world_size()
        if records and not self.connection.send("C", *place, *self.memory, calls):
            self.pending.extendleft(reversed(records))
            return False
        order = self.connection.order()
        while order:
            self.only = int(order[5:]) if order.startswith("only ") else None
            order = self.connection.order()
        return True

    def apply_settings(self) -> None:
        """Apply the runtime parameters that no environment variable can set."""
        for name, value in self.settings.items():
            try:
                _apply_setting(self.torch, name, value)
            except Exception as error:
                reason = _one_line(error)
                self.connection.send("N", f"{name}={value} could not be applied: {reason}")


def _one_line(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # an exception of the script's own making
        text = ""
    return " ".join(("%s: %s" % (type(error).__name__, text)).split())[:300]


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:  # some other program's variable
        return default


def _apply_setting(torch: Any, name: str, value: Any) -> None:
    if name == "threads":
        torch.set_num_threads(value)
    elif name == "interop_threads":
        torch.set_num_interop_threads(value)
    elif name == "matmul_precision":
        torch.set_float32_matmul_precision(value)
    elif name == "cudnn_benchmark":
        torch.backends.cudnn.benchmark = value
    elif name == "flush_denormal":
        torch.set_flush_denormal(value)
    else:
        raise ValueError("unknown setting")


def _read_setting(torch: Any, name: str) -> Any:
    if name == "threads":
        return torch.get_num_threads()
    if name == "interop_threads":
        return torch.get_num_interop_threads()
    if name == "matmul_precision":
        return torch.get_float32_matmul_precision()
    if name == "cudnn_benchmark":
        return torch.backends.cudnn.benchmark
    return None


def _known_optimizers(torch: Any) -> int:
    # Those whose step can be seen; wrappers (accelerate's, Lightning's) are optimizers by class
    # only. `type` and not isinstance: a lazy proxy must not be woken up.
    import gc

    base = torch.optim.Optimizer
    known = 0
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, base):
            step = kind.step
            known += bool(getattr(step, "hooked", False) or getattr(step, "_perfmodel", False))
    return known


_started = False


def start(environment: Mapping[str, str]) -> None:
    """Connect, say hello and wait for torch; does nothing without a socket in `environment`."""
    global _started
    path = environment.get(SOCKET_VARIABLE)
    if not path or _started:
        return
    _started = True
    settings = {}
    if environment.get(SETTINGS_VARIABLE):
        import json

        settings = json.loads(environment[SETTINGS_VARIABLE])
    probe = Probe(path, settings)
    probe.connection.open()
    if probe.connection.closed and not settings:
        return
    os.register_at_fork(after_in_child=probe.forked)
    atexit.register(probe.flush)
    watch_imports(probe)
