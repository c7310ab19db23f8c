"""Configurations as numbers: one coordinate a parameter, and what the models derive from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.records import Value
from perfmodel.space import Parameter, Space

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

UNKNOWN = -1.0
"""Coordinate of a value that its (not numeric) parameter doesn't list."""

SMALLEST = 2.0**-64
"""Numbers are cut off here before their logarithm is taken."""

STEP_LENGTH = 1.25
"""Octaves (or ranks) over which neighbouring values of a numeric parameter behave alike."""

OWN_SHARE = 0.3
"""Share of a numeric value's deviation that it doesn't have in common with its neighbours."""


@dataclass(frozen=True)
class Axis:
    """One parameter as the models see it.

    A numeric parameter's coordinate is log2 of its value (the rank where a value is 0 or less),
    any other's is the position among its values.
    """

    name: str
    scale: Literal["log2", "rank", "level"]
    values: tuple[Value, ...]
    low: float
    high: float

    @classmethod
    def of(cls, parameter: Parameter) -> Axis:
        """The axis of a parameter."""
        name, values = parameter.name, parameter.values
        if not parameter.numeric:
            return cls(name, "level", values, 0.0, len(values) - 1.0)
        numbers = tuple(sorted(float(v) for v in values))
        if numbers[0] <= 0:
            return cls(name, "rank", numbers, 0.0, len(values) - 1.0)
        return cls(name, "log2", numbers, math.log2(numbers[0]), math.log2(numbers[-1]))

    @property
    def levels(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def numeric(self) -> bool:
        """Whether values between and outside of the given ones mean something."""
        return self.scale != "level"

    @property
    def smooth(self) -> bool:
        """Whether there are enough numeric values for a curve rather than a difference."""
        return self.numeric and self.levels > 2

    def knows(self, value: Value) -> bool:
        """Whether `value` has a coordinate here."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number if self.numeric else True

    def coordinates(self, values: Iterable[Value]) -> Floats:
        """Coordinates of `values`, which needn't be the parameter's own (see `knows`)."""
        if not self.numeric:
            place = {(type(v), v): float(i) for i, v in enumerate(self.values)}
            return np.array([place.get((type(v), v), UNKNOWN) for v in values], dtype=np.float64)
        numbers = np.array([float(v) for v in values], dtype=np.float64)
        if self.scale == "log2":
            logs: Floats = np.log2(np.maximum(numbers, SMALLEST))
            return logs
        given = np.array([float(v) for v in self.values])
        ranks: Floats = np.interp(numbers, given, np.arange(self.levels, dtype=np.float64))
        return ranks

    @property
    def contrast_count(self) -> int:
        """Columns of `contrasts`."""
        if self.levels == 1:
            return 0
        return 1 if self.numeric or self.levels == 2 else self.levels

    def contrasts(self, coordinates: Floats) -> Floats:
        """Columns (n, k) in which an effect is linear: a slope or difference, or one a level."""
        if self.levels == 1:
            return np.zeros((len(coordinates), 0))
        if self.numeric or self.levels == 2:
            middle, width = (self.low + self.high) / 2, self.high - self.low
            # Values far outside of the space (from history) must not outweigh all others.
            centred = np.clip((coordinates - middle) / width, -1.0, 1.0)
            known = self.numeric | (coordinates != UNKNOWN)
            return np.where(known, centred, 0.0)[:, None]
        same = coordinates[:, None] == np.arange(self.levels)
        return np.where(same.any(axis=1, keepdims=True), same - 1.0 / self.levels, 0.0)

    def similarity(self, a: Floats, b: Floats) -> Floats:
        """How alike (n, m) what happens at coordinates `a` and `b` is; 1 for the same value."""
        if self.levels == 1:
            return np.zeros((len(a), len(b)))
        if self.levels == 2:
            return 4.0 * self.contrasts(a) * self.contrasts(b).T
        same = a[:, None] == b
        if not self.numeric:
            return np.asarray((same * self.levels - 1.0) / (self.levels - 1.0), dtype=np.float64)
        near: Floats = np.exp(-0.5 * ((a[:, None] - b) / STEP_LENGTH) ** 2)
        alike: Floats = (1 - OWN_SHARE) * near + OWN_SHARE * same
        return alike

    def self_similarity(self, a: Floats) -> Floats:
        """The diagonal of `similarity(a, a)`."""
        if self.levels == 1:
            return np.zeros(len(a))
        return 4.0 * self.contrasts(a)[:, 0] ** 2 if self.levels == 2 else np.ones(len(a))


def axes(space: Space) -> tuple[Axis, ...]:
    """One axis a parameter, in the space's order."""
    return tuple(Axis.of(p) for p in space.parameters)


def encode(space: Space, configurations: Sequence[Mapping[str, Value]]) -> Floats:
    """Matrix (configurations, parameters) of coordinates."""
    columns = [a.coordinates(c[a.name] for c in configurations) for a in axes(space)]
    return np.stack(columns, axis=1)


def contrast_matrix(the_axes: Sequence[Axis], coordinates: Floats) -> Floats:
    """The contrasts of all axes side by side."""
    return np.concatenate(
        [axis.contrasts(coordinates[:, i]) for i, axis in enumerate(the_axes)], axis=1
    )
