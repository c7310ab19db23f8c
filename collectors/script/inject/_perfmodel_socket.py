"""The probe's line to the parent: never blocks, never raises, falls silent when anything fails."""

from __future__ import annotations

import _socket
import os
import sys

# MSG_NOSIGNAL: a script may have given SIGPIPE its deadly default back.
_FLAGS = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL
_COMMAND_LINE_BYTES = 2000


class Connection:
    """A Unix socket that keeps message boundaries; `closed` once it has failed or was ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket: _socket.socket | None = None
        self.inode = 0
        self.closed = False

    def open(self) -> None:
        """Connect and say hello."""
        try:
            connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            connection.setblocking(False)  # a parent that doesn't accept must not hold us up
            connection.connect(self.path)
            self.inode = os.fstat(connection.fileno()).st_ino
            self.socket = connection
        except OSError:
            self.close()
            return
        version = sys.version.split()[0]
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        place = [os.environ.get(name, "") for name in names]
        self.send("H", os.getpid(), version, sys.executable, *place, _command_line())

    def forked(self) -> None:
        """In a forked child: let go of the parent process's socket."""
        connection, self.socket = self.socket, None
        if connection is not None and self._is_ours(connection):
            connection.close()

    def close(self) -> None:
        """Fall silent for good."""
        self.closed = True
        self.forked()

    def _is_ours(self, connection: _socket.socket) -> bool:
        # A script that closes every descriptor may have put a file of its own under our number.
        try:
            ours = os.fstat(connection.fileno()).st_ino == self.inode
        except OSError:
            ours = False
        if not ours:
            connection.detach()
        return ours

    def send(self, letter: str, *fields: object) -> bool:
        """Send one message; False if the parent's queue is full, so that nothing was sent."""
        connection = self.socket
        if connection is None:
            return True
        text = "\t".join([letter, *[str(field) for field in fields]])
        try:
            if self._is_ours(connection):
                connection.send(text.encode("utf-8", "replace"), _FLAGS)
            else:
                self.closed, self.socket = True, None
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            self.close()
        return True

    def order(self) -> str:
        """The parent's next order; "" if there is none."""
        connection = self.socket
        if connection is None:
            return ""
        try:
            order = connection.recv(256, _socket.MSG_DONTWAIT).decode("ascii")
        except BlockingIOError:
            return ""
        except (OSError, ValueError):
            order = ""
        if not order:
            self.close()
        return order


def _command_line() -> str:
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            words = stream.read(4096).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        words = getattr(sys, "orig_argv", [])
    return " ".join(" ".join(words).split())[:_COMMAND_LINE_BYTES]
