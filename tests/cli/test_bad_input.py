"""Wrong usage: one clear line naming the value, what is allowed, the next command; exit code 2."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Tune = Callable[..., Any]
VARY = ["--vary", "batch_size=4,8"]
COMMAND = ["--", sys.executable, "train.py", "--batch-size", "{batch_size}"]

WRONG_USAGE = {
    "no command": ([*VARY], ["no command", "--"]),
    "empty space": ([*COMMAND], ["space is empty", "--vary"]),
    "no values": (["--vary", "batch_size=", *COMMAND], ["batch_size=", "4..64:x2"]),
    "endless range": (["--vary", "batch_size=1..9:x1", *COMMAND], ["x1", "above 1"]),
    "reversed range": (["--vary", "batch_size=9..1", *COMMAND], ["9..1", "empty"]),
    "huge space": (
        ["--vary", "batch_size=1..9999", "--vary", "threads=1..999", *COMMAND],
        ["combinations", "200,000"],
    ),
    "unknown placeholder": ([*VARY, *COMMAND, "{steps}"], ["{steps}", "batch_size", "--vary"]),
    "parameter appears nowhere": (
        [*VARY, "--vary", "speed=1,2", *COMMAND],
        ["'speed'", "{speed}", "threads"],
    ),
    "contradictory constraint": (
        [*VARY, "--require", "batch_size > 100", *COMMAND],
        ["batch_size > 100", "ruled out"],
    ),
    "unknown name in a constraint": (
        [*VARY, "--require", "batch > 1", *COMMAND],
        ["'batch'", "batch_size"],
    ),
    "code in a constraint": (
        [*VARY, "--require", "__import__('os').system('id')", *COMMAND],
        ["__import__", "allowed"],
    ),
    "huge exponent": ([*VARY, "--require", "9**9**9 > batch_size", *COMMAND], ["9**9**9", "64"]),
    "unknown default": ([*VARY, "--default", "batch=4", *COMMAND], ["batch", "batch_size"]),
    "default breaks a constraint": (
        [*VARY, "--require", "batch_size > 4", "--default", "batch_size=4", *COMMAND],
        ["batch_size=4", "batch_size > 4"],
    ),
    "default given twice": (
        [*VARY, "--default", "batch_size=4", "--default", "batch_size=8", *COMMAND],
        ["batch_size", "twice"],
    ),
    "no duration": ([*VARY, "--budget", "soon", *COMMAND], ["'soon'", "5m"]),
    "no size": ([*VARY, "--memory-limit", "lots", *COMMAND], ["'lots'", "8GiB"]),
    "unknown objective": (
        [*VARY, "--objective", "fun", *COMMAND],
        ["'fun'", "samples_per_second", "peak_memory"],
    ),
    "nothing to count samples by": (
        ["--vary", "threads=1,2", "--", sys.executable, "train.py"],
        ["batch_size", "--samples"],
    ),
    "samples not positive": (
        [*VARY, "--samples", "batch_size - 4", *COMMAND],
        ["batch_size - 4", "positive"],
    ),
    "bad runtime value": ([*VARY, "--vary", "threads=0,1", *COMMAND], ["threads=0", "1 to 1024"]),
    "no such option": ([*VARY, "--speed", "9", *COMMAND], ["--speed"]),
    "trials below one": ([*VARY, "--trials", "0", *COMMAND], ["--trials 0", "1 or more"]),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage(tune: Tune, case: str) -> None:
    options, expected = WRONG_USAGE[case]
    done = tune("run", *options)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for part in expected:
        assert part in done.stderr, done.stderr


def test_missing_interpreter(tune: Tune) -> None:
    done = tune("run", *VARY, "--", "pyhton", "train.py", "{batch_size}")
    assert done.returncode == 2
    assert "'pyhton'" in done.stderr
    assert "Traceback" not in done.stderr


DATABASES = {
    "unknown dialect": ("tape://here/there", 2, ["tape"]),
    "malformed": ("postgresql://user:hunter2@host:port/x", 2, ["port"]),
    "unreachable": ("postgresql://user:hunter2@127.0.0.1:9/x", 1, ["127.0.0.1"]),
    "a folder": ("{folder}", 1, ["folder"]),
    "not a database": ("{text}", 1, ["text.db"]),
    "a newer schema": ("{newer}", 1, ["9999", "newer"]),
}


@pytest.mark.parametrize("case", DATABASES)
def test_database_that_cannot_be_opened(tune: Tune, home: Path, tmp_path: Path, case: str) -> None:
    url, code, expected = DATABASES[case]
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text("not a database, just text\n" * 100)
    newer = tmp_path / "newer.db"
    shutil.copy(home / ".local/share/perfmodel/timings.db", newer)
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE perfmodel_alembic_version SET version_num = '9999'")
    url = url.format(folder=tmp_path / "folder", text=tmp_path / "text.db", newer=newer)
    done = tune("run", *VARY, "--db", url, *COMMAND)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    for part in expected:
        assert part in done.stderr, done.stderr


def test_launch_only_without_knowledge(tune: Tune, commands: dict[str, Any]) -> None:
    done = tune("run", *VARY, "--launch-only", "--", *commands["steady"]())
    assert done.returncode == 1
    assert "nothing is known" in done.stderr
    assert "leave it out to measure first" in done.stderr


def test_next_commands_use_the_name_it_was_started_by(environment: dict[str, str]) -> None:
    import subprocess

    for name in ("tune", "perfmodel"):
        program = Path(sys.executable).parent / name
        done = subprocess.run(
            [program, "runs", "--db", "/nowhere/x.db"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert f"try: {name} " in done.stderr, done.stderr
    assert os.environ.get("HOME") != environment["HOME"]
