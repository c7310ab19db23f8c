"""Runs the README's command on a fresh home and writes what it prints into the README.

`lines()` is also what the test compares the README with.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
MARKS = ("<!-- transcript -->", "<!-- /transcript -->")


def command() -> str:
    """The README's `tune run` command as one line of shell."""
    found = re.search(r"^    tune run .*?(?=\n\n)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, "README.md shows no `tune run` command"
    return found[0].strip().replace("\\\n", " ")


def written() -> list[str]:
    """The transcript that the README holds."""
    inside = README.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    return inside.strip().removeprefix("```text").removesuffix("```").strip("\n").splitlines()


def lines(*more: str) -> list[str]:
    """What the command prints (with `more` options), both streams in order."""
    folder = str(Path(sys.executable).parent)
    typed = command().replace("tune run ", " ".join(["tune run", *more, ""]), 1)
    with tempfile.TemporaryDirectory() as home:
        kept = {k: v for k, v in os.environ.items() if k != "TUNE_DB" and not k.startswith("XDG_")}
        kept |= {"HOME": home, "PATH": folder + os.pathsep + os.environ["PATH"]}
        done = subprocess.run(
            ["bash", "-c", typed], cwd=ROOT, env=kept, text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return [line.rstrip() for line in done.stdout.splitlines() if line.strip()]


def kind(line: str) -> str:
    """What a line is about, without its figures: its beginning up to the first colon."""
    if line.startswith(" "):
        return "table"
    return re.sub(r"[\d.,]+", "#", re.split(r"[:;(]| with | reached | ran ", line)[0]).strip()


if __name__ == "__main__":
    text = README.read_text()
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    block = "\n".join(["```text", *lines(), "```"])
    README.write_text(f"{before}{MARKS[0]}\n{block}\n{MARKS[1]}{after}")
