"""Whole trials of small real training scripts; no assertion says how long anything takes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.clock import StoppingRule
from collectors.machine import recognise_software
from collectors.script.runner import Limits, Progress, ScriptCommand, Trial, run_trial
from perfmodel.errors import MeasurementError
from perfmodel.records import (
    Configuration,
    Device,
    FailureReason,
    Measurement,
    Software,
    Value,
    Workload,
)

SCRIPTS = Path(__file__).parent / "scripts"
PATTERNS = str(SCRIPTS / "patterns.py")
QUICK = StoppingRule(relative_precision=0.5, min_samples=4, min_seconds=0.0, max_seconds=30.0)
ENDLESS = "1000000"

Run = Callable[..., Measurement]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(
        *command: str,
        configuration: dict[str, Value] | None = None,
        environment: dict[str, str] | None = None,
        limits: Limits | None = None,
        directory: Path | None = None,
        step_optimizer: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Measurement:
        trial = Trial(
            command=ScriptCommand(command),
            configuration=Configuration(configuration or {}),
            device=Device("cpu", "v", "m", "a", 1, 2),
            software=Software(),
            workload=Workload("step", "test"),
            name="t1",
            folder=tmp_path / "trial",
            rule=QUICK,
            limits=limits or Limits(deadline_seconds=120.0, hello_seconds=60.0),
            step_optimizer=step_optimizer,
            directory=directory,
        )
        full = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        return run_trial(trial, environment=full, on_progress=on_progress)

    return run


def test_a_plain_loop_sees_nothing_of_the_trial_but_its_environment(
    run: Run, tmp_path: Path
) -> None:
    other = tmp_path / "theirs"
    other.mkdir()
    (other / "sitecustomize.py").write_text("")
    progress: list[Progress] = []
    measured = run(
        sys.executable,
        PATTERNS,
        "plain",
        ENDLESS,
        "{trial_dir}",
        "{batch}",
        configuration={"batch": 8, "threads": 1},
        environment={"SEEN": str(tmp_path / "seen"), "PYTHONPATH": str(other)},
        directory=tmp_path,
        on_progress=progress.append,
    )
    assert measured.failure is None
    assert len(measured.samples) >= 4
    assert (measured.memory.resident_bytes or 0) > 1 << 20
    assert measured.ranks == 1
    assert measured.conditions["stop_reason"] == "precise"
    assert measured.conditions["calls_per_step"] == 1
    seen = json.loads((tmp_path / "seen").read_text())
    folder = str(tmp_path / "trial")
    assert seen["argv"] == [PATTERNS, "plain", ENDLESS, folder, "8"]
    assert (seen["file"], seen["path0"], seen["inject"]) == (PATTERNS, str(SCRIPTS), [])
    assert seen["sitecustomize"] == str(other / "sitecustomize.py")
    assert seen["environment"]["TUNE_TRIAL"] == "t1"
    assert seen["environment"]["TUNE_TRIAL_DIR"] == folder
    assert seen["environment"]["WANDB_MODE"] == "disabled"
    assert seen["threads"] == 1
    assert {p.phase for p in progress} <= {"starting", "importing", "warming up", "measuring"}


def test_critic_steps_of_a_module(run: Run) -> None:
    measured = run(sys.executable, "-m", "patterns", "gan", ENDLESS, directory=SCRIPTS)
    assert measured.failure is None
    assert measured.conditions["calls_per_step"] == 6


def test_one_optimizer_per_parameter_stepped_inside_backward(run: Run) -> None:
    measured = run(sys.executable, PATTERNS, "in_backward", ENDLESS)
    assert measured.failure is None
    assert measured.conditions["calls_per_step"] == 80


def test_skipped_steps_and_a_script_that_ends_early(run: Run) -> None:
    measured = run(sys.executable, PATTERNS, "scaler", "12")
    assert measured.failure is None
    assert measured.conditions["steps"] <= 11
    assert measured.conditions["stop_reason"] in ("ended", "precise")


def test_a_script_that_never_steps(run: Run) -> None:
    measured = run(sys.executable, PATTERNS, "nothing", "1")
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NO_STEPS
    assert "never called an optimizer's step" in measured.failure.detail


def test_a_script_without_torch(run: Run) -> None:
    measured = run(sys.executable, "-c", "print('done')")
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NO_STEPS
    assert "never imported torch" in measured.failure.detail


def test_an_interpreter_that_ignores_pythonpath(run: Run) -> None:
    measured = run(sys.executable, "-I", "-c", "print('done')")
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NOT_PROBED
    assert "-I makes the interpreter ignore PYTHONPATH" in measured.failure.detail


@pytest.mark.parametrize("command", [("echo", "done"), ("sleep", "60")])
def test_what_is_not_python_is_named(run: Run, command: tuple[str, ...]) -> None:
    measured = run(*command, limits=Limits(hello_seconds=0.5))
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NOT_PROBED
    assert f"`{' '.join(command)}`" in measured.failure.detail
    assert "isn't Python" in measured.failure.detail


def test_a_hang_meets_the_deadline(run: Run) -> None:
    measured = run(
        sys.executable, "-c", "import time; time.sleep(600)", limits=Limits(deadline_seconds=1.5)
    )
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.TIMEOUT
    assert "within 1.5 s" in measured.failure.detail


def test_a_crash_is_the_script_s_own(run: Run) -> None:
    measured = run(sys.executable, "-c", "raise ValueError('no such thing: 7')")
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.CRASH
    assert "no such thing: 7" in measured.failure.detail
    assert measured.failure.exit_code == 1
    assert measured.failure.output.startswith("Traceback")


LOOP = """
import gc, sys, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def broken(*_):
    raise RuntimeError("broken by the script")
def steps(count):
    for _ in range(count):
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
"""


def test_what_the_probe_cannot_look_at_costs_a_note_and_no_measurement(run: Run) -> None:
    code = "gc.get_objects = torch.get_num_threads = broken; steps(10**9)"
    measured = run(
        *(sys.executable, "-c", LOOP + code),
        configuration={"threads": 1},
        environment={"RANK": "blue", "WORLD_SIZE": ""},
    )
    assert measured.failure is None
    assert measured.ranks == 1
    notes = str(measured.conditions["notes"])
    assert "optimizers could not be counted: RuntimeError: broken by the script" in notes
    assert "threads could not be read back: RuntimeError" in notes
    facts = recognise_software(sys.executable).facts
    for name in ("python", "torch"):
        assert measured.conditions[name] == facts[name]
    assert measured.conditions["executable"] == Path(sys.executable).name
    assert measured.conditions["cuda_used"] is False


def test_a_probe_that_fails_is_the_reason_told(run: Run) -> None:
    code = "torch.distributed.is_available = broken; steps(20)"
    measured = run(sys.executable, "-c", LOOP + code)
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NO_STEPS
    assert "the probe failed in the script (RuntimeError: broken" in measured.failure.detail


def test_a_step_captured_in_a_cuda_graph_is_the_reason_told(run: Run) -> None:
    """Without a GPU, torch's answers stand in for one; its steps are real."""
    code = (
        "cuda = torch.cuda; capturing = False; cuda.is_initialized = lambda: True\n"
        "cuda.is_current_stream_capturing = lambda: capturing; cuda.synchronize = lambda: None\n"
        "cuda.mem_get_info = lambda: (1, 3)\n"
        "cuda.max_memory_allocated = cuda.max_memory_reserved = lambda: 1\n"
        "steps(3); capturing = True; steps(1)\n"
    )
    measured = run(sys.executable, "-c", LOOP + code)
    assert measured.failure is not None
    assert measured.failure.reason is FailureReason.NO_STEPS
    assert "captured in a CUDA graph" in measured.failure.detail


@pytest.mark.parametrize(
    ("program", "limits", "seconds"),
    [
        ("python3", Limits(), 30.0),
        ("python3", Limits(deadline_seconds=5.0), 5.0),
        ("torchrun", Limits(), 300.0),
        ("bash", Limits(hello_seconds=7.0), 7.0),
    ],
)
def test_a_launcher_has_until_the_deadline_to_start_its_python(
    program: str, limits: Limits, seconds: float
) -> None:
    assert limits.hello_within(ScriptCommand((program, "x"))) == seconds


def test_a_trial_folder_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trial").write_text("")
    with pytest.raises(MeasurementError, match=r"/trial can't be made: File exists"):
        run(sys.executable, "-c", "pass")


def test_a_missing_program_is_no_measurement(run: Run) -> None:
    with pytest.raises(MeasurementError, match="no-such-program-here"):
        run("no-such-program-here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "calls"),
    [
        ("accumulation", 1),
        ("subclass", 1),
        ("workers", 1),
        ("spawned", 1),
        ("forked_trainer", 1),
        ("executed", 1),
        ("compiled", 1),
        ("compiled_step", 1),
    ],
)
def test_other_ways_to_train(run: Run, pattern: str, calls: int) -> None:
    measured = run(sys.executable, PATTERNS, pattern, ENDLESS)
    assert measured.failure is None
    assert measured.conditions["calls_per_step"] == calls


@pytest.mark.slow
def test_the_override(run: Run) -> None:
    measured = run(sys.executable, PATTERNS, "gan", ENDLESS, step_optimizer=0)
    assert measured.failure is None
    assert measured.conditions["calls_per_step"] == 1


@pytest.mark.slow
def test_every_rank_of_torchrun_is_heard_and_ended(run: Run) -> None:
    measured = run(
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(PATTERNS, "distributed", ENDLESS),
    )
    assert measured.failure is None
    assert measured.ranks == 2
    assert measured.conditions["slowest_rank"] in (0, 1)


@pytest.mark.slow
def test_a_torch_without_global_hooks(run: Run, tmp_path: Path) -> None:
    """The way of torch 1.13, with the installed torch."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['_perfmodel_torch']._FIRST_WITH_HOOKS = (99, 0)\n"
    )
    for pattern, calls in (("gan", 6), ("subclass", 1)):
        measured = run(
            *(sys.executable, PATTERNS, pattern, ENDLESS),
            environment={"PYTHONPATH": str(tmp_path)},
        )
        assert measured.failure is None
        assert measured.conditions["calls_per_step"] == calls


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", os.environ.get("PERFMODEL_TEST_TORCHES", "").split())
def test_other_versions_of_torch(run: Run, interpreter: str) -> None:
    """PERFMODEL_TEST_TORCHES lists interpreters that have a torch of another version."""
    for pattern, calls in (("plain", 1), ("gan", 6), ("workers", 1)):
        measured = run(interpreter, PATTERNS, pattern, ENDLESS)
        assert measured.failure is None
        assert measured.conditions["calls_per_step"] == calls
