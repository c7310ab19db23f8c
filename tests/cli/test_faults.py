"""What goes wrong while trials run: a clear line, exit code 1, nothing lost, no process left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

Tune = Callable[..., Any]
Commands = dict[str, Callable[..., Any]]

VARY = ["--vary", "x=1", "--samples", "1", "--no-launch", "--trial-time", "1s", "--budget", "1m"]

MARK = f"mark-{uuid.uuid4()}"
"""In the command line of every process of this run's trials, and of nobody else's."""

FAULTS = {
    "dies": (["dies"], [], ["crash", "RuntimeError: the data set is missing", "Traceback"]),
    "no-torch": (["no-torch"], [], ["no_steps", "never imported torch"]),
    "no-steps": (["no-steps"], [], ["no_steps", "never called an optimizer"]),
    "few-steps": (["few-steps", "0", "2"], [], ["no_steps", "too few steps"]),
    "hangs": (["hangs"], ["--deadline", "8s"], ["timeout", "within 8 s"]),
    "segfaults": (["segfaults"], [], ["crash", "segmentation fault"]),
    "killed": (["killed"], [], ["out_of_memory", "SIGKILL"]),
    "eats-memory": (["eats-memory"], ["--memory-limit", "1500MB"], ["out_of_memory", "limit"]),
}


def run(tune: Tune, commands: Commands, how: list[str], options: list[str], **more: Any) -> Any:
    return tune("run", *VARY, *options, "--", *commands["faulty"](*how), "{x}", MARK, **more)


@pytest.mark.parametrize("case", FAULTS)
def test_fault(tune: Tune, commands: Commands, case: str) -> None:
    how, options, expected = FAULTS[case]
    done = run(tune, commands, how, options)
    assert done.returncode == 1, done.stderr
    for part in expected:
        assert part in done.stderr, done.stderr
    assert "tuner/" not in done.stderr, "no traceback of ours"
    info = json.loads(tune("db", "info", "--json").stdout)
    assert info["counts"]["launches"] == 0
    assert_nothing_left(MARK)


def test_not_python(tune: Tune) -> None:
    done = tune("run", *VARY, "--", "sh", "-c", "sleep 0.1; : {x}")
    assert done.returncode == 1
    assert "not_probed" in done.stderr
    assert "isn't Python" in done.stderr


def test_interpreter_that_ignores_pythonpath(tune: Tune, commands: Commands) -> None:
    python, *rest = commands["faulty"]("no-steps", "{x}")
    done = tune("run", *VARY, "--", python, "-I", *rest)
    assert done.returncode == 1
    assert "-I makes the interpreter ignore PYTHONPATH" in done.stderr


def test_prints_100_megabytes_and_leaves_children(tune: Tune, commands: Commands) -> None:
    done = run(tune, commands, ["prints"], [])
    assert done.returncode == 0, done.stderr
    assert len(done.stderr) < 100_000
    marker = f"9{uuid.uuid4().int % 10**9}"
    done = tune("run", *VARY, "--", *commands["faulty"]("children", marker), "{x}")
    assert done.returncode == 0, done.stderr
    assert_nothing_left(marker)


def test_read_only_data_folder(home: Path, environment: dict[str, str]) -> None:
    """As an unprivileged user, since root may write anywhere."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("dropping to an unprivileged user needs root and setpriv")
    data = home / ".local" / "share" / "perfmodel"
    (data / "timings.db").chmod(0o444)
    data.chmod(0o555)
    # It may read everything (this Python may lie in root's home), and write nothing.
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    program = [sys.executable, "-m", "tuner", "run", *VARY]
    done = subprocess.run(
        [*drop, *reading, *program, "--", "env", "true", "{x}"],
        env=environment, capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "timings.db" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk(tune: Tune, commands: Commands, home: Path) -> None:
    """A limit on file size stands for a full disk: what was there stays readable."""
    database = home / ".local/share/perfmodel/timings.db"
    before = json.loads(tune("db", "info", "--json").stdout)["counts"]["measurements"]
    limit = database.stat().st_size
    arguments = [
        sys.executable,
        "-m",
        "tuner",
        "run",
        *VARY,
        "--",
        *commands["faulty"]("ok"),
        "{x}",
    ]
    import shlex

    shell = f"ulimit -f {limit // 1024 + 1}; trap '' XFSZ; exec {shlex.join(arguments)}"
    environment = {k: v for k, v in os.environ.items() if k != "TUNE_DB"}
    done = subprocess.run(
        ["bash", "-c", shell], env={**environment, "HOME": str(home)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "disk" in done.stderr or "full" in done.stderr
    after = json.loads(tune("db", "info", "--json").stdout)["counts"]["measurements"]
    assert after >= before
    assert_nothing_left(MARK)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_killed_in_the_middle_goes_on(
    number: signal.Signals, tune: Tune, commands: Commands, environment: dict[str, str], home: Path
) -> None:
    options = [
        "run", "--vary", "batch_size=4,8,16", "--no-launch", "--trial-time", "1s",
        "--default", "batch_size=4",
    ]  # fmt: skip
    command = ["--", *commands["steady"]("--mode", MARK)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", *options, *command],
        env=environment, stderr=subprocess.PIPE, text=True, cwd=home,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("trial 1:"):
            break
    time.sleep(1.5)  # into the second trial
    process.send_signal(number)
    rest = process.stderr.read()
    code = process.wait()
    assert code == (-9 if number == signal.SIGKILL else 130), rest
    assert "Traceback" not in rest
    assert_nothing_left(MARK)

    done = tune(*options, "--json", *command)
    assert done.returncode == 0, done.stderr
    assert "going on with 1 earlier measurements" in done.stderr
    trials = json.loads(done.stdout)["trials"]
    searched = [t["configuration"]["batch_size"] for t in trials
                if t["conditions"]["purpose"] == "trial"]  # fmt: skip
    assert sorted(searched) == [4, 8, 16], "each once, none twice"


def assert_nothing_left(word: str) -> None:
    """No process of a trial remains, waiting a little for the last to be reaped."""
    for _ in range(50):
        left = [p for p in psutil.process_iter(["cmdline"]) if word in (p.info["cmdline"] or [])
                or any(a.endswith(word) for a in p.info["cmdline"] or [])]  # fmt: skip
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"left: {[p.info['cmdline'] for p in left]}")
