"""Placeholders, interpreters and workloads of the user's own command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collectors.script import runtime_parameters
from collectors.script.command import ScriptCommand, script_workload
from collectors.script.trial_environment import TRACKERS_OFF, trial_environment
from perfmodel.errors import UsageError


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{batch}", "8"),
        ("--batch={batch}", "--batch=8"),
        ("{flag}", "true"),
        ("{{batch}}", "{batch}"),
        ("{{{batch}}}", "{8}"),
        ('{"lr": {rate}, "b": {"c": {batch}}}', '{"lr": 0.1, "b": {"c": 8}}'),
        ("{} {0} {:d} ${HOME}x", "{} {0} {:d} $hx"),
        ("{trial_dir}/out", "/t/out"),
    ],
)
def test_fill(text: str, filled: str) -> None:
    values = {"batch": 8, "rate": 0.1, "flag": True, "HOME": "h"}
    assert ScriptCommand(("python", text)).fill(values, Path("/t")) == ("python", filled)


def test_placeholders_leave_out_the_trial_dir_and_escapes() -> None:
    command = ScriptCommand(("python", "{a}", "{{b}}", "{trial_dir}", "{{{c}}}"))
    assert command.placeholders == {"a", "c"}


def test_an_unknown_placeholder_is_named_with_what_is_allowed() -> None:
    command = ScriptCommand(("python", "{batch}"))
    with pytest.raises(UsageError, match=r"\{batch\}.*allowed: size, trial_dir.*\{\{batch\}\}"):
        command.check(["size"])


def test_no_command() -> None:
    with pytest.raises(UsageError, match="no command"):
        ScriptCommand(())


def test_the_interpreter_of_a_launcher_is_on_its_first_line(tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    assert ScriptCommand((str(launcher), "x.py")).interpreter == sys.executable
    assert ScriptCommand((sys.executable, "x.py")).interpreter == sys.executable
    assert ScriptCommand(("no-such-program-here",)).interpreter is None


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("env", "X=1", sys.executable, "x.py"), True),
        (("env", "-i", sys.executable, "x.py"), False),
        (("env", "PATH=/elsewhere", "python3", "x.py"), False),
        (("env", "X=1"), False),
        (("bash", "x.sh"), False),
        (("uv", "run", "x.py"), False),
        (("conda", "run", "python", "x.py"), False),
    ],
)
def test_the_interpreter_behind_a_runner_is_unknown_before_a_run(
    command: tuple[str, ...], found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """conda and its like are Python scripts, of another Python than the one they run."""
    for name in ("uv", "conda"):
        (tmp_path / name).write_text(f"#!{sys.executable}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert ScriptCommand(command).interpreter == (sys.executable if found else None)


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("python", True),
        ("/usr/bin/python3", True),
        ("python3.13t", True),
        ("python3.14td", True),
        ("python3.11-dbg", True),
        ("pypy3.10", True),
        ("python-config", False),
        ("pythonic", False),
        ("torchrun", False),
    ],
)
def test_names_of_interpreters(name: str, python: bool) -> None:
    assert ScriptCommand((name, "x.py")).is_python is python


def test_a_script_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").symlink_to("/proc/self/mem")  # root may read any other file
    with pytest.raises(UsageError, match=r"script 'train.py' can't be read: "):
        script_workload(ScriptCommand(("python", "train.py")))


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (("-I", "x.py"), ("-I",)),
        (("-uE", "x.py"), ("-E",)),
        (("-W", "error", "-S", "x.py"), ("-S",)),
        (("-m", "x", "-I"), ()),
        (("x.py", "-S"), ()),
    ],
)
def test_flags_that_keep_the_probe_out(arguments: tuple[str, ...], flags: tuple[str, ...]) -> None:
    assert ScriptCommand(("python3", *arguments)).ignoring_flags == flags


def test_the_workload_changes_with_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("a")
    command = ScriptCommand(("python", "train.py", "{batch}"))
    first = script_workload(command)
    assert (first.kind, first.name) == ("step", "train")
    assert first.parameters["command"] == "python train.py '{batch}'"
    assert script_workload(ScriptCommand(("python", "-m", "train"))).name == "train"
    script.write_text("b")
    assert script_workload(command) != first


def test_runtime_parameters_become_environment_and_settings() -> None:
    configuration = {"threads": 2, "batch": 8, "matmul_precision": "high", "huge_pages": True}
    environment, settings = runtime_parameters.split(configuration)
    assert environment == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "THP_MEM_ALLOC_ENABLE": "1",
    }
    assert settings == {"threads": 2, "matmul_precision": "high"}


def test_a_placeholder_takes_a_runtime_parameter_s_name() -> None:
    assert runtime_parameters.split({"threads": 2}, placeholders=("threads",)) == ({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("threads", True),
        ("threads", "two"),
        ("matmul_precision", "low"),
        ("cudnn_benchmark", 1),
        ("cuda_allocator", "x"),
        ("cuda_connections", 64),
    ],
)
def test_a_value_that_is_not_allowed(name: str, value: int | str) -> None:
    with pytest.raises(UsageError, match=f"{name}=.*allowed: "):
        runtime_parameters.check(name, (value,))


def test_an_unknown_runtime_parameter() -> None:
    with pytest.raises(UsageError, match=r"'thread'.*threads"):
        runtime_parameters.check("thread", (1,))


def test_each_parameter_s_allowed_text_is_accepted() -> None:
    for name, parameter in runtime_parameters.PARAMETERS.items():
        if parameter.allowed.startswith("whole"):
            runtime_parameters.check(name, (1,))
        elif parameter.allowed == "true, false":
            runtime_parameters.check(name, (True, False))
        else:
            runtime_parameters.check(name, parameter.allowed.split(", "))


def test_the_environment_of_a_trial(tmp_path: Path) -> None:
    base = {"WANDB_MODE": "online", "PATH": "/bin", "TUNE_DB": "postgresql://me:secret@host/db"}
    environment = trial_environment(base, name="t7", folder=tmp_path)
    assert environment["WANDB_MODE"] == "online"
    assert environment["COMET_MODE"] == TRACKERS_OFF["COMET_MODE"]
    assert environment["TUNE_TRIAL"] == "t7"
    assert environment["TUNE_TRIAL_DIR"] == str(tmp_path)
    assert "TUNE_DB" not in environment
    assert 1024 <= int(environment["MASTER_PORT"]) < 65536
    other = trial_environment({"MASTER_PORT": "80"}, name="t7", folder=tmp_path)
    assert other["MASTER_PORT"] == other["PET_MASTER_PORT"]
    assert int(other["MASTER_PORT"]) >= 1024


def test_mlflow_writes_into_the_trial_unless_told_where(tmp_path: Path) -> None:
    environment = trial_environment({}, name="t7", folder=tmp_path / "a trial")
    assert environment["MLFLOW_TRACKING_URI"] == f"file://{tmp_path}/a%20trial/mlruns"
    told = {"MLFLOW_TRACKING_URI": "http://server"}
    assert trial_environment(told, name="t7", folder=tmp_path)["MLFLOW_TRACKING_URI"] == (
        "http://server"
    )
