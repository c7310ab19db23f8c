"""Boosted trees as flat arrays: grown by XGBoost, evaluated by numpy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.features import Floats

Indices = NDArray[np.int32]
Singles = NDArray[np.float32]

LEAF = -1
FOLDS = 4
MIN_ROWS = 48
"""Below this trees have nothing on the smooth surface."""

MIN_GAIN = 0.05
"""Share of the held-out error that the trees must take away to be used."""

TINY = 1e-12
TREES = 100
PARAMETERS = {
    "max_depth": 4,
    "eta": 0.1,
    "min_child_weight": 1,
    "lambda": 1.0,
    "base_score": 0.0,
    "tree_method": "exact",
    "nthread": 1,
    "seed": 0,
    "verbosity": 0,
}


@dataclass(frozen=True)
class Forest:
    """Trees one after another; `roots` are their first nodes, `left` is LEAF in a leaf.

    A row goes left where its feature is below the threshold; a leaf's value is in `value`.
    """

    roots: Indices
    left: Indices
    right: Indices
    feature: Indices
    threshold: Singles
    value: Singles

    def predict(self, x: Floats) -> Floats:
        """Sum over the trees for each row of x."""
        rows = np.arange(len(x))
        x32 = x.astype(np.float32)
        total = np.zeros(len(x))
        for root in self.roots:
            node = np.full(len(x), root, dtype=np.int32)
            while (inner := self.left[node] != LEAF).any():
                at = node[inner]
                goes_left = x32[rows[inner], self.feature[at]] < self.threshold[at]
                node[inner] = np.where(goes_left, self.left[at], self.right[at])
            total += self.value[node]
        return total

    def problem(self, features: int) -> str:
        """What makes the arrays no forest over so many features; empty if nothing does.

        Children come after their parent, so walking down always ends.
        """
        count = len(self.left)
        inner = self.left != LEAF
        own = np.arange(count, dtype=np.int32)
        if any(len(a) != count for a in (self.right, self.feature, self.threshold, self.value)):
            return "its node arrays differ in length"
        if ((self.roots < 0) | (self.roots >= count)).any():
            return "a root is out of range"
        for child in (self.left, self.right):
            if ((child <= own) | (child >= count))[inner].any():
                return "a child is out of range"
        if ((self.feature < 0) | (self.feature >= features))[inner].any():
            return "a feature is out of range"
        finite = np.isfinite(self.threshold).all() and np.isfinite(self.value).all()
        return "" if finite else "a threshold or value isn't finite"


def flatten(model: dict[str, Any]) -> Forest:
    """The forest in XGBoost's own JSON form of a model."""
    parts: list[tuple[NDArray[Any], ...]] = []
    roots, start = [], 0
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        left = np.array(tree["left_children"], dtype=np.int32)
        right = np.array(tree["right_children"], dtype=np.int32)
        condition = np.array(tree["split_conditions"], dtype=np.float32)
        leaf = left == LEAF
        roots.append(start)
        parts.append(
            (
                np.where(leaf, LEAF, left + start).astype(np.int32),
                np.where(leaf, LEAF, right + start).astype(np.int32),
                np.where(leaf, 0, np.array(tree["split_indices"])).astype(np.int32),
                np.where(leaf, 0, condition).astype(np.float32),
                np.where(leaf, condition, 0).astype(np.float32),
            )
        )
        start += len(left)
    left, right, feature, threshold, value = (np.concatenate(p) for p in zip(*parts, strict=True))
    return Forest(np.array(roots, dtype=np.int32), left, right, feature, threshold, value)


def grow(x: Floats, y: Floats) -> Forest:
    """Trees for y given x."""
    import xgboost

    booster = xgboost.train(PARAMETERS, xgboost.DMatrix(x, label=y), num_boost_round=TREES)
    return flatten(json.loads(bytes(booster.save_raw(raw_format="json"))))


def earned(x: Floats, residual: Floats, rival: Floats) -> tuple[Forest, float, float] | None:
    """Trees for `residual` and what they are worth beside `rival`, another prediction of it.

    `rival` must have been made without the row it predicts. Returns the trees, their share in the
    mixture, and its held-out error over the rival's; None where they aren't worth it.
    """
    count = len(residual)
    if count < MIN_ROWS:
        return None
    fold = np.random.default_rng(0).permutation(count) % FOLDS
    held_out = np.zeros(count)
    for k in range(FOLDS):
        held_out[fold == k] = grow(x[fold != k], residual[fold != k]).predict(x[fold == k])
    missed, difference = residual - rival, held_out - rival
    share = float(np.clip(missed @ difference / (difference @ difference + TINY), 0.0, 1.0))
    left = missed - share * difference
    ratio = float(np.sqrt(left @ left / (missed @ missed + TINY)))
    return (grow(x, residual), share, ratio) if ratio < 1 - MIN_GAIN else None
