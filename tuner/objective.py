"""What is better: samples per second, seconds per step, or peak memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from perfmodel.errors import UsageError
from perfmodel.expressions import Expression
from perfmodel.history import OBJECTIVES, Study
from perfmodel.records import Measurement, Value
from perfmodel.space import Space
from tuner.quantities import bytes_text, number_text, seconds_text


@dataclass(frozen=True)
class Objective:
    """An objective over a space.

    `samples` is the expression of samples per step and rank (empty: not known); `samples_global`
    says that it already counts every rank. Scores are natural logarithms, higher is better, so a
    difference of scores is a relative gain whatever the unit.
    """

    name: str
    samples: str
    names: tuple[str, ...]
    samples_global: bool = False

    @classmethod
    def of(cls, study: Study) -> Objective:
        """The objective a stored study was made with."""
        return cls(study.objective, study.samples, study.space.names, study.samples_global)

    @cached_property
    def _expression(self) -> Expression | None:
        return Expression(self.samples, names=self.names) if self.samples else None

    def samples_per_step(self, configuration: Mapping[str, Value], *, ranks: int = 1) -> float:
        """Samples of one step over all ranks; NaN when no expression is known."""
        if self._expression is None:
            return math.nan
        per_step = self._expression.number(configuration)
        return per_step if self.samples_global else per_step * ranks

    @property
    def size_names(self) -> tuple[str, ...]:
        """The parameters that the number of samples per step depends on."""
        return tuple(sorted(self._expression.names)) if self._expression else ()

    def value(self, measurement: Measurement) -> float:
        """The objective's value in its own unit; NaN for a failure or unobserved memory."""
        if not measurement.ok:
            return math.nan
        if self.name == "peak_memory":
            peak = measurement.memory.peak_bytes
            return math.nan if peak is None else float(peak)
        if self.name == "step_seconds":
            return measurement.seconds
        return self.throughput(measurement)

    def throughput(self, measurement: Measurement) -> float:
        """Samples per second, whatever the objective; NaN when it can't be known."""
        samples = self.samples_per_step(measurement.configuration, ranks=measurement.ranks)
        return samples / measurement.seconds

    def score(self, measurement: Measurement) -> float:
        """Logarithm of the value, signed so that higher is better; -inf for a failure."""
        value = self.value(measurement)
        if math.isnan(value):
            return -math.inf
        return math.log(value) if self.name == "samples_per_second" else -math.log(value)

    def text(self, value: float) -> str:
        """A value of this objective for people."""
        if math.isnan(value):
            return "-"
        if self.name == "samples_per_second":
            return f"{number_text(value)} samples/s"
        return bytes_text(value) if self.name == "peak_memory" else f"{seconds_text(value)}/step"


def objective_for(
    space: Space,
    *,
    name: str = "samples_per_second",
    samples: str = "",
    samples_global: bool = False,
) -> Objective:
    """Check and complete the options: samples per step default to the value of `batch_size`.

    UsageError for an unknown objective, for an expression that isn't a positive number somewhere
    in the space, and for samples_per_second without anything to count samples by.
    """
    if name not in OBJECTIVES:
        raise UsageError(f"--objective {name!r}; allowed: {', '.join(OBJECTIVES)}")
    if not samples and "batch_size" in space.names:
        samples = "batch_size"
    if name == "samples_per_second" and not samples:
        raise UsageError(
            "samples per second needs the samples of a step, and no parameter is called "
            "batch_size; give --samples EXPRESSION (a number such as --samples 32 will do when "
            "it doesn't vary) or --objective step_seconds"
        )
    objective = Objective(name, samples, space.names, samples_global)
    if samples:
        for configuration in space:
            objective.samples_per_step(configuration)
    return objective
