"""What was asked and what was started: the records of studies and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perfmodel.errors import RecordError
from perfmodel.identity import content_address
from perfmodel.records import (
    Configuration,
    Device,
    Measurement,
    Prediction,
    Software,
    Workload,
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
    """A started run: what was chosen, what was predicted and, once known, what became of it.

    It is recorded when it starts and again whenever more is known, so that a killed `tune` loses
    nothing: its address is that of the start, and the rest is its outcome. `seconds` (wall time of
    the whole run) and `exit_code` are None while it runs, or if its end wasn't seen; `achieved`
    until it is measured, or if it made no step. Times are UTC ISO 8601.
    """

    study: Study
    configuration: Configuration
    command: tuple[str, ...]
    started_at: str
    seconds: float | None = None
    exit_code: int | None = None
    predicted: Prediction | None = None
    achieved: Measurement | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) != (self.exit_code is None):
            raise RecordError(
                f"a launch of {self.seconds!r} seconds with exit code {self.exit_code!r}; "
                "allowed: both (it ended) or neither"
            )

    @property
    def ended(self) -> bool:
        """Whether its end was seen."""
        return self.exit_code is not None

    def start_to_json(self) -> dict[str, Any]:
        """What is known when it starts, as a plain JSON value; the study by content address."""
        return {
            "study": self.study.address,
            "configuration": self.configuration.to_json(),
            "command": list(self.command),
            "started_at": self.started_at,
            "predicted": self.predicted.to_json() if self.predicted else None,
        }

    def outcome_to_json(self) -> dict[str, Any] | None:
        """What became of it, as a plain JSON value naming the launch; None if nothing is known."""
        if not self.ended and self.achieved is None:
            return None
        return {
            "launch": self.address,
            "seconds": self.seconds,
            "exit_code": self.exit_code,
            "achieved": self.achieved.address if self.achieved else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; study and achieved measurement by content address."""
        return {
            **self.start_to_json(),
            "seconds": self.seconds,
            "exit_code": self.exit_code,
            "achieved": self.achieved.address if self.achieved else None,
        }

    @cached_property
    def address(self) -> str:
        """Content address of the start: the same before, during and after the run."""
        return content_address("launch", self.start_to_json())
