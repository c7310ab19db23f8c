"""The program as a user starts it: a process of its own, an empty home, a calibrated database."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
Tune = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which this machine is calibrated already (that takes seconds)."""
    path = tmp_path_factory.mktemp("calibrated") / "timings.db"
    subprocess.run(
        [sys.executable, "-m", "tuner", "doctor", "--calibrate", "--db", str(path)],
        check=True,
        capture_output=True,
    )
    return path


@pytest.fixture
def home(tmp_path: Path, calibrated: Path) -> Path:
    """An empty home whose data folder holds the calibrated database."""
    data = tmp_path / ".local" / "share" / "perfmodel"
    data.mkdir(parents=True)
    shutil.copy(calibrated, data / "timings.db")
    return tmp_path


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """A user's environment with that home."""
    kept = {k: v for k, v in os.environ.items() if k != "TUNE_DB" and not k.startswith("XDG_")}
    return {**kept, "HOME": str(home), "COLUMNS": "200"}


@pytest.fixture
def tune(environment: dict[str, str], tmp_path: Path) -> Tune:
    """Run the program with arguments; extra keywords go to subprocess.run."""

    def run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        options = {"env": environment, "cwd": tmp_path, "timeout": 300, **options}
        return subprocess.run(
            [sys.executable, "-m", "tuner", *arguments], capture_output=True, text=True, **options
        )

    return run


def steady(*extra: str, placeholder: str = "{batch_size}") -> list[str]:
    """The command of the script with known step times."""
    return [sys.executable, str(SCRIPTS / "steady.py"), "--batch-size", placeholder, *extra]


def faulty(*how: str) -> list[str]:
    """The command of the script that goes wrong."""
    return [sys.executable, str(SCRIPTS / "faulty.py"), *how]


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The JSON that the program printed."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def commands() -> dict[str, Callable[..., Any]]:
    """The helpers above, since importlib mode has no sibling imports."""
    return {"steady": steady, "faulty": faulty, "document": document}
