"""Isolated processes for the tests, and what is to be asked of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors import processes
from collectors.isolate import Ended, IsolatedProcess

PATIENCE_SECONDS = 30.0
"""For a loaded machine: a failing test takes this long, a passing one doesn't."""


class Isolation:
    """Starts Python code in isolation and waits for what it does."""

    patience_seconds = PATIENCE_SECONDS
    root = Path(__file__).resolve().parents[2]

    @staticmethod
    def start(code: str, *arguments: str, **options: object) -> IsolatedProcess:
        options.setdefault("environment", {})
        return IsolatedProcess.start([sys.executable, "-c", code, *arguments], **options)  # type: ignore[arg-type]

    @staticmethod
    def finish(process: IsolatedProcess) -> Ended:
        ended = process.wait(PATIENCE_SECONDS)
        assert ended is not None, "still running"
        return ended

    def run(self, code: str, *arguments: str, **options: object) -> Ended:
        with self.start(code, *arguments, **options) as process:
            return self.finish(process)

    @staticmethod
    def eventually(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    @staticmethod
    def alive(pids: list[int]) -> list[int]:
        """Those that run; a zombie waits for a reaper that isn't ours, it runs no more."""

        def state(pid: int) -> str:
            text = processes.read_text(f"/proc/{pid}/stat")
            return text[text.rindex(")") + 2] if text else "Z"

        return [pid for pid in pids if state(pid) not in "ZX"]

    @staticmethod
    def pids_in(file: Path) -> list[int]:
        return [int(word) for word in file.read_text().split()] if file.exists() else []


@pytest.fixture
def isolated() -> Isolation:
    """How the tests isolate."""
    return Isolation()
