"""Spaces: enumeration, constraints, limits."""

import json

import pytest

from perfmodel.errors import ExpressionError, SpaceError
from perfmodel.records import Configuration
from perfmodel.space import MAX_CONFIGURATIONS, Parameter, Space

BATCH = Parameter("batch_size", (8, 16, 32, 64))
ACCUMULATION = Parameter("accumulation", (1, 2, 4, 8))


def test_constraints_leave_the_legal_ones() -> None:
    space = Space((BATCH, ACCUMULATION), ("batch_size*accumulation==64",))
    assert len(space) == 4
    assert all(c["batch_size"] * c["accumulation"] == 64 for c in space)
    assert Configuration(batch_size=8, accumulation=8) in space
    assert Configuration(batch_size=8, accumulation=1) not in space
    assert Configuration(batch_size=8.0, accumulation=8) not in space
    assert [space.index(c) for c in space] == [0, 1, 2, 3]


def test_the_last_parameter_varies_fastest() -> None:
    first = list(Space((BATCH, ACCUMULATION)))[:5]
    assert [c["accumulation"] for c in first] == [1, 2, 4, 8, 1]


def test_json_both_ways() -> None:
    space = Space((BATCH, Parameter("p", ("fp32", True, 0.5))), ("batch_size > 8",))
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert again == space
    assert again.address == space.address


def test_what_is_refused() -> None:
    with pytest.raises(SpaceError, match="no values"):
        Parameter("x", ())
    with pytest.raises(SpaceError, match="twice"):
        Parameter("x", (1, 2, 1))
    with pytest.raises(SpaceError, match="twice"):
        Space((BATCH, BATCH))
    with pytest.raises(SpaceError, match="empty"):
        Space(())
    with pytest.raises(SpaceError, match="all 4 combinations are ruled out"):
        Space((BATCH,), ("batch_size > 100",)).configurations  # noqa: B018
    with pytest.raises(ExpressionError, match="unknown name 'batch'"):
        Space((BATCH,), ("batch > 1",)).configurations  # noqa: B018
    with pytest.raises(SpaceError, match=f"{MAX_CONFIGURATIONS:,}"):
        Space(tuple(Parameter(f"p{i}", tuple(range(100))) for i in range(5)))
    with pytest.raises(SpaceError, match="not a space"):
        Space.from_json({"parameters": [{"name": "x"}]})


def test_one_and_true_are_two_values() -> None:
    assert len(Space((Parameter("x", (1, True, "1")),))) == 3
    with pytest.raises(SpaceError, match="twice"):
        Parameter("x", (1, 1.0))
