"""The runtime parameters, which need no placeholder in the command, and how each is applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from collectors.processor import available_cpus
from perfmodel.errors import UsageError
from perfmodel.records import Value


@dataclass(frozen=True)
class RuntimeParameter:
    """How one is applied: environment variables, and a setting of the probe where none exists."""

    meaning: str
    allowed: str
    accepts: Callable[[Value], bool]
    environment: Callable[[Value], dict[str, str]] = lambda value: {}
    setting: bool = False
    present: Callable[[Mapping[str, str]], Value | None] = lambda environment: None
    """What holds today in a process of that environment, None if that can't be told."""


def _is_count(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024


def _is_boolean(value: Value) -> bool:
    return isinstance(value, bool)


def _one_of(choices: Collection[str]) -> Callable[[Value], bool]:
    return lambda value: value in choices


_COUNT = "whole numbers from 1 to 1024"
_BOOLEAN = "true, false"
_PRECISIONS = ("highest", "high", "medium")
_ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    "collecting": "garbage_collection_threshold:0.8",
}
_BINDINGS = ("false", "close", "spread")


def _threads(value: Value) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(value), "MKL_NUM_THREADS": str(value)}


def _retained(value: Value) -> dict[str, str]:
    # glibc hands large blocks back at every free; keeping them saves the page faults of each step.
    # Setting them even to their defaults ends their adaptation, so "false" sets none.
    kept = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
    return kept if value else {}


def _present_threads(environment: Mapping[str, str]) -> Value:
    given = environment.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(given) if given.isdigit() else available_cpus()


PARAMETERS: dict[str, RuntimeParameter] = {
    "threads": RuntimeParameter(
        "threads of one operator on the CPU",
        _COUNT,
        _is_count,
        _threads,
        setting=True,
        present=_present_threads,
    ),
    "interop_threads": RuntimeParameter(
        "operators running side by side on the CPU", _COUNT, _is_count, setting=True
    ),
    "matmul_precision": RuntimeParameter(
        "precision of float32 matrix products",
        ", ".join(_PRECISIONS),
        _one_of(_PRECISIONS),
        setting=True,
        present=lambda environment: "highest",
    ),
    "cudnn_benchmark": RuntimeParameter(
        "whether cuDNN tries its algorithms first",
        _BOOLEAN,
        _is_boolean,
        setting=True,
        present=lambda environment: False,
    ),
    "flush_denormal": RuntimeParameter(
        "whether the CPU takes denormal numbers for 0",
        _BOOLEAN,
        _is_boolean,
        setting=True,
        present=lambda environment: False,
    ),
    "cuda_allocator": RuntimeParameter(
        "how CUDA memory is handed out",
        ", ".join(_ALLOCATORS),
        _one_of(_ALLOCATORS),
        lambda value: {"PYTORCH_CUDA_ALLOC_CONF": _ALLOCATORS[str(value)]},
    ),
    "cuda_connections": RuntimeParameter(
        "hardware queues of a CUDA device",
        "whole numbers from 1 to 32",
        lambda value: _is_count(value) and int(value) <= 32,
        lambda value: {"CUDA_DEVICE_MAX_CONNECTIONS": str(value)},
    ),
    "thread_binding": RuntimeParameter(
        "how OpenMP binds threads to cores",
        ", ".join(_BINDINGS),
        _one_of(_BINDINGS),
        lambda value: {"OMP_PROC_BIND": str(value)},
    ),
    "huge_pages": RuntimeParameter(
        "whether CPU tensors ask for transparent huge pages",
        _BOOLEAN,
        _is_boolean,
        lambda value: {"THP_MEM_ALLOC_ENABLE": "1" if value else "0"},
        present=lambda environment: environment.get("THP_MEM_ALLOC_ENABLE", "0") == "1",
    ),
    "retain_memory": RuntimeParameter(
        "whether freed CPU memory is kept for reuse instead of handed back",
        _BOOLEAN,
        _is_boolean,
        _retained,
        present=lambda environment: False,
    ),
}


def check(name: str, values: Collection[Value]) -> None:
    """UsageError for a name that is none of ours, or a value that isn't allowed."""
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise UsageError(f"runtime parameter {name!r}; allowed: {', '.join(sorted(PARAMETERS))}")
    for value in values:
        if not parameter.accepts(value):
            raise UsageError(f"{name}={value!r}; allowed: {parameter.allowed}")


def present(name: str, environment: Mapping[str, str]) -> Value | None:
    """What the runtime parameter is today, for a script started in `environment` unchanged."""
    return PARAMETERS[name].present(environment)


def split(
    configuration: Mapping[str, Value], *, placeholders: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, Value]]:
    """The environment and the probe's settings of a configuration's runtime parameters.

    A parameter that the command takes through a placeholder is the script's own business.
    """
    environment: dict[str, str] = {}
    settings: dict[str, Value] = {}
    for name, value in configuration.items():
        parameter = PARAMETERS.get(name)
        if parameter is None or name in placeholders:
            continue
        check(name, (value,))
        environment.update(parameter.environment(value))
        if parameter.setting:
            settings[name] = value
    return environment, settings
