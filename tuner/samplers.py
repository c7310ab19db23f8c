"""What to try next: expected improvement over everything unseen, as a function and for Optuna."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.special import ndtr

from perfmodel.features import Flags, Floats, encode
from perfmodel.predictors.threads import one_blas_thread
from perfmodel.predictors.trees import Target, TreesPredictor, fit_predictor
from perfmodel.records import Configuration, Measurement, Value
from perfmodel.space import Space
from tuner.objective import Objective

Indices = NDArray[np.int64]

MIN_WORKED = 12
"""Configurations that must have worked before the model may say that there is nothing to gain."""

STOP_PROBABILITY = 0.03
"""Stop when no unseen configuration is better by more than the noise with this probability."""

NOISE_BOUNDS = (0.005, 0.02)
"""Gains below the first (log) never matter; above the second they do, however noisy the machine:
the finals measure often enough to tell."""

MAX_CANDIDATES = 20_000
CONTENDERS = 64
LEADERS = 8
DRAWS = 400
RISK_AVERSION = 3.0
"""Power of the probability of success: a failed trial costs time and shows nothing else."""


@dataclass(frozen=True)
class Proposal:
    """What to measure next, and what the model expects of it.

    `configuration` is None when the search should stop. `expected_gain` is how much better than
    the best so far the best unseen configuration is expected to be (0.02: 2 %), `probability`
    that one is better by more than `noise`; NaN before anything worked.
    """

    configuration: Configuration | None
    reason: str
    expected_gain: float = math.nan
    probability: float = math.nan
    noise: float = math.nan


@dataclass(frozen=True)
class Grid:
    """Every legal configuration of a space as numbers, for an objective; made once a study."""

    space: Space
    objective: Objective
    coordinates: Floats
    log_samples: Floats

    @classmethod
    def of(cls, space: Space, objective: Objective) -> Grid:
        """The grid of a space."""
        log_samples = np.zeros(len(space))
        if objective.name == "samples_per_second":
            log_samples = np.log([objective.samples_per_step(c) for c in space])
        return cls(space, objective, encode(space, space.configurations), log_samples)


@dataclass(frozen=True)
class _Candidates:
    """A grid (or a large random part of it), and what of it was measured."""

    positions: Indices
    configurations: Sequence[Configuration]
    coordinates: Floats
    log_samples: Floats
    measured: Flags
    worked: Flags

    @classmethod
    def of(
        cls, grid: Grid, measurements: Sequence[Measurement], rng: np.random.Generator
    ) -> _Candidates:
        space = grid.space
        inside = [m for m in measurements if m.configuration in space]
        measured = {space.index(m.configuration) for m in inside}
        worked = {
            space.index(m.configuration) for m in inside if grid.objective.score(m) > -math.inf
        }
        chosen = np.arange(len(space))
        if len(chosen) > MAX_CANDIDATES:
            sample = rng.choice(len(chosen), MAX_CANDIDATES, replace=False)
            chosen = np.array(sorted({*sample.tolist(), *measured}))
        return cls(
            chosen,
            space.configurations,
            grid.coordinates[chosen],
            grid.log_samples[chosen],
            np.isin(chosen, list(measured)),
            np.isin(chosen, list(worked)),
        )

    def best(self, value: Floats) -> Configuration:
        """The configuration not yet measured with the largest value."""
        at = int(np.argmax(np.where(self.measured, -math.inf, value)))
        return self.configurations[int(self.positions[at])]


def target_of(objective: Objective) -> Target:
    """What the objective has predicted: seconds, or bytes."""
    return "bytes" if objective.name == "peak_memory" else "seconds"


def propose(
    grid: Grid,
    default: Configuration,
    measurements: Sequence[Measurement],
    *,
    history: Sequence[Measurement] = (),
    seed: int = 0,
) -> Proposal:
    """The next configuration: the default first, then the most promising one not yet measured.

    Always the same for the same arguments. Never one that was measured already (a failure counts)
    or that the space doesn't hold.
    """
    space = grid.space
    seen = {m.configuration for m in measurements}
    if default in space and default not in seen:
        return Proposal(default, "the default is measured first")
    rng = np.random.default_rng([seed, len(seen)])
    candidates = _Candidates.of(grid, measurements, rng)
    if candidates.measured.all():
        return Proposal(
            None, f"all {len(space)} configurations of the space are measured", 0.0, 0.0
        )
    with one_blas_thread():
        return _by_model(grid, candidates, default, measurements, history, rng)


def _by_model(
    grid: Grid,
    candidates: _Candidates,
    default: Configuration,
    measurements: Sequence[Measurement],
    history: Sequence[Measurement],
    rng: np.random.Generator,
) -> Proposal:
    space, target = grid.space, target_of(grid.objective)
    names = grid.objective.size_names or ("batch_size",)
    predictor = fit_predictor(space, measurements, history, size_names=names, targets=(target,))
    if predictor.surface(target) is None:
        return _first_that_works(predictor, candidates, default)
    return _most_promising(predictor, candidates, target, rng)


def _first_that_works(
    predictor: TreesPredictor, candidates: _Candidates, default: Configuration
) -> Proposal:
    """Nothing has worked: the likeliest to, nearest to the default among equals."""
    configurations = [candidates.configurations[i] for i in candidates.positions]
    changes = np.array([sum(c[n] != default.get(n) for n in c) for c in configurations])
    chance = predictor.probability_ok(candidates.coordinates)
    following = candidates.best(chance - 1e-3 * changes)
    return Proposal(following, "nothing has worked yet: the likeliest to")


def _most_promising(
    predictor: TreesPredictor, candidates: _Candidates, target: Target, rng: np.random.Generator
) -> Proposal:
    log_value, sigma = predictor.marginals(candidates.coordinates, target)
    score = candidates.log_samples - log_value
    chance = predictor.probability_ok(candidates.coordinates)
    worked = np.flatnonzero(candidates.worked)
    if not len(worked):
        return Proposal(candidates.best(score + RISK_AVERSION * np.log(chance)), "best by history")
    gain = expected_improvement(score, sigma, float(score[worked].max()))
    following = candidates.best(gain * chance**RISK_AVERSION)
    left = int((~candidates.measured).sum())
    upper = np.where(candidates.measured, -math.inf, score + 2 * sigma + np.log(chance))
    rivals = np.argsort(-upper)[: min(CONTENDERS, left)]
    leaders = worked[np.argsort(-score[worked])[:LEADERS]]
    noise = float(np.clip(predictor.noise(target), *NOISE_BOUNDS))
    mean, covariance = predictor.joint(
        candidates.coordinates[np.concatenate([leaders, rivals])], target
    )
    mean = candidates.log_samples[np.concatenate([leaders, rivals])] - mean
    gains = _gains(mean, covariance, chance[rivals], rng)
    expected, probability = float(np.maximum(gains, 0).mean()), float((gains > noise).mean())
    if len(worked) >= MIN_WORKED and probability < STOP_PROBABILITY:
        reason = (
            f"no gain above the noise is expected: a {probability:.0%} chance that any of the "
            f"{left} configurations left is better by more than {noise:.1%}"
        )
        return Proposal(None, reason, expected, probability, noise)
    return Proposal(following, "most promising by the model", expected, probability, noise)


def expected_improvement(score: Floats, sigma: Floats, best: float) -> Floats:
    """Expected excess of a normal score over `best`."""
    z = (score - best) / sigma
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Floats = sigma * (z * ndtr(z) + density)
    return improvement


def _gains(mean: Floats, covariance: Floats, chance: Floats, rng: np.random.Generator) -> Floats:
    """Draws of how much better the best rival is than the best leader.

    Leaders come first in `mean`; `chance` are the rivals' probabilities of running.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = mean + rng.normal(size=(DRAWS, len(mean))) @ root.T
    leaders = len(mean) - len(chance)
    runs = rng.random((DRAWS, len(chance))) < chance
    rivals = np.where(runs, draws[:, leaders:], -math.inf).max(axis=1)
    gains: Floats = rivals - draws[:, :leaders].max(axis=1)
    return gains


class GuidedSampler(BaseSampler):
    """`propose` as an Optuna sampler.

    What is known is read from `measurements` at each call, never from the study, so a trial needs
    to hold nothing. A proposal that says stop ends `optimize` (and repeats the default, since a
    trial is open already); with ask and tell, look at `proposal` before asking.
    """

    def __init__(
        self,
        space: Space,
        objective: Objective,
        default: Configuration,
        measurements: Callable[[], Sequence[Measurement]],
        *,
        history: Sequence[Measurement] = (),
        seed: int = 0,
    ) -> None:
        self._grid = Grid.of(space, objective)
        self._default = default
        self._measurements = measurements
        self._history = history
        self._seed = seed
        self._last: tuple[int, Proposal] | None = None

    def proposal(self) -> Proposal:
        """What comes next; computed once for the same number of measurements."""
        measurements = self._measurements()
        if self._last is None or self._last[0] != len(measurements):
            proposal = propose(
                self._grid,
                self._default,
                measurements,
                history=self._history,
                seed=self._seed,
            )
            self._last = (len(measurements), proposal)
        return self._last[1]

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every parameter, categorical over its values."""
        return distributions(self._grid.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values of the proposal."""
        configuration = self.proposal().configuration
        if configuration is None:
            configuration = self._default
            with suppress(RuntimeError):  # ask and tell: there is no loop to stop
                study.stop()
        return dict(configuration)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Value:
        """Refused: a parameter that the space doesn't hold has no value here."""
        allowed = ", ".join(self._grid.space.names)
        raise ValueError(f"parameter {param_name!r} isn't in the space; allowed: {allowed}")


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space's parameters as Optuna's distributions."""
    return {p.name: CategoricalDistribution(p.values) for p in space.parameters}
