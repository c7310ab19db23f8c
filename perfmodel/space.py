"""The space: parameters, their values and the constraints that make a configuration legal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perfmodel.errors import SpaceError
from perfmodel.expressions import Expression
from perfmodel.identity import content_address
from perfmodel.records import Configuration, Value

MAX_CONFIGURATIONS = 200_000
"""Largest product of value counts that is enumerated."""


@dataclass(frozen=True)
class Parameter:
    """A name and its distinct values, in the order the user gave them."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError(f"parameter {self.name!r} has no values; give at least one")
        keys = [(type(v), v) for v in self.values]
        if len(set(keys)) != len(keys):
            raise SpaceError(f"parameter {self.name!r} lists a value twice: {self.values}")
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(set(numbers)) != len(numbers):
            raise SpaceError(f"parameter {self.name!r} lists a number twice: {self.values}")

    @property
    def numeric(self) -> bool:
        """Whether every value is a number (booleans are not)."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)


@dataclass(frozen=True)
class Space:
    """A finite set of configurations: the product of the parameters, less what breaks a constraint.

    Constraints are expressions over the parameters (see `perfmodel.expressions`) that must be true.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [p.name for p in self.parameters]
        if not names:
            raise SpaceError("the space is empty: give at least one --vary NAME=VALUES")
        for name in names:
            if names.count(name) > 1:
                raise SpaceError(f"parameter {name!r} is given twice")
        if self.product_size > MAX_CONFIGURATIONS:
            raise SpaceError(
                f"the space has {self.product_size:,} combinations; allowed: "
                f"{MAX_CONFIGURATIONS:,}. Give fewer values"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(p.name for p in self.parameters)

    @property
    def product_size(self) -> int:
        """Number of combinations before constraints."""
        return math.prod(len(p.values) for p in self.parameters)

    @cached_property
    def _checks(self) -> tuple[Expression, ...]:
        return tuple(Expression(text, names=self.names) for text in self.constraints)

    def satisfies(self, configuration: Mapping[str, Value]) -> bool:
        """Whether `configuration` breaks no constraint (its values needn't be in the space)."""
        return all(bool(check.evaluate(configuration)) for check in self._checks)

    def __contains__(self, configuration: object) -> bool:
        """Whether each value is one of its parameter's and no constraint is broken."""
        return configuration in self._index

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self.configurations)

    def __len__(self) -> int:
        return len(self.configurations)

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """Every legal configuration, the last parameter varying fastest; SpaceError if none is."""
        values = (p.values for p in self.parameters)
        combinations = (dict(zip(self.names, c, strict=True)) for c in itertools.product(*values))
        legal = tuple(Configuration(c) for c in combinations if self.satisfies(c))
        if not legal:
            raise SpaceError(
                f"no configuration satisfies {' and '.join(map(repr, self.constraints))}: all "
                f"{self.product_size:,} combinations are ruled out. Loosen a --require"
            )
        return legal

    @cached_property
    def _index(self) -> dict[Configuration, int]:
        return {configuration: i for i, configuration in enumerate(self.configurations)}

    def index(self, configuration: Configuration) -> int:
        """Position in `configurations`; KeyError if it isn't legal."""
        return self._index[configuration]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {
            "parameters": [{"name": p.name, "values": list(p.values)} for p in self.parameters],
            "constraints": list(self.constraints),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        """Inverse of `to_json`; SpaceError on anything else."""
        try:
            parameters = tuple(Parameter(p["name"], tuple(p["values"])) for p in data["parameters"])
            return cls(parameters, tuple(data.get("constraints", ())))
        except (KeyError, TypeError) as error:
            raise SpaceError(f"not a space: {error!r}") from error

    @cached_property
    def address(self) -> str:
        """Content address."""
        return content_address("space", self.to_json())
