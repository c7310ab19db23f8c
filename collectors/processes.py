"""What the kernel tells about processes: their tree and their memory.

Standard library only: the warden runs this under `python -I -S`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from typing import NamedTuple

_WATCH_SECONDS = 0.05
_CONFIRM_SECONDS = 0.02  # a vfork child shows its parent's memory as its own until its exec
_COST_FACTOR = 50  # watching takes at most 1/50 of a core


class Process(NamedTuple):
    """One line of the process table."""

    parent: int
    group: int
    session: int


def process_table() -> dict[int, Process]:
    """Every visible process by pid."""
    table: dict[int, Process] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (names are all that is needed)
        if name.isdigit() and (text := read_text(f"/proc/{name}/stat")):
            # The name in parentheses may hold anything, spaces and parentheses included.
            fields = text[text.rindex(")") + 2 :].split(None, 4)
            table[int(name)] = Process(int(fields[1]), int(fields[2]), int(fields[3]))
    return table


def descendants(root: int) -> dict[int, Process]:
    """Every process below `root`, itself excluded."""
    table = process_table()
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found: dict[int, Process] = {}
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found[pid] = table[pid]
                todo.append(pid)
    return found


def peak_resident_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Peak resident set (VmHWM) of each of `pids` that still runs; one small read for each."""
    peaks: dict[int, int] = {}
    for pid in pids:
        for line in read_text(f"/proc/{pid}/status").splitlines():
            if line.startswith("VmHWM:"):
                peaks[pid] = int(line.split()[1]) * 1024
    return peaks


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum of the resident sets; cheap, but counts shared pages several times."""
    page = resource.getpagesize()
    texts = (read_text(f"/proc/{pid}/statm") for pid in pids)
    return sum(int(text.split()[1]) * page for text in texts if text)


def proportional_bytes(pids: Iterable[int]) -> int:
    """Sum of the resident sets with shared pages divided (PSS); walks page tables."""
    total = 0
    for pid in pids:
        text = read_text(f"/proc/{pid}/smaps_rollup")
        line = next((line for line in text.splitlines() if line.startswith("Pss:")), "")
        total += int(line.split()[1]) * 1024 if line else resident_bytes([pid])
    return total


def read_text(path: str) -> str:
    """A file of /proc or /sys; "" when it is gone or not ours to read."""
    try:
        # Not Path.open: this runs for every process of the machine.
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


class MemoryWatch:
    """Tells when a tree of processes holds more than a limit."""

    def __init__(self, root: int, limit_bytes: int) -> None:
        self._root, self._limit = root, limit_bytes
        self._pids: list[int] = []
        self._next_look = self._next_scan = 0.0
        self._suspect = False

    @property
    def seconds_left(self) -> float:
        """Until the next look is due."""
        return max(0.0, self._next_look - time.monotonic())

    def over(self) -> int | None:
        """The bytes held, if due, over the limit, and confirmed by a second look; else None."""
        began = time.monotonic()
        if began < self._next_look:
            return None
        if began >= self._next_scan or self._suspect:
            self._pids = list(descendants(self._root))
            now = time.monotonic()
            self._next_scan = now + _COST_FACTOR * (now - began)
        held = resident_bytes(self._pids)
        if held > self._limit:
            held = proportional_bytes(self._pids)
        now = time.monotonic()
        if held <= self._limit:
            self._suspect = False
            self._next_look = now + max(_WATCH_SECONDS, _COST_FACTOR * (now - began))
            return None
        if self._suspect:
            return held
        self._suspect = True
        self._next_look = now + _CONFIRM_SECONDS
        return None
