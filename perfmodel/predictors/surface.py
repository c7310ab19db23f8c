"""The posterior of log values over a space: MAP by Gauss-Newton, Laplace covariance, GP rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from perfmodel.features import Flags, Floats, contrast_matrix
from perfmodel.predictors.affine import AffinePrior
from perfmodel.predictors.threads import one_blas_thread

OFFSET_SD = 0.5
DRIFT_SD = 0.15
HISTORY_NOISE = 4.0
"""Other software or sources: free offset, drifting effects, this many times the noise variance."""

Indices = NDArray[np.int64]

JITTER = 1e-8
ROUNDS = 2
NEWTON_STEPS = 5
HYPER_ITERATIONS = 15
FITTED_ROWS = 80
HYPER_BOUND = 4.0
"""Log variances stay within this many prior standard deviations."""

SCALE_BOUNDS = (0.8, 6.0)
CALIBRATION_PRIOR = 10.0
"""Pseudo-observations for the scale of the intervals being right already."""


@dataclass(frozen=True)
class Rows:
    """Observations: coordinates (n, p), log values, repeats behind each, and where from.

    Group 0 is this study's; any other is one software and source of the history.
    """

    coordinates: Floats
    values: Floats
    repeats: Floats
    groups: Floats

    @property
    def recent(self) -> Flags:
        """The rows that say how it is now: this study's, or all if there are none yet."""
        own = self.groups == 0
        return own if own.any() else np.full(len(self.groups), True)

    def at(self, positions: Indices) -> Rows:
        """Some of the rows."""
        parts = (self.coordinates, self.values, self.repeats, self.groups)
        return Rows(*(part[positions] for part in parts))


@dataclass(frozen=True)
class Surface:
    """A fitted surface; everything that predicting needs, as arrays."""

    prior: AffinePrior
    hyper: Floats
    theta: Floats
    theta_mean: Floats
    coordinates: Floats
    jacobian: Floats
    cholesky: Floats
    target: Floats
    scale: float

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement's log value."""
        return self.scale * float(np.exp(self.hyper[-1] / 2))

    @property
    def values(self) -> Floats:
        """The log values that it was fitted to."""
        affine, _ = self.prior.mean(self.theta, self.coordinates)
        values: Floats = self.target + affine - self.jacobian @ (self.theta - self.theta_mean)
        return values

    def affine(self, coordinates: Floats) -> Floats:
        """The affine part of the log value alone."""
        return self.prior.mean(self.theta, coordinates)[0]

    @property
    def weights(self) -> Floats:
        """Inverse covariance times target."""
        solved: Floats = cho_solve((self.cholesky, True), self.target)
        return solved

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """Residual of each row when it is left out, and its standard deviation (noise included)."""
        inverse = cho_solve((self.cholesky, True), np.eye(len(self.target)))
        diagonal = np.diag(inverse)
        return self.weights / diagonal, np.sqrt(1 / diagonal)

    def marginals(self, coordinates: Floats) -> tuple[Floats, Floats]:
        """Posterior mean and standard deviation of the log value, noise left out."""
        mean, cross, jacobian = self._mean(coordinates)
        explained = solve_triangular(self.cholesky, cross.T, lower=True)
        prior = self.prior.variance(self.hyper, coordinates, jacobian)
        variance = np.maximum(prior - (explained**2).sum(axis=0), JITTER)
        return mean, self.scale * np.sqrt(variance)

    def joint(self, coordinates: Floats) -> tuple[Floats, Floats]:
        """Posterior mean and covariance of the log values, noise left out."""
        mean, cross, jacobian = self._mean(coordinates)
        explained = solve_triangular(self.cholesky, cross.T, lower=True)
        gram = self.prior.gram(coordinates, jacobian, coordinates, jacobian)
        covariance = self.prior.kernel(self.hyper, gram) - explained.T @ explained
        return mean, self.scale**2 * covariance

    def _mean(self, coordinates: Floats) -> tuple[Floats, Floats, Floats]:
        affine, jacobian = self.prior.mean(self.theta, coordinates)
        gram = self.prior.gram(coordinates, jacobian, self.coordinates, self.jacobian)
        cross = self.prior.kernel(self.hyper, gram)
        mean = affine + jacobian @ (self.theta_mean - self.theta) + cross @ self.weights
        return mean, cross, jacobian


@dataclass
class _Fit:
    """The alternation: theta given the variances, the variances given the linearised model."""

    prior: AffinePrior
    rows: Rows
    theta_mean: Floats
    drift: Floats
    noise_weights: Floats

    def solve(self, hyper: Floats, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Jacobian, linearised target and Cholesky factor at theta."""
        affine, jacobian = self.prior.mean(theta, self.rows.coordinates)
        x = self.rows.coordinates
        covariance = self.prior.kernel(hyper, self.prior.gram(x, jacobian, x, jacobian))
        target = self.rows.values - affine + jacobian @ (theta - self.theta_mean)
        return jacobian, target, self._factor(covariance, hyper)

    def _factor(self, kernel: Floats, hyper: Floats) -> Floats:
        noise = np.exp(hyper[-1]) * self.noise_weights + JITTER
        factor: Floats = cholesky(kernel + self.drift + np.diag(noise), lower=True)
        return factor

    def newton(self, hyper: Floats, theta: Floats) -> Floats:
        """Theta at its posterior mode, by Gauss-Newton with bounded steps."""
        variance = self.prior.theta_variance(hyper)
        for _ in range(NEWTON_STEPS):
            jacobian, target, factor = self.solve(hyper, theta)
            mode = self.theta_mean + variance * (jacobian.T @ cho_solve((factor, True), target))
            step = mode - theta
            longest = float(np.abs(step).max())
            theta = theta + step * min(1.0, 1.0 / max(longest, JITTER))
            if longest < 1e-3:
                break
        return theta

    def variances(self, hyper: Floats, theta: Floats) -> Floats:
        """The log variances at the mode of their posterior given the linearised model."""
        jacobian, target, _ = self.solve(hyper, theta)
        x = self.rows.coordinates
        gram = self.prior.gram(x, jacobian, x, jacobian)
        mean, sd = self.prior.hyper_mean(), self.prior.hyper_sd()

        def loss(at: Floats) -> tuple[float, Floats]:
            factor = self._factor(self.prior.kernel(at, gram), at)
            inverse = cho_solve((factor, True), np.eye(len(target)))
            weights = inverse @ target
            slope = (inverse - np.outer(weights, weights)) / 2
            gradients = [float((slope * g).sum()) for g in self.prior.kernel_gradients(at, gram)]
            gradients.append(float((np.diag(slope) * self.noise_weights).sum() * np.exp(at[-1])))
            z = (at - mean) / sd
            value = target @ weights / 2 + np.log(np.diag(factor)).sum() + z @ z / 2
            return float(value), np.array(gradients) + z / sd

        bounds = list(zip(mean - HYPER_BOUND * sd, mean + HYPER_BOUND * sd, strict=True))
        options = {"maxiter": HYPER_ITERATIONS}
        found = minimize(loss, hyper, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        best: Floats = found.x
        return best


def fit_surface(prior: AffinePrior, rows: Rows) -> Surface:
    """Fit a surface to at least one row.

    Where it is linearised and its variances come from at most FITTED_ROWS rows; the posterior is
    of all.
    """
    with one_blas_thread():
        return _calibrated(_fitted(prior, rows), rows.recent)


def _fitted(prior: AffinePrior, rows: Rows) -> Surface:
    part = _fit(prior, rows.at(_spread(rows.groups)), rows)
    hyper = prior.hyper_mean()
    theta = part.newton(hyper, part.theta_mean)
    for _ in range(ROUNDS):
        hyper = part.variances(hyper, theta)
        theta = part.newton(hyper, theta)
    whole = _fit(prior, rows, rows)
    jacobian, target, factor = whole.solve(hyper, theta)
    return Surface(
        prior, hyper, theta, whole.theta_mean, rows.coordinates, jacobian, factor, target, scale=1.0
    )


def _spread(groups: Floats) -> Indices:
    """Positions of at most FITTED_ROWS rows: this study's first, then evenly from the history."""
    own, old = np.flatnonzero(groups == 0), np.flatnonzero(groups > 0)
    kept = own[_evenly(len(own), FITTED_ROWS)]
    more = old[_evenly(len(old), FITTED_ROWS - len(kept))]
    return np.concatenate([kept, more])


def _evenly(count: int, limit: int) -> Indices:
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(np.int64))


def _fit(prior: AffinePrior, rows: Rows, everything: Rows) -> _Fit:
    size = np.maximum(prior.log_size(everything.coordinates), 0.0)
    level = float(np.median((everything.values - size)[everything.recent]))
    old = rows.groups > 0
    same_group = (rows.groups[:, None] == rows.groups) & old
    z = contrast_matrix(prior.axes, rows.coordinates)
    drift = same_group * (OFFSET_SD**2 + DRIFT_SD**2 * z @ z.T)
    noise_weights = np.where(old, HISTORY_NOISE, 1.0) / rows.repeats
    return _Fit(prior, rows, prior.theta_mean(level), drift, noise_weights)


def _calibrated(surface: Surface, recent: Flags) -> Surface:
    """The surface with its uncertainty scaled to what leaving one out shows."""
    residual, sd = surface.leave_one_out()
    z = (residual / sd)[recent]
    scale = np.sqrt((CALIBRATION_PRIOR + float(z @ z)) / (CALIBRATION_PRIOR + len(z)))
    return Surface(**{**surface.__dict__, "scale": float(np.clip(scale, *SCALE_BOUNDS))})
