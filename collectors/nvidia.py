"""NVIDIA GPUs through the driver's management library (NVML), which needs no CUDA and no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from collectors.processor import nominal_bytes
from perfmodel.hardware import canonical_model, clean, find
from perfmodel.records import Device, Value

# CUDA cores of one multiprocessor by compute capability; NVML counts cores, the world counts SMs.
_CORES_PER_UNIT = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_CORES_PER_UNIT_ELSE = 128

# A board whose memory is off by more is a variant under the same name, not the model we know.
_MEMORY_TOLERANCE = 0.15

_CLOCK_EVENTS = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


@contextmanager
def open_nvml() -> Iterator[Any | None]:
    """The pynvml module, initialised, or None where there is no NVIDIA driver to talk to."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(nvml: Any, function: str, *arguments: Any) -> Any | None:
    """The driver's answer, or None: not supported, not permitted, or unknown to this version."""
    try:
        answer = getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def first_visible(nvml: Any, environment: Mapping[str, str]) -> Any | None:
    """Handle of the GPU (or MIG instance) that CUDA would call device 0 in `environment`."""
    gpus = _in_cuda_order(nvml, environment)
    # CUDA stops at the first entry that names no device, so only the first one counts here.
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if wanted.startswith("MIG-"):
        return ask(nvml, "nvmlDeviceGetHandleByUUID", wanted)
    if wanted.startswith("GPU-"):
        gpus = [g for g in gpus if str(ask(nvml, "nvmlDeviceGetUUID", g)).startswith(wanted)]
        wanted = "0"
    if not wanted.isdigit():
        return None
    # A GPU in MIG mode shows its first instance in its place, or nothing while it has none.
    shown = [s for s in (_shown(nvml, gpu) for gpu in gpus) if s is not None]
    return shown[int(wanted)] if int(wanted) < len(shown) else None


def describe_gpu(nvml: Any, handle: Any) -> Device:
    """The facts of one GPU or MIG instance; what the driver won't say comes from hardware.toml."""
    board = _board(nvml, handle)
    name = clean(ask(nvml, "nvmlDeviceGetName", board) or "NVIDIA GPU")
    facts = find(name)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", board)
    total = int(memory.total) if memory else (facts.memory_bytes if facts else 0)
    if facts and abs(total / facts.memory_bytes - 1) > _MEMORY_TOLERANCE:
        facts = None
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", board)
    units = _units(nvml, board, capability) or (facts.units if facts else None) or 0
    model = facts.model if facts else name
    if board is not handle:
        model, total, units = _slice(nvml, handle, model)
    architecture = f"sm_{capability[0]}{capability[1]}" if capability else None
    return Device(
        kind="gpu",
        vendor="NVIDIA",
        model=model,
        architecture=architecture or (facts.architecture if facts else "unknown"),
        memory_bytes=nominal_bytes(total),
        units=units,
    )


def driver_version(nvml: Any) -> str | None:
    """Version of the kernel driver."""
    answer = ask(nvml, "nvmlSystemGetDriverVersion")
    return str(answer) if answer else None


def gpu_conditions(nvml: Any, handle: Any) -> dict[str, Value]:
    """Clock, temperature, what holds the clock down, and other processes on the GPU."""
    board = _board(nvml, handle)
    found: dict[str, Value] = {}
    # The numbers are NVML_CLOCK_SM and NVML_TEMPERATURE_GPU, part of its stable interface.
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    numbers = {
        "gpu_memory_bytes": memory.total if memory else None,
        "gpu_clock_mhz": ask(nvml, "nvmlDeviceGetClockInfo", board, 1),
        "gpu_clock_max_mhz": ask(nvml, "nvmlDeviceGetMaxClockInfo", board, 1),
        "gpu_temperature_celsius": ask(nvml, "nvmlDeviceGetTemperature", board, 0),
    }
    found.update({key: int(value) for key, value in numbers.items() if value is not None})
    events = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", board)
    if events is None:
        events = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", board)
    if events is not None:
        reasons = [name for bit, name in _CLOCK_EVENTS.items() if events & bit]
        found["gpu_throttle_reasons"] = ",".join(reasons)
    processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", board)
    if processes is not None:
        found["gpu_other_processes"] = sum(p.pid != os.getpid() for p in processes)
    return found


def _in_cuda_order(nvml: Any, environment: Mapping[str, str]) -> list[Any]:
    """Handles of all GPUs as CUDA counts them: fastest first unless told to go by bus."""
    count = ask(nvml, "nvmlDeviceGetCount") or 0
    handles = [ask(nvml, "nvmlDeviceGetHandleByIndex", i) for i in range(count)]
    gpus = [handle for handle in handles if handle is not None]
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return gpus
    return sorted(gpus, key=lambda gpu: -_speed(nvml, gpu))


def _speed(nvml: Any, gpu: Any) -> int:
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", gpu) or 0
    return int(cores * (ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, 1) or 0))


def _shown(nvml: Any, gpu: Any) -> Any | None:
    mode = ask(nvml, "nvmlDeviceGetMigMode", gpu)
    if not mode or not mode[0]:
        return gpu
    for index in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
        instance = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        if instance is not None:
            return instance
    return None


def _board(nvml: Any, handle: Any) -> Any:
    """The GPU that a MIG instance is cut from; any other handle itself."""
    if not ask(nvml, "nvmlDeviceIsMigDeviceHandle", handle):
        return handle
    board = ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    return handle if board is None else board


def _units(nvml: Any, board: Any, capability: Any | None) -> int | None:
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", board)
    if not cores or not capability:
        return None
    return int(cores) // _CORES_PER_UNIT.get(tuple(capability), _CORES_PER_UNIT_ELSE)


def _slice(nvml: Any, instance: Any, model: str) -> tuple[str, int, int]:
    """Model, memory and units of a MIG instance, which is a device of its own."""
    name = clean(ask(nvml, "nvmlDeviceGetName", instance) or "")
    _, found, profile = name.partition(" MIG ")
    attributes = ask(nvml, "nvmlDeviceGetAttributes", instance)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", instance)
    units = int(attributes.multiprocessorCount) if attributes else 0
    suffix = profile if found else f"{units} SMs"
    return f"{canonical_model(model)} MIG {suffix}", int(memory.total) if memory else 0, units
