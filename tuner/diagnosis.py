"""What `tune doctor` finds out about this machine, and what to do about each problem."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from collectors.machine import machine_conditions, recognise_device, recognise_software
from collectors.script import runtime_parameters
from db.store import Store
from perfmodel import hardware
from perfmodel.errors import MeasurementError, PerfModelError
from perfmodel.records import Device, Software
from tuner.calibration import known_calibration
from tuner.quantities import bytes_text

PACKAGES = ("perfmodel", "tuner", "collectors", "db")
DISTRIBUTION = "perfmodel"
LOAD_LIMIT = 0.25
"""Load per CPU above which timings suffer."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; `advice` says what to do when it isn't ok."""

    name: str
    status: Literal["ok", "warning", "problem"]
    text: str
    advice: str = ""


def diagnose(database: str | None, interpreter: str) -> list[Finding]:
    """Everything, in the order a user should read it."""
    try:
        software = recognise_software(interpreter)
        device = recognise_device(software)
    except MeasurementError as error:
        advice = "name the Python your script runs under: --python"
        return [Finding("device", "problem", error.message, advice), *_packages(), _script()]
    return [
        *_device(device, software),
        _torch(software, interpreter),
        _compiler(),
        *_database(database, device, software),
        *_packages(),
        _script(),
        *_conditions(device),
        Finding(
            "parameters",
            "ok",
            "no placeholder needed: " + ", ".join(sorted(runtime_parameters.PARAMETERS)),
        ),
    ]


def _device(device: Device, software: Software) -> Iterator[Finding]:
    text = f"{device.model}, {device.units} {'cores' if device.kind == 'cpu' else 'SMs'}, "
    yield Finding("device", "ok", text + bytes_text(device.memory_bytes))
    if "driver" in software.facts:
        yield Finding("driver", "ok", str(software.facts["driver"]))
    facts = hardware.find(device.model)
    if facts is None and device.kind == "gpu":
        yield Finding(
            "peaks",
            "warning",
            f"{device.model!r} is not in hardware.toml",
            "predictions for it rest on measurements alone; add it with its data sheet",
        )


def _torch(software: Software, interpreter: str) -> Finding:
    if "torch" not in software.facts:
        return Finding(
            "torch",
            "problem",
            f"{interpreter} has no torch",
            "install torch there, or start your script with an interpreter that has it",
        )
    return Finding("torch", "ok", f"{software.facts['torch']} under {interpreter}")


def _compiler() -> Finding:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        return Finding(
            "compiler", "warning", "no C++ compiler", "torch.compile on the CPU needs one: g++"
        )
    shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return Finding("compiler", "ok", (shown.stdout.splitlines() or [compiler])[0])


def _database(url: str | None, device: Device, software: Software) -> Iterator[Finding]:
    try:
        with Store.open(url) as store:
            facts = store.info()
            calibration = known_calibration(store, device, software)
    except PerfModelError as error:
        advice = "give another with --db or TUNE_DB"
        yield Finding("database", "problem", error.message, error.next_command or advice)
        return
    counts = facts["counts"]
    held = f"schema {facts['schema_version']}, {counts['measurements']} measurements"
    yield Finding("database", "ok", f"{facts['url']}: {held}")
    if calibration is None:
        yield Finding(
            "calibration",
            "warning",
            "this device was not calibrated with this software",
            "the next `run` does it, or `doctor --calibrate` now",
        )
    else:
        yield Finding("calibration", "ok", str(calibration))


def _packages() -> Iterator[Finding]:
    owners = metadata.packages_distributions()
    for package in PACKAGES:
        found = sorted(set(owners.get(package, [])))
        where = _location(package)
        if found in ([DISTRIBUTION], []):
            yield Finding("package", "ok", f"{package}: {where}")
        else:
            yield Finding(
                "package",
                "problem",
                f"{package} is owned by {', '.join(found)}: {where}",
                f"uninstall the other, or install {DISTRIBUTION} into an environment of its own",
            )


def _location(package: str) -> str:
    module = sys.modules.get(package) or __import__(package)
    return str(Path(module.__file__ or "").parent)


def _script() -> Finding:
    owner = _owner_of_tune()
    if owner in (DISTRIBUTION, ""):
        return Finding("script", "ok", f"tune: {Path(sys.executable).parent / 'tune'}")
    return Finding(
        "script",
        "warning",
        f"`tune` beside this Python belongs to {owner}",
        "use `perfmodel` or `python -m tuner`: they are the same program",
    )


def _owner_of_tune() -> str:
    """The distribution whose files hold the `tune` script of this environment; "" if unknown."""
    script = Path(sys.executable).parent / "tune"
    declaring = [
        point.dist.name
        for point in metadata.entry_points(group="console_scripts", name="tune")
        if point.dist is not None
    ]
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return ""
    for name in declaring:
        for point in metadata.distribution(name).entry_points:
            if point.name == "tune" and point.value.partition(":")[0] in text:
                return name
    return declaring[0] if declaring else ""


def _conditions(device: Device) -> Iterator[Finding]:
    found = machine_conditions(device)
    load, cpus = float(found["load1"]), int(found["cpus_available"])
    if load > LOAD_LIMIT * cpus:
        yield Finding(
            "load",
            "warning",
            f"load average {load:.2f} on {cpus} CPUs",
            "other work distorts timings: stop it, or trust only the interleaved finals",
        )
    else:
        yield Finding("load", "ok", f"load average {load:.2f} on {cpus} CPUs")
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.exists() and (mode := governor.read_text().strip()) != "performance":
        yield Finding(
            "clock",
            "warning",
            f"the CPU clock governor is {mode!r}",
            "clocks vary with load; `cpupower frequency-set -g performance` steadies them",
        )
    slowed = {k: v for k, v in found.items() if "throttl" in k and v}
    if slowed:
        yield Finding(
            "clock", "warning", f"the GPU is slowed: {slowed}", "check cooling and its power limit"
        )
