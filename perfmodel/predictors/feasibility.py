"""Probability that a configuration runs: a memory limit in octaves of batch, and other failures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.features import Flags, Floats

STEEPNESS = 6.0
"""Logits per octave around the memory limit."""

LIMIT_ABOVE = (1.5, 2.0)
"""Prior of the limit, in octaves above the largest batch: mean and sd."""

LIMIT_EFFECT_SD = 0.5
LIMIT_SLOPE = (1.0, 0.15)
RUNS_LOGIT = (3.5, 1.5)
"""Prior of the logit of running for reasons other than memory: mean and sd."""

RUNS_EFFECT_SD = 2.0
NEWTON_STEPS = 25
SMALLEST_STEP = 1e-6


@dataclass(frozen=True)
class Logistic:
    """A logistic regression with a Gaussian prior: posterior mode and covariance."""

    mean: Floats
    covariance: Floats

    def probability(self, design: Floats) -> Floats:
        """Probability averaged over the posterior (MacKay's approximation)."""
        logit = design @ self.mean
        variance = ((design @ self.covariance) * design).sum(axis=1)
        return _sigmoid(logit / np.sqrt(1 + np.pi * variance / 8))


def fit_logistic(design: Floats, labels: Flags, mean: Floats, sd: Floats) -> Logistic:
    """Posterior of the coefficients by Newton's method with step halving."""
    precision = 1 / sd**2
    signs = np.where(labels, -1.0, 1.0)

    def loss(at: Floats) -> float:
        misfit = np.logaddexp(0.0, signs * (design @ at)).sum()
        return float(misfit + (precision * (at - mean) ** 2).sum() / 2)

    theta, current = mean.copy(), loss(mean)
    for _ in range(NEWTON_STEPS):
        expected = _sigmoid(design @ theta)
        slope = design.T @ (labels - expected) - precision * (theta - mean)
        step = np.linalg.solve(_curvature(design, expected, precision), slope)
        # Far from the mode a full step of a steep logistic overshoots and never comes back.
        while (after := loss(theta + step)) > current and np.abs(step).max() > SMALLEST_STEP:
            step = step / 2
        if np.abs(step).max() <= SMALLEST_STEP:
            break
        theta, current = theta + step, after
    curvature = _curvature(design, _sigmoid(design @ theta), precision)
    return Logistic(theta, np.asarray(np.linalg.inv(curvature), dtype=np.float64))


def _curvature(design: Floats, expected: Floats, precision: Floats) -> Floats:
    weighted: Floats = (design.T * (expected * (1 - expected))) @ design + np.diag(precision)
    return weighted


def _sigmoid(logit: Floats) -> Floats:
    bounded: Floats = 1 / (1 + np.exp(-np.clip(logit, -30.0, 30.0)))
    return bounded


@dataclass(frozen=True)
class Feasibility:
    """Two independent causes of failure; None where it has never been seen."""

    memory: Logistic | None = None
    other: Logistic | None = None

    def probability(self, contrasts: Floats, octaves_below: Floats) -> Floats:
        """Probability of running: `octaves_below` is log2(largest batch / batch)."""
        result = np.ones(len(contrasts))
        if self.memory is not None:
            result *= self.memory.probability(memory_design(contrasts, octaves_below))
        if self.other is not None:
            result *= self.other.probability(other_design(contrasts))
        return result


def memory_design(contrasts: Floats, octaves_below: Floats) -> Floats:
    """Columns of the memory limit's logistic regression."""
    ones = np.ones((len(contrasts), 1))
    return STEEPNESS * np.concatenate([ones, contrasts, octaves_below[:, None]], axis=1)


def other_design(contrasts: Floats) -> Floats:
    """Columns of the other failures' logistic regression."""
    return np.concatenate([np.ones((len(contrasts), 1)), contrasts], axis=1)


def fit_feasibility(
    contrasts: Floats, octaves_below: Floats, ran: Flags, out_of_memory: Flags
) -> Feasibility:
    """Learn from what ran, what ran out of memory, and what failed otherwise (neither flag).

    `contrasts` leave the batch out: more of it never needs less memory, so it only enters through
    the limit.
    """
    count = contrasts.shape[1]
    memory = other = None
    if out_of_memory.any():
        kept = ran | out_of_memory
        design = memory_design(contrasts[kept], octaves_below[kept])
        mean = np.array([LIMIT_ABOVE[0], *np.zeros(count), LIMIT_SLOPE[0]])
        sd = np.array([LIMIT_ABOVE[1], *np.full(count, LIMIT_EFFECT_SD), LIMIT_SLOPE[1]])
        memory = fit_logistic(design, ran[kept], mean, sd)
    failed = ~ran & ~out_of_memory
    if failed.any():
        kept = ran | failed
        mean = np.array([RUNS_LOGIT[0], *np.zeros(count)])
        sd = np.array([RUNS_LOGIT[1], *np.full(count, RUNS_EFFECT_SD)])
        other = fit_logistic(other_design(contrasts[kept]), ran[kept], mean, sd)
    return Feasibility(memory, other)
