"""The guided search on replayed scripts: quick, without repeats, and stopping in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
import pytest

from perfmodel.records import Configuration, Failure, FailureReason, Measurement
from perfmodel.space import Parameter, Space
from tuner.objective import Objective, objective_for
from tuner.samplers import Grid, GuidedSampler, Proposal, expected_improvement, propose

Scripts = Callable[..., Any]
SAMPLES = "batch_size*accumulation"


def search(
    replay: Any,
    objective: Objective,
    trials: int,
    *,
    history: Sequence[Measurement] = (),
    space: Space | None = None,
) -> tuple[list[Measurement], Proposal | None]:
    """Up to so many trials; the measurements and the proposal that stopped it."""
    grid = Grid.of(space or replay.space, objective)
    found: list[Measurement] = []
    while len(found) < trials:
        proposal = propose(grid, replay.default, found, history=history)
        if proposal.configuration is None:
            return found, proposal
        found.append(replay.measure(proposal.configuration))
    return found, None


def reached(replay: Any, measurements: Sequence[Measurement]) -> float:
    """The best measured configuration's true share of the optimum."""
    return max(replay.throughput(m.configuration) for m in measurements) / replay.best()


def test_within_3_percent_after_20_trials(script: Scripts) -> None:
    guided, random = [], []
    for seed in range(10):
        replay = script(seed, noise=0.02)
        found, _ = search(replay, objective_for(replay.space, samples=SAMPLES), 20)
        assert len({m.configuration for m in found}) == len(found)
        guided.append(reached(replay, found))
        random.append(reached(replay, [replay.measure(c) for c in replay.sample(20, seed=seed)]))
    assert np.mean(np.array(guided) >= 0.97) >= 0.9
    assert np.mean(guided) > np.mean(random) + 0.03


def test_out_of_memory_region_is_avoided(script: Scripts) -> None:
    shares, failures = [], []
    for seed in range(5):
        replay = script(seed, limit=3e8 + 1e6 * 100)
        found, _ = search(replay, objective_for(replay.space, samples=SAMPLES), 20)
        shares.append(reached(replay, found))
        failures.append(sum(not m.ok for m in found))
    assert min(shares) > 0.94
    assert np.mean(failures) <= 7


def test_default_first_then_something_else(script: Scripts) -> None:
    replay = script(0)
    grid = Grid.of(replay.space, objective_for(replay.space))
    first = propose(grid, replay.default, [])
    assert first.configuration == replay.default
    second = propose(grid, replay.default, [replay.measure(replay.default)])
    assert second.configuration not in (None, replay.default)
    assert second.expected_gain > 0


def test_same_arguments_same_proposal(script: Scripts) -> None:
    replay = script(0)
    grid = Grid.of(replay.space, objective_for(replay.space))
    found = [replay.measure(c) for c in [replay.default, *replay.sample(5)]]
    assert propose(grid, replay.default, found) == propose(grid, replay.default, found)


def test_small_space_is_exhausted_without_repeating(script: Scripts) -> None:
    replay = script(0)
    space = Space(
        (
            Parameter("batch_size", (32, 64)),
            Parameter("threads", (1, 2)),
            Parameter("precision", ("fp32", "bf16")),
            Parameter("accumulation", (1,)),
            Parameter("workers", (0, 1)),
        ),
        ("batch_size*threads<=64",),
    )
    found, stopped = search(replay, objective_for(space), 50, space=space)
    assert stopped is not None
    assert {m.configuration for m in found} <= set(space)
    assert len({m.configuration for m in found}) == len(found)
    if len(found) == len(space):
        assert f"all {len(space)}" in stopped.reason
    rest = [replay.measure(c) for c in space]
    exhausted = propose(Grid.of(space, objective_for(space)), replay.default, rest)
    assert exhausted.configuration is None
    assert "all 12 configurations" in exhausted.reason


def test_stops_when_nothing_is_left_to_gain(script: Scripts) -> None:
    reasons = []
    for seed in range(3):
        replay = script(seed, noise=0.01)
        found, stopped = search(replay, objective_for(replay.space, samples=SAMPLES), 60)
        assert stopped is not None
        assert 12 <= len(found) < 60
        assert reached(replay, found) > 0.97
        reasons.append(stopped.reason)
    assert all("no gain above the noise" in reason for reason in reasons)


def test_nothing_works_yet(script: Scripts) -> None:
    replay = script(0, limit=3e8 + 1e6 * 10)
    found, _ = search(replay, objective_for(replay.space), 8)
    assert not found[0].ok
    assert any(m.ok for m in found)


def test_crashes_of_one_value_are_avoided(script: Scripts) -> None:
    replay = script(0)
    grid = Grid.of(replay.space, objective_for(replay.space, samples=SAMPLES))
    found: list[Measurement] = []
    for _ in range(14):
        proposal = propose(grid, replay.default, found)
        assert proposal.configuration is not None
        measurement = replay.measure(proposal.configuration)
        if proposal.configuration["precision"] == "bf16":
            failure = Failure(FailureReason.CRASH)
            measurement = dataclasses.replace(measurement, samples=(), failure=failure)
        found.append(measurement)
    assert sum(not m.ok for m in found) <= 6


def test_history_shortens_the_search(script: Scripts) -> None:
    replay, old = script(4, noise=0.01), script(4, noise=0.01, slower=1.3)
    history = [old.measure(c, torch="2.9.0") for c in old.sample(60)]
    objective = objective_for(replay.space, samples=SAMPLES)
    found, _ = search(replay, objective, 5, history=history)
    assert reached(replay, found) > 0.95


@pytest.mark.parametrize("name", ["step_seconds", "peak_memory"])
def test_other_objectives(script: Scripts, name: str) -> None:
    replay = script(2)
    objective = objective_for(replay.space, name=name, samples=SAMPLES)
    found, _ = search(replay, objective, 15)
    value = replay.seconds if name == "step_seconds" else replay.bytes
    best = min(value(c) for c in replay.space)
    assert min(value(m.configuration) for m in found) < 1.05 * best


def test_default_outside_of_the_space(script: Scripts) -> None:
    replay = script(0)
    default = Configuration({**replay.default, "batch_size": 48})
    grid = Grid.of(replay.space, objective_for(replay.space))
    proposal = propose(grid, default, [replay.measure(default)])
    assert proposal.configuration in replay.space
    assert propose(grid, default, []).configuration in replay.space


def test_expected_improvement() -> None:
    rng = np.random.default_rng(0)
    score, sigma = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.1, 0.5])
    draws = score + sigma * rng.normal(size=(200_000, 3))
    expected = np.maximum(draws - 0.5, 0).mean(axis=0)
    assert np.allclose(expected_improvement(score, sigma, 0.5), expected, atol=5e-3)


def test_as_an_optuna_sampler(script: Scripts) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    replay = script(1)
    objective = objective_for(replay.space, samples=SAMPLES)
    found: list[Measurement] = []
    sampler = GuidedSampler(replay.space, objective, replay.default, lambda: found)
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def measure(trial: optuna.Trial) -> float:
        values = {
            p.name: trial.suggest_categorical(p.name, p.values) for p in replay.space.parameters
        }
        found.append(replay.measure(Configuration(values)))
        return objective.score(found[-1])

    study.optimize(measure, n_trials=6)
    assert Configuration(study.trials[0].params) == replay.default
    assert len({m.configuration for m in found}) == 6
    asked = study.ask(sampler.infer_relative_search_space(study, study.trials[0]))
    assert Configuration(asked.params) == sampler.proposal().configuration
    with pytest.raises(ValueError, match="allowed: batch_size"):
        asked.suggest_categorical("other", [1, 2])


def test_optimize_ends_when_the_search_does(script: Scripts) -> None:
    space = Space((Parameter("batch_size", (1, 2)), Parameter("compile", (False, True))))
    template = script(0).measure(script(0).default)
    found: list[Measurement] = []
    default = space.configurations[0]
    sampler = GuidedSampler(space, objective_for(space), default, lambda: found)
    study = optuna.create_study(sampler=sampler)

    def measure(trial: optuna.Trial) -> float:
        values = {p.name: trial.suggest_categorical(p.name, p.values) for p in space.parameters}
        found.append(dataclasses.replace(template, configuration=Configuration(values)))
        return 0.0

    study.optimize(measure, n_trials=50)
    assert len(study.trials) == len(space) + 1
