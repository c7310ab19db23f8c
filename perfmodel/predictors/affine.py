"""The prior: t = fixed + slope x size, both with effects of every parameter, plus interactions.

    log t = log(exp(a + sum u) + exp(b + sum v) size) + deviations + pairs + rest

u and v are an effect's parts on the fixed and on the size term: a common effect -/+ half of a
specific one. Deviations are curves of numeric parameters (cache cliffs), pairs are interactions
of two parameters, the rest is a configuration's own. All are Gaussian a priori; a parameter's
relevance scales its effects, its deviations and its interactions alike, so that interactions are
looked for where there are effects. What scales them is fitted (`perfmodel.predictors.surface`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.features import Axis, Floats, contrast_matrix

CONSTANT_SD = 1.2
REST_SD = 0.04
RELEVANCE_SD = 0.7
SCALES = {
    "common": (0.40, 0.5),
    "specific": (0.40, 0.5),
    "deviation": (0.17, 0.5),
    "pair": (0.12, 0.6),
    "noise": (0.025, 0.5),
}
"""Prior median of each standard deviation (of log time) and the sd of its logarithm."""

COMMON, SPECIFIC, DEVIATION, PAIR, NOISE = range(len(SCALES))


@dataclass(frozen=True)
class Gram:
    """What a kernel is made of between rows a and b: Jacobians and similarities per axis."""

    jacobian_a: Floats
    jacobian_b: Floats
    similarities: tuple[Floats, ...]


@dataclass(frozen=True)
class AffinePrior:
    """Mean function and kernel over the coordinates of a space.

    `batch` is the axis whose effect is the size itself; `multipliers` are other axes that the size
    is proportional to (accumulation), which mostly repeat the fixed part too.
    """

    axes: tuple[Axis, ...]
    batch: int | None = None
    multipliers: frozenset[int] = frozenset()

    @cached_property
    def owner(self) -> tuple[int, ...]:
        """The axis of each contrast column."""
        return tuple(i for i, axis in enumerate(self.axes) for _ in range(axis.contrast_count))

    @property
    def parameter_count(self) -> int:
        """Length of theta: two constants, a common and a specific effect per contrast."""
        return 2 + 2 * len(self.owner)

    @property
    def hyper_count(self) -> int:
        """Length of the log variances: one relevance an axis, then the SCALES."""
        return len(self.axes) + len(SCALES)

    def log_size(self, coordinates: Floats) -> Floats:
        """Natural logarithm of the size: the product of batch and multipliers."""
        sized = [*self.multipliers, *([] if self.batch is None else [self.batch])]
        total: Floats = np.log(2.0) * coordinates[:, sized].sum(axis=1)
        return total - self._reference(sized)

    def _reference(self, sized: Sequence[int]) -> float:
        return float(np.log(2.0) * sum((self.axes[i].low + self.axes[i].high) / 2 for i in sized))

    def theta_mean(self, level: float) -> Floats:
        """Prior mean of theta when `level` is a typical log time at the middle size."""
        theta = np.zeros(self.parameter_count)
        theta[:2] = level - np.log(2.0)
        for column, i in enumerate(self.owner):
            if i in self.multipliers:
                octaves = np.log(2.0) * (self.axes[i].high - self.axes[i].low)
                theta[2 + column] = 0.25 * octaves
                theta[2 + len(self.owner) + column] = -0.5 * octaves
        return theta

    def hyper_mean(self) -> Floats:
        """Prior mean of the log variances."""
        scales = [2 * np.log(median) for median, _ in SCALES.values()]
        return np.concatenate([np.zeros(len(self.axes)), scales])

    def hyper_sd(self) -> Floats:
        """Prior standard deviation of the log variances."""
        spreads = [2 * spread for _, spread in SCALES.values()]
        return np.concatenate([np.full(len(self.axes), RELEVANCE_SD), spreads])

    def mean(self, theta: Floats, coordinates: Floats) -> tuple[Floats, Floats]:
        """Log time of the affine part, and its Jacobian by theta."""
        z = contrast_matrix(self.axes, coordinates)
        common, specific = np.split(theta[2:], 2)
        fixed = theta[0] + z @ (common - specific / 2)
        sized = theta[1] + z @ (common + specific / 2) + self.log_size(coordinates)
        total = np.logaddexp(fixed, sized)
        share = np.exp(sized - total)[:, None]
        return total, np.concatenate([1 - share, share, z, z * (share - 0.5)], axis=1)

    def theta_variance(self, hyper: Floats) -> Floats:
        """Prior variance of each element of theta."""
        relevance, scales = self._variances(hyper)
        mask = np.array([float(i != self.batch) for i in self.owner])
        effects = relevance[list(self.owner)] * mask
        constants = np.full(2, CONSTANT_SD**2)
        return np.concatenate([constants, scales[COMMON] * effects, scales[SPECIFIC] * effects])

    def gram(self, a: Floats, jacobian_a: Floats, b: Floats, jacobian_b: Floats) -> Gram:
        """The parts of the kernel between the rows of a and those of b."""
        similarities = (axis.similarity(a[:, i], b[:, i]) for i, axis in enumerate(self.axes))
        return Gram(jacobian_a, jacobian_b, tuple(similarities))

    def kernel(self, hyper: Floats, gram: Gram) -> Floats:
        """Prior covariance of log time, noise left out."""
        relevance, scales = self._variances(hyper)
        total = (gram.jacobian_a * self.theta_variance(hyper)) @ gram.jacobian_b.T
        plain, square = np.zeros_like(total), np.zeros_like(total)
        rest = np.full_like(total, REST_SD**2)
        for i, similarity in enumerate(gram.similarities):
            weighted = relevance[i] * similarity
            if self.axes[i].smooth:
                total += scales[DEVIATION] * weighted
            plain += weighted
            square += weighted**2
            rest *= 0.5 + 0.5 * np.clip(similarity, 0.0, 1.0)
        # Sum over pairs of products, without the loop over pairs.
        covariance: Floats = total + scales[PAIR] * (plain**2 - square) / 2 + rest
        return covariance

    def kernel_gradients(self, hyper: Floats, gram: Gram) -> list[Floats]:
        """Derivatives of `kernel` by the log variances, noise left out (as many, less one)."""
        relevance, scales = self._variances(hyper)
        half = len(self.owner)
        weighted = [r * s for r, s in zip(relevance, gram.similarities, strict=True)]
        plain = np.sum(weighted, axis=0)
        by_scale = [np.zeros_like(plain) for _ in range(PAIR)]
        by_axis = []
        for i, axis in enumerate(self.axes):
            columns = [2 + j for j, owner in enumerate(self.owner) if owner == i]
            own = scales[PAIR] * weighted[i] * (plain - weighted[i])
            if axis.smooth:
                by_scale[DEVIATION] += scales[DEVIATION] * weighted[i]
                own = own + scales[DEVIATION] * weighted[i]
            if i != self.batch:
                for scale, shift in ((COMMON, 0), (SPECIFIC, half)):
                    at = [c + shift for c in columns]
                    part = gram.jacobian_a[:, at] @ gram.jacobian_b[:, at].T
                    part *= relevance[i] * scales[scale]
                    by_scale[scale] += part
                    own = own + part
            by_axis.append(own)
        pairs = scales[PAIR] * (plain**2 - sum(w**2 for w in weighted)) / 2
        return [*by_axis, *by_scale, pairs]

    def variance(self, hyper: Floats, coordinates: Floats, jacobian: Floats) -> Floats:
        """The diagonal of `kernel` of rows with themselves."""
        relevance, scales = self._variances(hyper)
        columns = [axis.self_similarity(coordinates[:, i]) for i, axis in enumerate(self.axes)]
        similarity = np.stack(columns, axis=1)
        weighted = similarity * relevance
        smooth = np.array([float(axis.smooth) for axis in self.axes])
        pairs = (weighted.sum(axis=1) ** 2 - (weighted**2).sum(axis=1)) / 2
        rest = REST_SD**2 * np.prod(0.5 + 0.5 * np.clip(similarity, 0.0, 1.0), axis=1)
        effects = (jacobian**2) @ self.theta_variance(hyper)
        curves = scales[DEVIATION] * (weighted @ smooth)
        total: Floats = effects + curves + scales[PAIR] * pairs + rest
        return total

    def _variances(self, hyper: Floats) -> tuple[Floats, Floats]:
        values = np.exp(hyper)
        return values[: len(self.axes)], values[len(self.axes) :]
