"""A fitted predictor as bytes: checked flat arrays (safetensors) and JSON, never code."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from perfmodel.errors import ArtifactError, PerfModelError
from perfmodel.features import axes
from perfmodel.identity import canonical_json
from perfmodel.predictors.affine import AffinePrior
from perfmodel.predictors.boosted import Forest
from perfmodel.predictors.feasibility import Feasibility, Logistic
from perfmodel.predictors.surface import Surface
from perfmodel.predictors.trees import Seen, TreesPredictor, memory_prior, time_prior
from perfmodel.space import Space

FORMAT = "perfmodel"
VERSION = "1"
KIND = "trees"
DTYPES = {"<f8": "F64", "<f4": "F32", "<i4": "I32", "|b1": "BOOL"}
MAX_BYTES = 64 * 1024 * 1024
MAX_ROWS = 4096

Arrays = dict[str, NDArray[Any]]

SURFACE_ARRAYS = (
    "hyper", "theta", "theta_mean", "coordinates", "jacobian", "cholesky", "target"
)  # fmt: skip
FOREST_ARRAYS = ("roots", "left", "right", "feature", "threshold", "value")


def save(predictor: TreesPredictor) -> bytes:
    """The predictor as bytes that `load` turns into one with the same predictions."""
    arrays: Arrays = {
        "seen.low": predictor.seen.low,
        "seen.high": predictor.seen.high,
        "seen.levels": predictor.seen.levels,
    }
    for name, surface in (("time", predictor.time), ("memory", predictor.memory)):
        if surface is not None:
            arrays |= {f"{name}.{key}": getattr(surface, key) for key in SURFACE_ARRAYS}
            arrays[f"{name}.scale"] = np.array([surface.scale])
    for name, logistic in (
        ("limit", predictor.feasibility.memory),
        ("runs", predictor.feasibility.other),
    ):
        if logistic is not None:
            arrays[f"{name}.mean"] = logistic.mean
            arrays[f"{name}.covariance"] = logistic.covariance
    if predictor.forest is not None:
        arrays |= {f"forest.{key}": getattr(predictor.forest, key) for key in FOREST_ARRAYS}
        arrays["forest.share"] = np.array([predictor.share])
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "kind": KIND,
        "space": canonical_json(predictor.space.to_json()),
        "size_names": canonical_json(list(predictor.size_names)),
    }
    return _written(arrays, {**header, "sha256": _checksum(header, arrays)})


def _written(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    """The safetensors file; the library's own writer orders metadata differently every time."""
    # Widest first, so that every array lies aligned.
    names = sorted(arrays, key=lambda n: (-arrays[n].itemsize, n))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": DTYPES[arrays[name].dtype.str],
            "shape": list(arrays[name].shape),
            "data_offsets": [start, end],
        }
    text = canonical_json(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(arrays[n].tobytes() for n in names)])


def load(data: bytes) -> TreesPredictor:
    """Inverse of `save`; ArtifactError for anything damaged, foreign or of another version."""
    if len(data) > MAX_BYTES:
        raise ArtifactError(f"the model has {len(data):,} bytes; allowed: {MAX_BYTES:,}")
    try:
        arrays: Arrays = load_tensors(data)
        header = _header(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"the model isn't a safetensors file: {error}") from error
    expected = {"format": FORMAT, "version": VERSION, "kind": KIND}
    for key, value in expected.items():
        if header.get(key) != value:
            raise ArtifactError(f"the model's {key} is {header.get(key)!r}; allowed: {value!r}")
    recorded = header.pop("sha256", "")
    if recorded != _checksum(header, arrays):
        raise ArtifactError("the model's checksum doesn't match its content; fit it again")
    try:
        space = Space.from_json(json.loads(header["space"]))
        names = tuple(json.loads(header["size_names"]))
        return _Reader(arrays, space, names).predictor()
    except ArtifactError:
        raise
    except CONTENT_ERRORS as error:
        raise ArtifactError(f"the model's content isn't valid: {error}") from error


def _header(data: bytes) -> dict[str, str]:
    (length,) = struct.unpack_from("<Q", data)
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    if not isinstance(metadata, dict):
        raise TypeError("it holds no metadata")
    return metadata


def _checksum(header: Mapping[str, str], arrays: Arrays) -> str:
    digest = hashlib.sha256(canonical_json(dict(header)).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(canonical_json([name, array.dtype.str, list(array.shape)]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


CONTENT_ERRORS = (
    PerfModelError, AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError
)  # fmt: skip
"""What reading a space from somebody else's JSON may raise."""


class _Reader:
    """Takes arrays out one by one, each checked; what is left over is an error."""

    def __init__(self, arrays: Arrays, space: Space, size_names: tuple[str, ...]) -> None:
        if unknown := [n for n in size_names if n not in space.names]:
            raise ArtifactError(f"size names {unknown!r}; allowed: {', '.join(space.names)}")
        self._arrays = dict(arrays)
        self._space = space
        self._size_names = size_names

    def predictor(self) -> TreesPredictor:
        """The predictor; ArtifactError when an array is missing, of a wrong shape or left over."""
        space, names = self._space, self._size_names
        the_axes = axes(space)
        width, deepest = len(the_axes), max(axis.levels for axis in the_axes)
        seen = Seen(
            self._take("seen.low", (width,)),
            self._take("seen.high", (width,)),
            self._take("seen.levels", (width, deepest), np.bool_),
        )
        time = self._surface("time", time_prior(space, names))
        memory_surface_prior = memory_prior(space, names)
        memory = self._surface("memory", memory_surface_prior)
        batch = memory_surface_prior.batch
        effects = sum(i != batch for i in memory_surface_prior.owner)
        feasibility = Feasibility(
            self._logistic("limit", effects + 2), self._logistic("runs", effects + 1)
        )
        forest = self._forest(width) if time is not None else None
        (share,) = self._take("forest.share", (1,)) if forest is not None else (0.0,)
        if self._arrays:
            raise ArtifactError(f"the model holds unknown arrays: {', '.join(self._arrays)}")
        return TreesPredictor(space, names, time, memory, forest, float(share), feasibility, seen)

    def _take(self, name: str, shape: tuple[int, ...], dtype: type = np.float64) -> NDArray[Any]:
        array = self._arrays.pop(name, None)
        if array is None:
            raise ArtifactError(f"the model lacks the array {name!r}")
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise ArtifactError(
                f"array {name!r} is {array.dtype} {array.shape}; allowed: {np.dtype(dtype)} {shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ArtifactError(f"array {name!r} holds a number that isn't finite")
        return array

    def _length(self, name: str) -> int:
        array = self._arrays.get(name)
        length = len(array) if array is not None and array.ndim else 0
        if not 0 < length <= MAX_ROWS:
            raise ArtifactError(f"array {name!r} has {length} rows; allowed: 1 to {MAX_ROWS}")
        return length

    def _surface(self, name: str, prior: AffinePrior) -> Surface | None:
        if f"{name}.target" not in self._arrays:
            return None
        rows, count = self._length(f"{name}.target"), prior.parameter_count
        shapes = {
            "hyper": (prior.hyper_count,),
            "theta": (count,),
            "theta_mean": (count,),
            "coordinates": (rows, len(prior.axes)),
            "jacobian": (rows, count),
            "cholesky": (rows, rows),
            "target": (rows,),
        }
        arrays = {key: self._take(f"{name}.{key}", shapes[key]) for key in SURFACE_ARRAYS}
        (scale,) = self._take(f"{name}.scale", (1,))
        if scale <= 0 or (np.diag(arrays["cholesky"]) <= 0).any():
            raise ArtifactError(f"the covariance of {name!r} isn't positive")
        return Surface(prior=prior, scale=float(scale), **arrays)

    def _logistic(self, name: str, count: int) -> Logistic | None:
        if f"{name}.mean" not in self._arrays:
            return None
        mean = self._take(f"{name}.mean", (count,))
        return Logistic(mean, self._take(f"{name}.covariance", (count, count)))

    def _forest(self, features: int) -> Forest | None:
        if "forest.roots" not in self._arrays:
            return None
        nodes, trees = self._length("forest.left"), self._length("forest.roots")
        arrays = {
            key: self._take(
                f"forest.{key}",
                (trees if key == "roots" else nodes,),
                np.float32 if key in ("threshold", "value") else np.int32,
            )
            for key in FOREST_ARRAYS
        }
        forest = Forest(**arrays)
        if problem := forest.problem(features):
            raise ArtifactError(f"the model's trees are damaged: {problem}")
        return forest
