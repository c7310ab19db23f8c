"""Other people's kinds of scripts, run unmodified: is a step what its author would call a step?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.jobs import ROOT, settle
from benchmarks.report import Options, Report, Row
from collectors.clock import StoppingRule
from perfmodel.records import Measurement

SCRIPTS = ROOT / "tests" / "scripts" / "training"
PAUSE_SECONDS = 0.04
"""Each script sleeps that long per micro-batch, far longer than it computes."""

STEPS = 400
MOST = 1.8
"""Measured step / sleep in it, at most: 2 would be two steps taken for one."""


@dataclass(frozen=True)
class Script:
    """What to run, what must be installed for it, and what a step of it holds."""

    name: str
    words: tuple[str, ...]
    requires: str = "torch"
    pauses: int = 1
    calls: int = 1
    ranks: int = 1

    def command(self, interpreter: str) -> tuple[str, ...]:
        """The whole command line."""
        return (interpreter, *self.words)


_FLAGS = ("--steps", str(STEPS), "--pause", str(PAUSE_SECONDS))
_PLAIN = (str(STEPS), str(PAUSE_SECONDS))
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

SCRIPTS_TABLE = (
    Script("plain_loop", ("plain_loop.py", *_PLAIN)),
    Script("module", ("-m", "packaged", *_PLAIN)),
    Script("accumulating_with_workers", ("accumulating.py", *_FLAGS), pauses=4),
    Script("two_optimizers", ("two_optimizers.py", *_FLAGS), calls=4),
    Script("optimizers_in_backward", ("in_backward.py", *_FLAGS), calls=4),
    Script("compiled", ("compiled_loop.py", *_FLAGS)),
    Script("torchrun_gloo", (*_TORCHRUN, "ddp_loop.py", *_FLAGS), ranks=2),
    Script("hf_trainer", ("hf_trainer.py", *_FLAGS), "transformers", pauses=2),
    Script("lightning", ("lightning_module.py", *_FLAGS), "lightning"),
    Script("accelerate", ("accelerate_loop.py", *_FLAGS), "accelerate", pauses=2),
)


def measure_third_party(options: Options, report: Report) -> None:
    """A row per script: 1 if it was timed and a step is what it should be."""
    settle()
    for script in SCRIPTS_TABLE:
        name = f"scripts/{script.name}"
        if not options.wants(name):
            continue
        metric = "1 if run unmodified and its steps count right"
        if not installed(script.requires, sys.executable):
            report.note(f"{name}: {script.requires} isn't installed; pip install -e '.[slow]'")
            report.add(Row(name, metric, None, target=1, met=False))
            continue
        wrong = complaints(script, measure_script(script, sys.executable), timed=True)
        report.add(Row(name, metric, float(not wrong), target=1, met=not wrong))
        for text in wrong:
            report.note(f"{name}: {text}")


def installed(module: str, interpreter: str) -> bool:
    """Whether `interpreter` would find `module`."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)"
    return subprocess.run([interpreter, "-c", code, module], check=False).returncode == 0


def measure_script(script: Script, interpreter: str) -> Measurement:
    """One trial of the script under `interpreter`."""
    from collectors.machine import recognise_device, recognise_software
    from collectors.script.command import ScriptCommand, script_workload
    from collectors.script.runner import Limits, Trial, run_trial
    from perfmodel.records import Configuration

    command = ScriptCommand(script.command(interpreter))
    software = recognise_software(interpreter)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return run_trial(
            Trial(
                command=command,
                configuration=Configuration({"threads": 1}),
                device=recognise_device(software),
                software=software,
                workload=script_workload(command),
                name="1",
                folder=Path(folder),
                rule=StoppingRule(max_seconds=3.0),
                limits=Limits(deadline_seconds=120.0, hello_seconds=60.0),
                directory=SCRIPTS,
            )
        )


def complaints(script: Script, measurement: Measurement, *, timed: bool) -> list[str]:
    """What is wrong with the measurement, in words; `timed` says to hold the time from above too.

    From below a time is certain on any machine: no step is shorter than the sleep in it.
    """
    if measurement.failure is not None:
        return [f"{measurement.failure.reason}: {measurement.failure.detail}"]
    found = []
    calls = measurement.conditions["calls_per_step"]
    if calls != script.calls:
        found.append(f"{calls} optimizer calls per step; expected {script.calls}")
    if measurement.ranks != script.ranks:
        found.append(f"{measurement.ranks} ranks; expected {script.ranks}")
    ratio = measurement.seconds / (script.pauses * PAUSE_SECONDS)
    if ratio < 0.99 or (timed and ratio > MOST):
        found.append(f"a step of {measurement.seconds:.3f} s is {ratio:.2f} times the sleep in it")
    return found
