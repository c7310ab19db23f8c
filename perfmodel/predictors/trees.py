"""The predictor of a study: affine surface, trees on what it misses, memory, failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfmodel.features import Axis, Flags, Floats, axes, contrast_matrix, encode
from perfmodel.predictors.affine import AffinePrior
from perfmodel.predictors.boosted import Forest, earned
from perfmodel.predictors.feasibility import Feasibility, fit_feasibility
from perfmodel.predictors.surface import Rows, Surface, fit_surface
from perfmodel.records import Configuration, FailureReason, Measurement, Value
from perfmodel.space import Space

Target = Literal["seconds", "bytes"]

INTERVAL = 1.645
"""Standard deviations of a 90 % interval."""

MAX_ROWS = 300
"""Newest distinct configurations (per group) that a surface is fitted to."""

SLACK = 1e-9


@dataclass(frozen=True)
class Predicted:
    """Predictions for configurations, as arrays.

    `low` and `high` hold 90 % of single measurements (noise included); `log_sigma` is the standard
    deviation of the log of the true time (noise left out). NaN: nothing is known.
    """

    seconds: Floats
    low: Floats
    high: Floats
    log_sigma: Floats
    extrapolating: Flags
    peak_bytes: Floats
    probability_ok: Floats


@dataclass(frozen=True)
class Seen:
    """What was measured of each axis: lowest and highest coordinate, and which levels."""

    low: Floats
    high: Floats
    levels: Flags

    @classmethod
    def of(cls, the_axes: Sequence[Axis], x: Floats) -> Seen:
        """What the rows of x cover."""
        positions = np.arange(max(axis.levels for axis in the_axes))
        levels = (x[:, :, None] == positions).any(axis=0)
        if not len(x):
            nothing = np.zeros(len(the_axes))
            return cls(nothing + 1, nothing, levels)
        return cls(x.min(axis=0), x.max(axis=0), levels)

    def outside(self, the_axes: Sequence[Axis], x: Floats) -> Flags:
        """Rows of x that leave what was measured on some axis."""
        result = np.zeros(len(x), dtype=np.bool_)
        for i, axis in enumerate(the_axes):
            column = x[:, i]
            if axis.numeric:
                result |= (column < self.low[i] - SLACK) | (column > self.high[i] + SLACK)
            else:
                known = np.flatnonzero(self.levels[i]).astype(np.float64)
                result |= ~np.isin(column, known)
        return result


@dataclass(frozen=True)
class TreesPredictor:
    """Predicts log seconds and log bytes over a space; made by `fit_predictor`."""

    space: Space
    size_names: tuple[str, ...]
    time: Surface | None
    memory: Surface | None
    forest: Forest | None
    share: float
    feasibility: Feasibility
    seen: Seen

    def predict(self, configurations: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predictions for `configurations` (each must have every parameter of the space)."""
        x = encode(self.space, configurations)
        mean, sigma = self.marginals(x, "seconds")
        half = INTERVAL * np.hypot(sigma, self.noise("seconds"))
        return Predicted(
            seconds=np.exp(mean),
            low=np.exp(mean - half),
            high=np.exp(mean + half),
            log_sigma=sigma,
            extrapolating=self.seen.outside(axes(self.space), x),
            peak_bytes=np.exp(self.marginals(x, "bytes")[0]),
            probability_ok=self.probability_ok(x),
        )

    def surface(self, target: Target) -> Surface | None:
        """The surface of log seconds or log bytes; None when nothing of it was measured."""
        return self.time if target == "seconds" else self.memory

    def noise(self, target: Target) -> float:
        """Standard deviation of the log of one measurement; NaN when nothing was measured."""
        surface = self.surface(target)
        return math.nan if surface is None else surface.noise

    def marginals(self, coordinates: Floats, target: Target) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log of the true value at encoded configurations."""
        surface = self.surface(target)
        if surface is None:
            unknown = np.full(len(coordinates), np.nan)
            return unknown, unknown
        mean, sigma = surface.marginals(coordinates)
        return self._mixed(coordinates, mean, target), sigma

    def joint(self, coordinates: Floats, target: Target) -> tuple[Floats, Floats]:
        """Mean and covariance of the log of the true values; the target must be measured."""
        surface = self.surface(target)
        if surface is None:
            raise ValueError(f"nothing of {target} was measured")
        mean, covariance = surface.joint(coordinates)
        return self._mixed(coordinates, mean, target), covariance

    def probability_ok(self, coordinates: Floats) -> Floats:
        """Probability that encoded configurations run."""
        contrasts, below = _limit_features(self.space, self.size_names, coordinates)
        return self.feasibility.probability(contrasts, below)

    def _mixed(self, coordinates: Floats, mean: Floats, target: Target) -> Floats:
        """`mean` of a surface mixed with the trees upon its affine part."""
        if self.forest is None or self.time is None or target != "seconds":
            return mean
        grown = self.time.affine(coordinates) + self.forest.predict(coordinates)
        return (1 - self.share) * mean + self.share * grown


def fit_predictor(
    space: Space,
    measurements: Sequence[Measurement],
    history: Sequence[Measurement] = (),
    *,
    size_names: Sequence[str] = ("batch_size",),
    targets: Collection[Target] = ("seconds", "bytes"),
) -> TreesPredictor:
    """Fit to measurements of one workload, device and software (in or outside of the space).

    `history` are measurements of the same script under another software or source: they enter
    with an offset of their own and less weight. `size_names` are the parameters that the size of a
    step (its samples) is proportional to. Measurements that lack a parameter are left out, and so
    is what isn't among the `targets`.
    """
    sizes = tuple(name for name in size_names if name in space.names)
    own = [m for m in measurements if comparable(space, m)]
    other = [m for m in history if comparable(space, m)]
    time = memory = forest = None
    share = 0.0
    if "seconds" in targets:
        time = _fit(time_prior(space, sizes), space, own, other, lambda m: m.seconds)
    if time is not None and (trees := _earned(time, own)) is not None:
        forest, share, ratio = trees
        time = replace(time, scale=time.scale * ratio)
    if "bytes" in targets:
        prior = memory_prior(space, sizes)
        memory = _fit(prior, space, own, other, lambda m: float(m.memory.peak_bytes or 0))
    x = encode(space, [m.configuration for m in own if m.ok])
    return TreesPredictor(
        space=space,
        size_names=sizes,
        time=time,
        memory=memory,
        forest=forest,
        share=share,
        feasibility=_feasibility(space, sizes, own),
        seen=Seen.of(axes(space), x),
    )


def _earned(surface: Surface, own: Sequence[Measurement]) -> tuple[Forest, float, float] | None:
    """Trees upon the affine part, from this study's rows: they come first."""
    count = min(len({m.configuration for m in own if m.ok}), MAX_ROWS)
    x = surface.coordinates[:count]
    residual = (surface.values - surface.affine(surface.coordinates))[:count]
    return earned(x, residual, residual - surface.leave_one_out()[0][:count])


def comparable(space: Space, measurement: Measurement) -> bool:
    """Whether a measurement's configuration has exactly the space's parameters, of its types."""
    configuration = measurement.configuration
    return set(configuration) == set(space.names) and all(
        axis.knows(configuration[axis.name]) for axis in axes(space)
    )


def time_prior(space: Space, size_names: Sequence[str]) -> AffinePrior:
    """The prior of log seconds."""
    the_axes = axes(space)
    batch = _batch_axis(the_axes, size_names)
    others = frozenset(
        i for i, a in enumerate(the_axes) if a.name in size_names and a.scale == "log2"
    )
    return AffinePrior(the_axes, batch, others - {batch})


def memory_prior(space: Space, size_names: Sequence[str]) -> AffinePrior:
    """The prior of log bytes: accumulation and its like don't multiply the size."""
    the_axes = axes(space)
    return AffinePrior(the_axes, _batch_axis(the_axes, size_names))


def _batch_axis(the_axes: Sequence[Axis], size_names: Sequence[str]) -> int | None:
    """The size axis that peak memory grows with: the one called batch, else the longest."""
    sized = [i for i, a in enumerate(the_axes) if a.name in size_names and a.scale == "log2"]
    if not sized:
        return None
    return max(sized, key=lambda i: ("batch" in the_axes[i].name, the_axes[i].levels, -i))


def _fit(
    prior: AffinePrior,
    space: Space,
    own: Sequence[Measurement],
    history: Sequence[Measurement],
    value: Callable[[Measurement], float],
) -> Surface | None:
    groups: dict[tuple[str, ...], dict[Configuration, list[float]]] = {(): {}}
    for measurement, key in (
        *((m, ()) for m in own),
        *((m, (m.software.address, m.workload.address, m.device.address)) for m in history),
    ):
        if measurement.ok and value(measurement) > 0:
            values = groups.setdefault(key, {}).setdefault(measurement.configuration, [])
            values.append(math.log(value(measurement)))
    rows = [
        (configuration, float(np.mean(values)), float(len(values)), float(number))
        for number, group in enumerate(groups.values())
        for configuration, values in list(group.items())[-MAX_ROWS:]
    ][: 2 * MAX_ROWS]
    if not rows:
        return None
    configurations, means, repeats, numbers = zip(*rows, strict=True)
    return fit_surface(
        prior,
        Rows(encode(space, configurations), np.array(means), np.array(repeats), np.array(numbers)),
    )


def _limit_features(space: Space, size_names: Sequence[str], x: Floats) -> tuple[Floats, Floats]:
    """Contrasts without the batch, and octaves of batch below the largest."""
    the_axes = axes(space)
    batch = _batch_axis(the_axes, size_names)
    owner = AffinePrior(the_axes).owner
    kept = [column for column, i in enumerate(owner) if i != batch]
    below = np.zeros(len(x)) if batch is None else the_axes[batch].high - x[:, batch]
    return contrast_matrix(the_axes, x)[:, kept], below


def _feasibility(
    space: Space, size_names: Sequence[str], own: Sequence[Measurement]
) -> Feasibility:
    """Learnt from each configuration's latest outcome."""
    latest = {m.configuration: m for m in own}
    ran = np.array([m.ok for m in latest.values()], dtype=np.bool_)
    reasons = [m.failure.reason if m.failure else None for m in latest.values()]
    out_of_memory = np.array([r == FailureReason.OUT_OF_MEMORY for r in reasons], dtype=np.bool_)
    contrasts, below = _limit_features(space, size_names, encode(space, list(latest)))
    return fit_feasibility(contrasts, below, ran, out_of_memory)
