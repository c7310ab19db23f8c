"""The name this program was started by, which every "next command" in a message uses."""

from __future__ import annotations

import sys
from pathlib import Path


def program_name() -> str:
    """`tune`, `perfmodel` or `python -m tuner`, from how the process was started."""
    started_as = Path(sys.argv[0])
    if started_as.name == "__main__.py":
        return "python -m tuner"
    return started_as.name or "tune"
