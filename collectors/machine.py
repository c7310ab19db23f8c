"""What this machine reports of itself: device, software, and the conditions of a timing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from collectors.nvidia import (
    describe_gpu,
    driver_version,
    first_visible,
    gpu_conditions,
    open_nvml,
)
from collectors.processor import (
    available_cpus,
    clock_hertz,
    describe_processor,
    memory_bytes,
    memory_limit_bytes,
)
from perfmodel.errors import MeasurementError
from perfmodel.records import Device, Facts, Software, Value

INTERPRETER_DEADLINE_SECONDS = 30.0
"""Longest an interpreter may take to say which versions it has."""


def recognise_device(
    software: Software | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Device:
    """The device a script started here would use: the first visible NVIDIA GPU, else the CPU.

    With `software`, a torch built without CUDA means the CPU even beside a GPU. MeasurementError
    for a torch built for ROCm beside its driver: AMD GPUs can't be described here yet, and their
    timings must not be filed under the CPU.
    """
    if software is not None and "hip" in software.facts and _rocm(_environment(environment), root):
        raise MeasurementError(
            f"torch {software.facts['torch']} is built for AMD GPUs (ROCm), which can't be "
            "recognised yet; allowed: a torch for CUDA or for the CPU, or HIP_VISIBLE_DEVICES=-1 "
            "to run on the CPU",
            next_command="doctor --python INTERPRETER",
        )
    if software is None or "torch" not in software.facts or "cuda" in software.facts:
        with open_nvml() as nvml:
            handle = first_visible(nvml, _environment(environment)) if nvml else None
            if handle is not None:
                return describe_gpu(nvml, handle)
    return describe_processor(root)


def recognise_software(interpreter: str | None = None) -> Software:
    """The stack under `interpreter` (default: ours): Python, torch, triton, driver, host.

    The kernel's release is a condition of each timing instead: an update starts no new history.
    torch is looked up, never imported. MeasurementError if the interpreter can't be started or
    isn't Python 3.8 or later.
    """
    host = describe_processor()
    facts: dict[str, Value] = {
        **interpreter_versions(interpreter or sys.executable),
        "os": platform.system(),
        "host_cpu": host.model,
        "host_cores": host.units,
    }
    with open_nvml() as nvml:
        driver = driver_version(nvml) if nvml else None
    if driver:
        facts["driver"] = driver
    return Software(Facts(facts))


def machine_conditions(device: Device, *, environment: Mapping[str, str] | None = None) -> Facts:
    """Load, CPUs available and clocks now; on a GPU also what slows it and who else uses it."""
    found: dict[str, Value] = {
        "kernel": platform.release(),
        "load1": os.getloadavg()[0],
        "cpus_available": available_cpus(),
        "memory_bytes": memory_bytes(),
    }
    clock, limit = clock_hertz(), memory_limit_bytes()
    if clock is not None:
        found["cpu_clock_mhz"] = round(clock / 1e6)
    if limit is not None:
        found["memory_limit_bytes"] = limit
    if device.kind == "gpu":
        with open_nvml() as nvml:
            handle = first_visible(nvml, _environment(environment)) if nvml else None
            if handle is not None:
                found.update(gpu_conditions(nvml, handle))
    return Facts(found)


def interpreter_versions(interpreter: str) -> dict[str, str]:
    """Versions of Python, torch, its CUDA build and triton, as `interpreter` would import them."""
    script = Path(__file__).with_name("interpreter_facts.py")
    try:
        ended = subprocess.run(
            [interpreter, str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INTERPRETER_DEADLINE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise MeasurementError(
            f"interpreter {interpreter!r} can't be started: {error.strerror}; "
            "give the path of a Python 3.8 or later",
            next_command="doctor",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(
            f"interpreter {interpreter!r} didn't answer within "
            f"{INTERPRETER_DEADLINE_SECONDS:g} s; allowed: a Python 3.8 or later",
            next_command="doctor",
        ) from error
    # The last line: what a site module of the user's prints comes first.
    lines = ended.stdout.decode(errors="replace").splitlines()
    try:
        facts = json.loads(lines[-1])
        return {str(key): str(value) for key, value in facts.items()}
    except (IndexError, ValueError, AttributeError) as error:
        said = ended.stderr.decode(errors="replace").strip().splitlines() or lines or ["nothing"]
        raise MeasurementError(
            f"interpreter {interpreter!r} isn't a Python 3.8 or later: it ended with status "
            f"{ended.returncode} and said {said[-1][:200]!r}",
            next_command="doctor",
        ) from error


def _rocm(environment: Mapping[str, str], root: Path) -> bool:
    """Whether HIP may find a GPU: its driver is there and nothing hides its devices."""
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    hidden = any(environment.get(name) in ("", "-1") for name in names)
    return (root / "dev/kfd").exists() and not hidden


def _environment(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environment is None else environment
