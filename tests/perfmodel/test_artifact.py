"""Saved predictors predict the same; damaged ones are refused, never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from perfmodel import artifact
from perfmodel.errors import ArtifactError
from perfmodel.predictors.trees import TreesPredictor, fit_predictor
from perfmodel.records import Configuration, Measurement
from perfmodel.space import Space

Scripts = Callable[..., Any]


def same(a: TreesPredictor, b: TreesPredictor, configurations: list[Configuration]) -> bool:
    first, second = a.predict(configurations), b.predict(configurations)
    return all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True)
        for name in first.__dataclass_fields__
    )


@pytest.fixture(scope="module")
def grown(jumpy: tuple[Space, list[Measurement]]) -> TreesPredictor:
    space, measurements = jumpy
    predictor = fit_predictor(space, measurements)
    assert predictor.forest is not None
    return predictor


@pytest.fixture(scope="module")
def saved(grown: TreesPredictor) -> bytes:
    return artifact.save(grown)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_round_trip(script: Scripts, count: int) -> None:
    replay = script(1, limit=3e8 + 1e6 * 200)
    measurements = [replay.measure(c) for c in replay.sample(count)]
    predictor = fit_predictor(replay.space, measurements, size_names=("batch_size", "accumulation"))
    loaded = artifact.load(artifact.save(predictor))
    assert same(predictor, loaded, list(replay.space))
    assert artifact.save(loaded) == artifact.save(predictor)
    assert loaded.space == replay.space


def test_round_trip_with_trees(grown: TreesPredictor, saved: bytes) -> None:
    assert same(grown, artifact.load(saved), list(grown.space.configurations[::7]))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bytes_never_crash(
    grown: TreesPredictor, saved: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(saved)
    header = 8 + int.from_bytes(saved[:8], "little")
    places = st.one_of(st.integers(0, header - 1), st.integers(0, len(saved) - 1))
    for place in data.draw(st.lists(places, min_size=1, max_size=3)):
        damaged[place] = data.draw(st.integers(0, 255))
    refused_or_same(grown, bytes(damaged))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_truncated_is_refused(saved: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(saved) - 1))
    with pytest.raises(ArtifactError):
        artifact.load(saved[:cut])


@settings(max_examples=100, deadline=None)
@given(junk=st.binary(max_size=400))
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(ArtifactError):
        artifact.load(junk)


def refused_or_same(predictor: TreesPredictor, data: bytes) -> None:
    try:
        loaded = artifact.load(data)
    except ArtifactError:
        return
    assert same(predictor, loaded, list(predictor.space.configurations[::101]))


def forged(saved: bytes, arrays: dict[str, Any], header: dict[str, str]) -> bytes:
    """A file whose checksum is right and whose content isn't."""
    content = {**load_tensors(saved), **arrays}
    content = {name: array for name, array in content.items() if array is not None}
    length = int.from_bytes(saved[:8], "little")
    metadata = {**json.loads(saved[8 : 8 + length])["__metadata__"], **header}
    metadata.pop("sha256")
    checksum = artifact._checksum(metadata, content)
    return save_tensors(content, metadata={**metadata, "sha256": checksum})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"time.theta": np.zeros(3)}, "allowed"),
        ({"time.theta": None}, "lacks"),
        ({"time.target": np.zeros((0,))}, "rows"),
        ({"time.scale": np.array([np.nan])}, "finite"),
        ({"time.scale": np.array([0.0])}, "positive"),
        ({"forest.roots": np.array([10**6], dtype=np.int32)}, "trees"),
        ({"forest.share": np.array([0.5], dtype=np.float32)}, "allowed"),
        ({"extra": np.zeros(1)}, "unknown"),
        ({"seen.low": np.zeros(2)}, "allowed"),
    ],
)
def test_forged_content_is_refused(saved: bytes, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        artifact.load(forged(saved, arrays, {}))


def test_a_cycle_in_a_tree_is_refused(saved: bytes) -> None:
    left = load_tensors(saved)["forest.left"].copy()
    left[left > 0] = 0
    with pytest.raises(ArtifactError, match="child"):
        artifact.load(forged(saved, {"forest.left": left}, {}))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": "2"}, "version is '2'; allowed: '1'"),
        ({"kind": "graph"}, "kind"),
        ({"format": "other"}, "format"),
        ({"space": "{}"}, "valid"),
        ({"space": "nonsense"}, "valid"),
        ({"space": "[" * 100_000}, "valid"),
        ({"space": '{"parameters":[{"name":"a","values":[1e999]}]}'}, "valid|lacks|allowed"),
        ({"size_names": '["other"]'}, "allowed"),
        ({"size_names": "3"}, "valid"),
    ],
)
def test_forged_header_is_refused(saved: bytes, header: dict[str, str], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        artifact.load(forged(saved, {}, header))


def test_checksum_is_checked(saved: bytes) -> None:
    damaged = bytearray(saved)
    damaged[-1] ^= 1
    with pytest.raises(ArtifactError, match="checksum"):
        artifact.load(bytes(damaged))
