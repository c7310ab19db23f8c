"""What the probe says, as the parent hears it: a Unix socket and the messages that arrive on it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from perfmodel.errors import MeasurementError
from perfmodel.records import Value

INJECT_FOLDER = Path(__file__).parent / "inject"
SOCKET_VARIABLE = "PERFMODEL_PROBE_SOCKET"
SETTINGS_VARIABLE = "PERFMODEL_PROBE_SETTINGS"

MAX_MESSAGE_BYTES = 1 << 18
MAX_MESSAGES_PER_POLL = 2000
BACKLOG = 1024


@dataclass(frozen=True)
class Event:
    """Something one process said; `connection` keeps processes apart (a pid may be reused)."""

    connection: int


@dataclass(frozen=True)
class Hello(Event):
    """An interpreter started and the probe is in it."""

    pid: int
    python: str
    executable: str
    rank: str
    local_rank: str
    world_size: str
    command_line: str


@dataclass(frozen=True)
class Armed(Event):
    """It imported torch; `how` its optimizer calls are seen (hook, patch)."""

    torch: str
    how: str


@dataclass(frozen=True)
class Known(Event):
    """It holds this many optimizers at its first optimizer call."""

    optimizers: int


@dataclass(frozen=True)
class Calls(Event):
    """Calls of optimizers, in order: (number, seconds on the monotonic clock or None).

    Bytes are None where CUDA isn't in use.
    """

    rank: int
    world_size: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    calls: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Note(Event):
    """Something worth showing: a runtime parameter that could not be applied."""

    text: str


@dataclass(frozen=True)
class Captured(Event):
    """A step was recorded into a CUDA graph, whose replays the probe can't see."""


@dataclass(frozen=True)
class Failed(Event):
    """The probe itself failed and falls silent; the script goes on."""

    text: str


@dataclass(frozen=True)
class Bye(Event):
    """It ended, or fell silent."""


def decode(connection: int, message: bytes) -> Event | None:
    """The event of one message; None for one that isn't ours (any process may write there)."""
    letter, *fields = message.decode("utf-8", "replace").split("\t")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        event: Event = _DECODERS[letter](connection, *fields)
        return event
    return None


def _hello(connection: int, pid: str, *rest: str) -> Hello:
    return Hello(connection, int(pid), *rest)


def _known(connection: int, optimizers: str) -> Known:
    return Known(connection, int(optimizers))


def _calls(connection: int, rank: str, world_size: str, *rest: str) -> Calls:
    *sizes, text = rest
    allocated, reserved, device = (int(s) if int(s) >= 0 else None for s in sizes)
    calls = []
    for item in text.split(","):
        number, _, seconds = item.partition(":")
        calls.append((int(number), float(seconds) if seconds else None))
    return Calls(
        connection, int(rank), max(int(world_size), 1), allocated, reserved, device, tuple(calls)
    )


_DECODERS: dict[str, Any] = {
    "H": _hello,
    "A": Armed,
    "O": _known,
    "C": _calls,
    "N": Note,
    "G": Captured,
    "F": Failed,
}


class Listener:
    """The socket the probes connect to; a context manager that leaves no file behind."""

    def __init__(self) -> None:
        # Short, whatever TMPDIR is: a socket's path is limited to about 100 bytes.
        self._folder = Path(_short_folder())
        self.path = self._folder / "s"
        self._connections: dict[int, socket.socket] = {}
        self._count = 0
        self.closed = False
        self._held = contextlib.ExitStack()
        self._held.callback(self._remove_folder)
        try:
            self._selector = self._held.enter_context(selectors.EpollSelector())
            self._server = self._held.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            self._server.bind(str(self.path))
            self._server.listen(BACKLOG)
            self._server.setblocking(False)
            self._selector.register(self._server, selectors.EVENT_READ, None)
        except OSError as error:
            self.close()
            raise MeasurementError(f"no socket can be made at {self.path}: {error}") from error

    def poll(self, timeout_seconds: float = 0.0) -> list[Event]:
        """What has arrived; waits up to `timeout_seconds` for the first of it."""
        if self.closed:
            return []
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                self._accept()
            else:
                events.extend(self._read(key.data))
        return events

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.setblocking(False)
            self._connections[self._count] = connection
            self._selector.register(connection, selectors.EVENT_READ, self._count)
            self._count += 1

    def _read(self, number: int) -> Iterator[Event]:
        connection = self._connections[number]
        for _ in range(MAX_MESSAGES_PER_POLL):
            try:
                message = connection.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._drop(number)
                yield Bye(number)
                return
            event = decode(number, message)
            if event is not None:
                yield event

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._selector.unregister(connection)
        connection.close()

    def order(self, connection: int, text: str) -> None:
        """Send an order to one probe; nothing happens if it has gone."""
        target = self._connections.get(connection)
        if target is not None:
            with contextlib.suppress(OSError):
                target.send(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Close every connection, which silences the probes, and remove the socket."""
        self.closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._held.close()

    def _remove_folder(self) -> None:
        # Not shutil.rmtree, which needs a file descriptor: there may be none left.
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self._folder.rmdir()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    try:
        return tempfile.mkdtemp(prefix="perfmodel-", dir=folder if len(folder) < 60 else "/tmp")
    except OSError as error:
        raise MeasurementError(
            f"no folder for a socket can be made in {folder}: {error}"
        ) from error


def probe_environment(
    base: Mapping[str, str], socket_path: Path, settings: Mapping[str, Value]
) -> dict[str, str]:
    """`base` and what brings the probe into every Python process started under it."""
    paths = [str(INJECT_FOLDER)]
    if base.get("PYTHONPATH"):  # an empty entry would mean the working directory
        paths.append(base["PYTHONPATH"])
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(paths),
        SOCKET_VARIABLE: str(socket_path),
        SETTINGS_VARIABLE: json.dumps(dict(settings)) if settings else "",
    }
