"""Trees as flat arrays: the same as XGBoost's own, used only when they earn it, checked."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from perfmodel.predictors.boosted import PARAMETERS, TREES, Forest, earned, grow


def data(count: int, *, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, size=(count, 3)).astype(float)
    return x, np.where((x[:, 0] > 2) & (x[:, 1] < 2), 0.5, 0.0) + noise * rng.normal(size=count)


def test_same_as_xgboost() -> None:
    import xgboost

    x, y = data(200, noise=0.1)
    matrix = xgboost.DMatrix(x, label=y)
    expected = xgboost.train(PARAMETERS, matrix, num_boost_round=TREES).predict(matrix)
    assert np.allclose(grow(x, y).predict(x), expected, atol=1e-5)


def test_used_when_they_earn_it() -> None:
    x, y = data(100, noise=0.05)
    found = earned(x, y, np.full(100, y.mean()))
    assert found is not None
    assert 0.5 < found[1] <= 1
    assert found[2] < 0.7
    assert earned(x, np.random.default_rng(1).permutation(y), np.full(100, y.mean())) is None
    assert earned(x, y, y + 0.01) is None
    assert earned(x[:20], y[:20], np.zeros(20)) is None


@pytest.mark.parametrize(
    ("array", "value", "problem"),
    [
        ("roots", 10**6, "root"),
        ("left", 0, "child"),
        ("right", 10**6, "child"),
        ("feature", 3, "feature"),
        ("value", np.nan, "finite"),
    ],
)
def test_damage_is_named(array: str, value: float, problem: str) -> None:
    forest = grow(*data(100, noise=0.05))
    assert forest.problem(3) == ""
    damaged = getattr(forest, array).copy()
    damaged[0] = value
    assert problem in dataclasses.replace(forest, **{array: damaged}).problem(3)


def test_unequal_lengths_are_named() -> None:
    forest = grow(*data(100, noise=0.05))
    assert "length" in Forest(**{**forest.__dict__, "right": forest.right[:-1]}).problem(3)
