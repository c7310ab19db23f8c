"""What to try next: expected improvement over everything unseen, as a function and for Optuna."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.special import ndtr

from perfmodel.features import Floats, encode
from perfmodel.predictors.trees import Target, TreesPredictor, fit_predictor
from perfmodel.records import Configuration, Measurement, Value
from perfmodel.space import Space
from tuner.objective import Objective

MIN_WORKED = 10
"""Configurations that must have worked before the model may say that there is nothing to gain."""

STOP_PROBABILITY = 0.05
"""Stop when no unseen configuration is better by more than the noise with this probability."""

NOISE_BOUNDS = (0.005, 0.02)
"""Gains below the first (log) never matter; above the second they do, however noisy the machine:
the finals measure often enough to tell."""

MAX_CANDIDATES = 20_000
CONTENDERS = 64
DRAWS = 400
RISK_AVERSION = 2.0
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
class _Candidates:
    """Every legal configuration (or a large random part of them), and which were measured."""

    configurations: Sequence[Configuration]
    coordinates: Floats
    log_samples: Floats
    measured: np.ndarray
    worked: np.ndarray

    @classmethod
    def of(
        cls,
        space: Space,
        objective: Objective,
        measurements: Sequence[Measurement],
        rng: np.random.Generator,
    ) -> _Candidates:
        measured = {space.index(m.configuration) for m in measurements if m.configuration in space}
        worked = {
            space.index(m.configuration)
            for m in measurements
            if m.configuration in space and objective.score(m) > -math.inf
        }
        chosen = np.arange(len(space))
        if len(chosen) > MAX_CANDIDATES:
            sample = rng.choice(len(chosen), MAX_CANDIDATES, replace=False)
            chosen = np.array(sorted({*sample.tolist(), *measured}))
        configurations = [space.configurations[i] for i in chosen]
        log_samples = np.zeros(len(chosen))
        if objective.name == "samples_per_second":
            log_samples = np.log([objective.samples_per_step(c) for c in configurations])
        return cls(
            configurations,
            encode(space, configurations),
            log_samples,
            np.isin(chosen, list(measured)),
            np.isin(chosen, list(worked)),
        )


def target_of(objective: Objective) -> Target:
    """What the objective has predicted: seconds, or bytes."""
    return "bytes" if objective.name == "peak_memory" else "seconds"


def propose(
    space: Space,
    objective: Objective,
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
    seen = {m.configuration for m in measurements}
    if default in space and default not in seen:
        return Proposal(default, "the default is measured first")
    rng = np.random.default_rng([seed, len(seen)])
    candidates = _Candidates.of(space, objective, measurements, rng)
    if candidates.measured.all():
        return Proposal(
            None, f"all {len(space)} configurations of the space are measured", 0.0, 0.0
        )
    names = objective.size_names or ("batch_size",)
    predictor = fit_predictor(space, measurements, history, size_names=names)
    if predictor.surface(target_of(objective)) is None:
        return _first_that_works(predictor, candidates, default)
    return _most_promising(predictor, candidates, target_of(objective), rng)


def _first_that_works(
    predictor: TreesPredictor, candidates: _Candidates, default: Configuration
) -> Proposal:
    """Nothing has worked: the likeliest to, nearest to the default among equals."""
    changes = [sum(c[name] != default.get(name) for name in c) for c in candidates.configurations]
    chance = predictor.probability_ok(candidates.coordinates) - 1e-3 * np.array(changes)
    chance[candidates.measured] = -math.inf
    best = int(np.argmax(chance))
    return Proposal(candidates.configurations[best], "nothing has worked yet: the likeliest to")


def _most_promising(
    predictor: TreesPredictor, candidates: _Candidates, target: Target, rng: np.random.Generator
) -> Proposal:
    log_value, sigma = predictor.marginals(candidates.coordinates, target)
    score = candidates.log_samples - log_value
    chance = predictor.probability_ok(candidates.coordinates)
    worked = np.flatnonzero(candidates.worked)
    # With nothing but history, the most promising is simply the best.
    best = float(score[worked].max()) if len(worked) else math.inf
    gain = expected_improvement(score, sigma, best) if len(worked) else np.exp(score - score.max())
    gain = gain * chance**RISK_AVERSION
    gain[candidates.measured] = -math.inf
    following = candidates.configurations[int(np.argmax(gain))]
    if not len(worked):
        return Proposal(following, "the best by history")
    upper = np.where(candidates.measured, -math.inf, score + 2 * sigma + np.log(chance))
    unseen = np.argsort(-upper)[: min(CONTENDERS, int((~candidates.measured).sum()))]
    leaders = worked[np.argsort(-score[worked])[:8]]
    noise = min(max(predictor.noise(target), NOISE_BOUNDS[0]), NOISE_BOUNDS[1])
    expected, probability = _outlook(
        predictor,
        candidates,
        target,
        np.concatenate([leaders, unseen]),
        len(leaders),
        chance[unseen],
        noise,
        rng,
    )
    facts = (expected, probability, noise)
    if len(worked) >= MIN_WORKED and probability < STOP_PROBABILITY:
        reason = (
            f"no gain above the noise is expected: {probability:.0%} that any of the "
            f"{int((~candidates.measured).sum())} configurations left is better by more than "
            f"{noise:.1%}"
        )
        return Proposal(None, reason, *facts)
    return Proposal(following, "the most promising by the model", *facts)


def expected_improvement(score: Floats, sigma: Floats, best: float) -> Floats:
    """Expected excess of a normal score over `best`."""
    z = (score - best) / sigma
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Floats = sigma * (z * ndtr(z) + density)
    return improvement


def _outlook(
    predictor: TreesPredictor,
    candidates: _Candidates,
    target: Target,
    at: np.ndarray,
    leaders: int,
    chance: Floats,
    noise: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Expected gain of the best unseen over the best seen, and the chance that it beats noise."""
    mean, covariance = predictor.joint(candidates.coordinates[at], target)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = candidates.log_samples[at] - mean + rng.normal(size=(DRAWS, len(at))) @ root.T
    runs = rng.random((DRAWS, len(chance))) < chance
    unseen = np.where(runs, draws[:, leaders:], -math.inf).max(axis=1)
    gain = unseen - draws[:, :leaders].max(axis=1)
    return float(np.maximum(gain, 0.0).mean()), float((gain > noise).mean())


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
        self._space = space
        self._objective = objective
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
                self._space,
                self._objective,
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
        return distributions(self._space)

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
        allowed = ", ".join(self._space.names)
        raise ValueError(f"parameter {param_name!r} isn't in the space; allowed: {allowed}")


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space's parameters as Optuna's distributions."""
    return {p.name: CategoricalDistribution(p.values) for p in space.parameters}
