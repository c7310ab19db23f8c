"""What was asked and what was started: the records of studies and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perfmodel.errors import RecordError
from perfmodel.records import (
    Configuration,
    Device,
    Measurement,
    Prediction,
    Software,
    Workload,
    content_address,
)
from perfmodel.space import Space

OBJECTIVES = ("samples_per_second", "step_seconds", "peak_memory")


@dataclass(frozen=True)
class Study:
    """One search over a space for one workload on one device under one software.

    Its trials are the measurements of that workload, device and software whose configuration lies
    in the space; so nothing else has to be kept. `samples` is the expression of samples per step,
    `samples_global` whether it counts all ranks already.
    """

    device: Device
    software: Software
    workload: Workload
    space: Space
    objective: str
    samples: str
    samples_global: bool = False

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise RecordError(f"objective {self.objective!r}; allowed: {', '.join(OBJECTIVES)}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value, the parts inlined."""
        return {
            "device": self.device.to_json(),
            "software": self.software.to_json(),
            "workload": self.workload.to_json(),
            "space": self.space.to_json(),
            "objective": self.objective,
            "samples": self.samples,
            "samples_global": self.samples_global,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Study:
        """Inverse of `to_json`; RecordError on a missing field."""
        try:
            return cls(
                device=Device.from_json(data["device"]),
                software=Software.from_json(data["software"]),
                workload=Workload.from_json(data["workload"]),
                space=Space.from_json(data["space"]),
                objective=data["objective"],
                samples=data["samples"],
                samples_global=data["samples_global"],
            )
        except KeyError as error:
            raise RecordError(f"not a study: {error!r}") from error

    @cached_property
    def address(self) -> str:
        """Content address: the same question asked again is the same study."""
        return content_address("study", self.to_json())

    @property
    def name(self) -> str:
        """Optuna's study name: the workload's name and the start of the address."""
        return f"{self.workload.name}-{self.address[:12]}"


@dataclass(frozen=True)
class Launch:
    """A started run: what was chosen, what was predicted and what it reached.

    `achieved` is None when the run made no step. Times are UTC ISO 8601; `seconds` is the wall
    time of the whole run.
    """

    study: Study
    configuration: Configuration
    command: tuple[str, ...]
    started_at: str
    seconds: float
    exit_code: int
    predicted: Prediction | None = None
    achieved: Measurement | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; study and achieved measurement by content address."""
        return {
            "study": self.study.address,
            "configuration": self.configuration.to_json(),
            "command": list(self.command),
            "started_at": self.started_at,
            "seconds": self.seconds,
            "exit_code": self.exit_code,
            "predicted": self.predicted.to_json() if self.predicted else None,
            "achieved": self.achieved.address if self.achieved else None,
        }

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("launch", self.to_json())
