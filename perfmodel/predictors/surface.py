"""The posterior of log values over a space: MAP by Gauss-Newton, Laplace covariance, GP rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from perfmodel.features import Floats, contrast_matrix
from perfmodel.predictors.affine import AffinePrior

OFFSET_SD = 0.5
DRIFT_SD = 0.15
HISTORY_NOISE = 4.0
"""Other software or sources: free offset, drifting effects, this many times the noise variance."""

JITTER = 1e-8
ROUNDS = 2
NEWTON_STEPS = 5
HYPER_ITERATIONS = 15
HYPER_BOUND = 4.0
"""Log variances stay within this many prior standard deviations."""

CALIBRATION_PRIOR = 10.0
"""Pseudo-observations for the scale of the intervals being right already."""


@dataclass(frozen=True)
class Rows:
    """Observations: coordinates (n, p), log values, repeats behind each, group (0: now, else history)."""

    coordinates: Floats
    values: Floats
    repeats: Floats
    groups: Floats


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
        return float(np.exp(self.hyper[-1] / 2))

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
    """Fit a surface to at least one row."""
    recent = rows.groups == 0 if (rows.groups == 0).any() else np.full(len(rows.values), True)
    size = np.maximum(prior.log_size(rows.coordinates), 0.0)
    theta_mean = prior.theta_mean(float(np.median((rows.values - size)[recent])))
    old = rows.groups > 0
    same_group = (rows.groups[:, None] == rows.groups) & old
    z = contrast_matrix(prior.axes, rows.coordinates)
    drift = same_group * (OFFSET_SD**2 + DRIFT_SD**2 * z @ z.T)
    noise_weights = np.where(old, HISTORY_NOISE, 1.0) / rows.repeats
    fit = _Fit(prior, rows, theta_mean, drift, noise_weights)
    hyper = prior.hyper_mean()
    theta = fit.newton(hyper, theta_mean)
    for _ in range(ROUNDS):
        hyper = fit.variances(hyper, theta)
        theta = fit.newton(hyper, theta)
    jacobian, target, factor = fit.solve(hyper, theta)
    surface = Surface(
        prior, hyper, theta, theta_mean, rows.coordinates, jacobian, factor, target, scale=1.0
    )
    return _calibrated(surface, recent)


def _calibrated(surface: Surface, recent: Sequence[bool] | np.ndarray) -> Surface:
    """The surface with its uncertainty scaled to what leaving one out shows."""
    residual, sd = surface.leave_one_out()
    z = (residual / sd)[recent]
    scale = np.sqrt((CALIBRATION_PRIOR + float(z @ z)) / (CALIBRATION_PRIOR + len(z)))
    return Surface(**{**surface.__dict__, "scale": float(np.clip(scale, 0.8, 2.0))})
