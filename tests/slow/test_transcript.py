"""The README's transcript is what the program prints today."""

import runpy
from pathlib import Path

import pytest

WRITER = Path(__file__).parents[2] / "docs" / "write_transcript.py"


@pytest.mark.slow
def test_the_readme_shows_what_the_program_prints() -> None:
    """The same kinds of lines; figures, and what hangs on them, differ from run to run."""
    writer = runpy.run_path(str(WRITER))
    kind = writer["kind"]
    depends = {"note", "gain", "assumed, because no --default names it"}
    live = {kind(line) for line in writer["lines"]("--trials", "3", "--trial-time", "2s")}
    shown = {kind(line) for line in writer["written"]()}
    assert shown, "run `make transcript`"
    assert {k for k in shown ^ live if k not in depends and not k.startswith("step #")} == set()
