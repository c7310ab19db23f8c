"""Coordinates, contrasts and similarities of parameters."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.features import UNKNOWN, Axis, contrast_matrix, encode
from perfmodel.records import Configuration
from perfmodel.space import Parameter, Space

PARAMETERS = [
    Parameter("batch_size", (4, 8, 16, 32)),
    Parameter("threads", (1, 2)),
    Parameter("workers", (0, 1, 2)),
    Parameter("precision", ("fp32", "bf16")),
    Parameter("compile", (False, True)),
    Parameter("backend", ("a", "b", "c")),
    Parameter("only", (7,)),
]


@pytest.mark.parametrize(
    ("values", "asked", "expected"),
    [
        ((4, 8, 32), (4, 16, 64), (2, 4, 6)),
        ((0, 1, 4), (0, 1, 4, 2.5), (0, 1, 2, 1.5)),
        (("x", "y"), ("y", "x", "z"), (1, 0, UNKNOWN)),
        ((False, True), (True, False, 1), (1, 0, UNKNOWN)),
    ],
)
def test_coordinates(values: tuple, asked: tuple, expected: tuple) -> None:
    assert Axis.of(Parameter("p", values)).coordinates(asked).tolist() == list(expected)


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
def test_contrasts_are_centred_and_similarity_is_a_kernel(parameter: Parameter) -> None:
    axis = Axis.of(parameter)
    coordinates = axis.coordinates(parameter.values)
    contrasts = axis.contrasts(coordinates)
    assert contrasts.shape == (len(parameter.values), axis.contrast_count)
    assert np.allclose(contrasts.sum(axis=0), 0)
    similarity = axis.similarity(coordinates, coordinates)
    assert np.allclose(similarity, similarity.T)
    assert np.linalg.eigvalsh(similarity).min() > -1e-12
    assert np.allclose(np.diag(similarity), axis.self_similarity(coordinates))


def test_unknown_level_has_no_effect() -> None:
    axis = Axis.of(Parameter("backend", ("a", "b", "c")))
    assert not axis.contrasts(axis.coordinates(["d"])).any()
    assert (axis.similarity(axis.coordinates(["d"]), axis.coordinates(["a", "b"])) <= 0).all()


def test_value_of_another_kind_is_not_known() -> None:
    axis = Axis.of(Parameter("batch_size", (4, 8)))
    assert axis.knows(6)
    assert not axis.knows("many")
    assert not axis.knows(True)


def test_encode_has_a_column_per_parameter() -> None:
    space = Space(tuple(PARAMETERS))
    x = encode(space, space.configurations)
    assert x.shape == (len(space), len(PARAMETERS))
    assert len(np.unique(x, axis=0)) == len(space)
    assert contrast_matrix([Axis.of(p) for p in PARAMETERS], x).shape == (len(space), 8)
    assert encode(space, list[Configuration]()).shape == (0, len(PARAMETERS))
