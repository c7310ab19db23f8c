"""The records everything else speaks: frozen values with JSON both ways and a content address.

An address is computed once for each object, and a measurement's is made of its parts' addresses:
whoever records many shares the device, software, workload and configuration between them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, TypeVar

from perfmodel.errors import RecordError
from perfmodel.identity import (
    canonical_json,
    content_address,
    observation_address,
    pack_samples,
    paired,
)

T = TypeVar("T")

Value = bool | int | float | str
"""One value of a parameter, a fact or a shape."""

WORKLOAD_KINDS = ("kernel", "operator", "step")
OUTPUT_CHARACTERS = 8192
"""What a failure keeps of a process's output: its end."""
MEMORY_KEYS = ("allocated_bytes", "reserved_bytes", "device_bytes", "resident_bytes")


def value_text(value: Value) -> str:
    """A value as it is written on a command line: booleans are `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalars(name: str, items: Mapping[str, Any]) -> dict[str, Value]:
    """Check that `items` maps strings to finite scalars; returned sorted by key."""
    checked: dict[str, Value] = {}
    for key in sorted(items):
        value = items[key]
        if not isinstance(key, str) or not isinstance(value, bool | int | float | str):
            raise RecordError(f"{name}[{key!r}] is {value!r}; allowed: bool, int, float, str")
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(f"{name}[{key!r}] is {value!r}; allowed: finite numbers")
        checked[key] = value
    return checked


class Facts(Mapping[str, Value]):
    """An immutable, hashable mapping of names to scalars, ordered by name."""

    def __init__(self, items: Mapping[str, Any] | None = None, /, **more: Value) -> None:
        self._items = _scalars(type(self).__name__, {**(items or {}), **more})
        # The type of a value is part of it: 1, 1.0 and True are three configurations.
        self._hash = hash(tuple((k, type(v), v) for k, v in self._items.items()))

    def __getitem__(self, key: str) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Facts):
            return NotImplemented
        return self._hash == other._hash and self.canonical == other.canonical

    @cached_property
    def canonical(self) -> str:
        """Canonical JSON: equal for equal facts only."""
        return canonical_json(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def __str__(self) -> str:
        return " ".join(f"{k}={value_text(v)}" for k, v in self._items.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._items,))

    def to_json(self) -> dict[str, Value]:
        """The mapping as a plain dict, sorted by name."""
        return dict(self._items)


class Configuration(Facts):
    """How a workload is run: one value for each parameter of a space."""

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("configuration", self.to_json())


@dataclass(frozen=True)
class Device:
    """One accelerator or CPU, with facts that don't change.

    `model` is the canonical name of hardware.toml (or the CPU's own name), `memory_bytes` what the
    device reports, `units` the number of streaming multiprocessors, compute units or CPU cores.
    """

    kind: Literal["cpu", "gpu"]
    vendor: str
    model: str
    architecture: str
    memory_bytes: int
    units: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """Inverse of `to_json`; RecordError on a missing or foreign field."""
        return _build(cls, data)

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("device", self.to_json())


@dataclass(frozen=True)
class Software:
    """The stack a timing was taken under: torch, python, driver, compiler versions, host facts."""

    facts: Facts = field(default_factory=Facts)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {"facts": self.facts.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Software:
        """Inverse of `to_json`."""
        return _build(cls, {"facts": Facts(data.get("facts", {}))})

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("software", self.to_json())


@dataclass(frozen=True)
class Workload:
    """What is computed, without how: kind, name, and parameters (shapes, dtypes, a command)."""

    kind: str
    name: str
    parameters: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        if self.kind not in WORKLOAD_KINDS:
            raise RecordError(f"workload kind {self.kind!r}; allowed: {', '.join(WORKLOAD_KINDS)}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {"kind": self.kind, "name": self.name, "parameters": self.parameters.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Inverse of `to_json`."""
        return _build(cls, {**data, "parameters": Facts(data.get("parameters", {}))})

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("workload", self.to_json())


class FailureReason(StrEnum):
    """Why a measurement has no time."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"
    WRONG_RESULT = "wrong_result"
    CRASH = "crash"
    NO_STEPS = "no_steps"
    NOT_PROBED = "not_probed"


@dataclass(frozen=True)
class Failure:
    """A failure is data: its reason, one line of detail, exit code, last lines printed.

    Only the last OUTPUT_CHARACTERS of `output` are kept.
    """

    reason: FailureReason
    detail: str = ""
    exit_code: int | None = None
    output: str = ""

    def __post_init__(self) -> None:
        # Here, so that the record is the same before and after any store or file.
        object.__setattr__(self, "detail", paired(self.detail))
        object.__setattr__(self, "output", paired(self.output)[-OUTPUT_CHARACTERS:])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**kept, "reason": str(self.reason)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Inverse of `to_json`; RecordError on an unknown reason."""
        try:
            reason = FailureReason(data["reason"])
        except (KeyError, ValueError) as error:
            allowed = ", ".join(FailureReason)
            raise RecordError(
                f"failure reason {data.get('reason')!r}; allowed: {allowed}"
            ) from error
        return _build(cls, {**data, "reason": reason})


@dataclass(frozen=True)
class Memory:
    """Peak bytes of one rank (the largest over ranks); None where it wasn't observed.

    allocated and reserved are the CUDA allocator's; device is what the driver reports for the whole
    device; resident is the process's peak resident set on the host.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    resident_bytes: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """What limits the run: reserved bytes on a GPU, the resident set on a CPU."""
        return self.reserved_bytes if self.reserved_bytes is not None else self.resident_bytes

    def to_json(self) -> dict[str, int | None]:
        """Plain JSON value."""
        return {key: getattr(self, key) for key in MEMORY_KEYS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        """Inverse of `to_json`."""
        return _build(cls, data)


@dataclass(frozen=True)
class Measurement:
    """What was observed: raw samples (seconds per step, kernel or operator call), or a failure.

    `conditions` holds what surrounded the timing (load average, clock, cost of the trial in
    seconds, interleaving round); `measured_at` is UTC ISO 8601 with microseconds, which keeps
    repeats apart. Statistics are properties of the samples and never stored.
    """

    device: Device
    software: Software
    workload: Workload
    configuration: Configuration
    measured_at: str
    samples: tuple[float, ...] = ()
    memory: Memory = field(default_factory=Memory)
    failure: Failure | None = None
    ranks: int = 1
    conditions: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        if bool(self.samples) == (self.failure is not None):
            raise RecordError("a measurement has samples or a failure, one of the two")
        for sample in self.samples:
            if not (isinstance(sample, float) and math.isfinite(sample) and sample > 0):
                raise RecordError(f"sample {sample!r}; allowed: finite positive seconds")
        if self.ranks < 1:
            raise RecordError(f"ranks {self.ranks!r}; allowed: 1 or more")

    @property
    def ok(self) -> bool:
        """Whether it has a time."""
        return self.failure is None

    @cached_property
    def seconds(self) -> float:
        """Median of the samples; NaN for a failure."""
        return statistics.median(self.samples) if self.samples else math.nan

    @cached_property
    def spread(self) -> float:
        """Interquartile range / median of the samples; NaN below two samples."""
        if len(self.samples) < 2:
            return math.nan
        quartiles = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (quartiles[2] - quartiles[0]) / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value, the parts inlined."""
        return {
            "device": self.device.to_json(),
            "software": self.software.to_json(),
            "workload": self.workload.to_json(),
            "configuration": self.configuration.to_json(),
            "measured_at": self.measured_at,
            "samples": list(self.samples),
            "memory": self.memory.to_json(),
            "failure": self.failure.to_json() if self.failure else None,
            "ranks": self.ranks,
            "conditions": self.conditions.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_json`; RecordError names what is wrong."""
        try:
            parts = {
                "device": Device.from_json(data["device"]),
                "software": Software.from_json(data["software"]),
                "workload": Workload.from_json(data["workload"]),
                "configuration": Configuration(data["configuration"]),
                "samples": tuple(float(s) for s in data["samples"]),
                "memory": Memory.from_json(data["memory"]),
                "failure": Failure.from_json(data["failure"]) if data["failure"] else None,
                "conditions": Facts(data["conditions"]),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"not a measurement: {error!r}") from error
        return _build(cls, {**data, **parts})

    @cached_property
    def address(self) -> str:
        """Content address: SHA-256 of seven lines, each ended by a newline, and the samples.

        The lines: the word `measurement`; the addresses of device, software, workload and
        configuration; canonical JSON of [measured_at, ranks, [memory by MEMORY_KEYS], failure],
        where failure is null or [reason, detail, exit_code, output]; canonical JSON of the
        conditions. The samples follow as little-endian float64.
        """
        failure, memory = self.failure, self.memory
        head = (
            self.measured_at,
            self.ranks,
            [getattr(memory, key) for key in MEMORY_KEYS],
            failure and (failure.reason, failure.detail, failure.exit_code, failure.output),
        )
        return observation_address(
            (
                self.device.address,
                self.software.address,
                self.workload.address,
                self.configuration.address,
            ),
            (canonical_json(head), self.conditions.canonical),
            pack_samples(self.samples),
        )


@dataclass(frozen=True)
class Prediction:
    """Seconds per step (and peak bytes, if known) with a 90 % interval.

    `extrapolating` says that the configuration lies outside of what was measured; `calibrated`
    that the device's sustained speed was measured.
    """

    seconds: float
    low: float
    high: float
    peak_bytes: float | None = None
    extrapolating: bool = False
    calibrated: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prediction:
        """Inverse of `to_json`."""
        return _build(cls, data)


def _build(cls: type[T], data: Mapping[str, Any]) -> T:
    """Call a record's constructor; a missing or foreign field is a RecordError."""
    try:
        return cls(**data)
    except (TypeError, AttributeError) as error:
        raise RecordError(f"not a {cls.__name__.lower()}: {error}") from error
