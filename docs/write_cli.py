"""Writes docs/cli.md from the program's own --help; --check only says whether it is current."""

import os
import subprocess
import sys
from pathlib import Path

COMMANDS = [[], ["run"], ["runs"], ["doctor"], ["db"], ["db", "info"]]
TARGET = Path(__file__).with_name("cli.md")


def text() -> str:
    """The whole page."""
    parts = ["# Command line\n\nWritten by `make docs` from `--help`.\n"]
    for command in COMMANDS:
        shown = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv[0] = 'tune'; "
             "from tuner.cli.main import main; main()", *command, "--help"],
            env={**os.environ, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines = "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())
        parts.append(f"## `{' '.join(['tune', *command])}`\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != text())
    TARGET.write_text(text())
