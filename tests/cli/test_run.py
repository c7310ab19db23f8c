"""`tune run` from end to end on a script whose step times are known."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Tune = Callable[..., Any]
Commands = dict[str, Callable[..., Any]]

SPACE = ["--vary", "batch_size=4,8", "--vary", "extra=,--fast", "--default", "batch_size=4"]
QUICK = ["--trial-time", "1s", "--budget", "4m"]


@pytest.fixture
def study(tune: Tune, commands: Commands) -> Any:
    """The program's run of that study with more options; its parsed JSON is the result."""

    def run(*options: str) -> dict[str, Any]:
        done = tune("run", *SPACE, *QUICK, "--json", *options, "--", *commands["steady"]("{extra}"))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = commands["document"](done)
        return {**found, "stderr": done.stderr}

    return run


def test_finds_launches_and_remembers(study: Any, tune: Tune) -> None:
    """The whole way: search, finals, launch, `runs`, and the same command again."""
    first = study()
    assert first["winner"] == {"batch_size": 8, "extra": "--fast"}
    assert first["default"] == {"batch_size": 4, "extra": ""}
    assert first["assumed"] == ["extra"]
    assert not first["already_known"]
    # 4/(8 ms) against 8/(6 ms): 2.67 times the throughput, less what the machine adds.
    assert 0 < first["gain"]["low"] < first["gain"]["ratio"] < 2.5
    assert {t["conditions"]["purpose"] for t in first["trials"]} == {"trial", "finalist"}
    configurations = [json.dumps(t["configuration"]) for t in first["trials"]
                      if t["conditions"]["purpose"] == "trial"]  # fmt: skip
    assert len(configurations) == len(set(configurations)) <= 4
    assert first["trials"][0]["configuration"] == first["default"]
    assert "up to 20 times" in first["stderr"]

    launch = first["launch"]
    assert launch["exit_code"] == 0
    assert launch["achieved"]["samples"] >= 50
    assert "done 8 True" in first["stderr"], "the launch's output is streamed"

    again = study()
    assert again["already_known"]
    assert again["measured_now"] == 1
    assert again["winner"] == first["winner"]

    only = study("--launch-only")
    assert only["measured_now"] == 0

    listed = json.loads(tune("runs", "--json").stdout)
    assert len(listed) == 3
    assert listed[0]["predicted"]["seconds"] == launch["predicted"]["seconds"]
    shown = tune("runs")
    assert shown.returncode == 0
    assert "steady" in shown.stdout
    assert "batch_size=8 extra=--fast" in shown.stdout

    info = json.loads(tune("db", "info", "--json").stdout)
    assert info["counts"]["launches"] == 3
    assert info["counts"]["studies"] == 1


def test_assumed_default_and_failures_with_their_reason(tune: Tune, commands: Commands) -> None:
    done = tune(
        "run", "--vary", "batch_size=4,8", *QUICK, "--no-launch",
        "--", *commands["steady"]("--mode", "oom"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "assumed default: batch_size=4" in done.stdout
    assert "gain:" not in done.stdout
    assert "out_of_memory: torch.OutOfMemoryError: CUDA out of memory" in done.stdout
    assert "the default stays" in done.stdout
    assert "all 2 configurations of the space are measured" in done.stdout


def test_the_launch_passes_its_exit_code_on(tune: Tune, commands: Commands) -> None:
    failing = ["sh", "-c", '"$@"; exit 7', "sh", *commands["steady"]()]
    done = tune("run", "--vary", "batch_size=4", *QUICK, "--", *failing)
    assert done.returncode == 7, done.stderr
    assert "exit code 7" in done.stderr
