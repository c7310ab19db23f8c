"""The predictor on replayed scripts: accuracy, honest intervals, failures, history, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.predictors.trees import fit_predictor
from perfmodel.records import Configuration, Failure, FailureReason, Measurement
from perfmodel.space import Parameter, Space

Scripts = Callable[..., Any]
SIZES = ("batch_size", "accumulation")


def test_held_out_error_and_coverage(script: Scripts) -> None:
    inside, errors = [], []
    for seed in range(12):
        replay = script(seed, noise=0.02)
        chosen = replay.sample(80, seed=seed)
        fitted = fit_predictor(
            replay.space, [replay.measure(c) for c in chosen[:20]], size_names=SIZES
        )
        predicted = fitted.predict(chosen[20:])
        measured = np.array([replay.measure(c).seconds for c in chosen[20:]])
        inside.append(np.mean((predicted.low <= measured) & (measured <= predicted.high)))
        errors.append(np.median(np.abs(predicted.seconds / measured - 1)))
        assert (predicted.low < predicted.seconds).all()
        assert (predicted.seconds < predicted.high).all()
    assert 0.85 <= np.mean(inside) <= 0.99
    assert np.mean(errors) < 0.06


def test_more_measurements_make_it_better_and_trees_may_join(script: Scripts) -> None:
    replay = script(3, noise=0.01)
    chosen = replay.sample(220)
    measurements = [replay.measure(c) for c in chosen[:160]]
    true = np.array([replay.seconds(c) for c in chosen[160:]])
    errors = [
        np.abs(
            fit_predictor(replay.space, measurements[:n]).predict(chosen[160:]).seconds / true - 1
        )
        for n in (10, 160)
    ]
    assert np.median(errors[1]) < np.median(errors[0])
    assert np.median(errors[1]) < 0.02


def test_jumps_that_are_no_curve_are_left_to_the_trees(
    jumpy: tuple[Space, list[Measurement]], monkeypatch: pytest.MonkeyPatch
) -> None:
    space, measurements = jumpy
    held_out = measurements[120:]
    error = {}
    for kept in (True, False):
        if not kept:
            monkeypatch.setattr("perfmodel.predictors.trees.earned", lambda *_: None)
        predictor = fit_predictor(space, measurements[:120])
        assert (predictor.forest is not None) == kept
        predicted = predictor.predict([m.configuration for m in held_out]).seconds
        logs = np.log(predicted / [m.seconds for m in held_out])
        error[kept] = float(np.sqrt(np.mean(logs**2)))
    assert error[True] < 0.9 * error[False]


def test_history_of_another_torch_helps(script: Scripts) -> None:
    replay, old = script(5, noise=0.01), script(5, noise=0.01, slower=1.4)
    chosen = replay.sample(100)
    own = [replay.measure(c) for c in chosen[:4]]
    history = [old.measure(c, torch="2.9.0") for c in chosen[4:40]]
    true = np.log([replay.seconds(c) for c in chosen[40:]])
    alone, helped = (
        np.log(fit_predictor(replay.space, own, h, size_names=SIZES).predict(chosen[40:]).seconds)
        for h in ((), history)
    )
    assert np.median(np.abs(helped - true)) < 0.5 * np.median(np.abs(alone - true))
    assert abs(np.median(helped - true)) < 0.1


def test_running_out_of_memory_is_learnt(script: Scripts) -> None:
    replay = script(1, limit=3e8 + 1e6 * 200)
    measurements = [replay.measure(c) for c in replay.sample(16)]
    assert any(not m.ok for m in measurements)
    chance = fit_predictor(replay.space, measurements).predict(replay.space.configurations)
    runs = np.array([replay.throughput(c) > 0 for c in replay.space])
    assert np.mean((chance.probability_ok > 0.5) == runs) > 0.85
    batch = np.array([float(c["batch_size"]) for c in replay.space])
    means = [chance.probability_ok[batch == b].mean() for b in np.unique(batch)]
    assert means == sorted(means, reverse=True)


def test_a_crash_is_learnt_by_its_parameter(script: Scripts) -> None:
    replay = script(1)
    measurements = [
        dataclasses.replace(m, samples=(), failure=Failure(FailureReason.CRASH))
        if m.configuration["precision"] == "bf16"
        else m
        for m in (replay.measure(c) for c in replay.sample(14))
    ]
    chance = fit_predictor(replay.space, measurements).predict(replay.space.configurations)
    bf16 = np.array([c["precision"] == "bf16" for c in replay.space])
    assert chance.probability_ok[bf16].max() < 0.4
    assert chance.probability_ok[~bf16].min() > 0.7


def test_peak_memory(script: Scripts) -> None:
    replay = script(2)
    predictor = fit_predictor(replay.space, [replay.measure(c) for c in replay.sample(16)])
    predicted = predictor.predict(replay.space.configurations).peak_bytes
    true = np.array([replay.bytes(c) for c in replay.space])
    assert np.median(np.abs(predicted / true - 1)) < 0.03


def test_extrapolation_is_flagged(script: Scripts) -> None:
    replay = script(0)
    seen = [c for c in replay.sample(60) if c["batch_size"] <= 64 and c["precision"] == "fp32"]
    predictor = fit_predictor(replay.space, [replay.measure(c) for c in seen])
    base = replay.default.to_json()
    asked = [
        Configuration(base),
        Configuration({**base, "batch_size": 128}),
        Configuration({**base, "batch_size": 24}),
        Configuration({**base, "precision": "bf16"}),
        Configuration({**base, "precision": "fp8"}),
    ]
    assert predictor.predict(asked).extrapolating.tolist() == [False, True, False, True, True]


def test_nothing_known() -> None:
    space = Space((Parameter("batch_size", (1, 2)),))
    predicted = fit_predictor(space, []).predict(space.configurations)
    assert np.isnan(predicted.seconds).all()
    assert np.isnan(predicted.peak_bytes).all()
    assert predicted.probability_ok.tolist() == [1.0, 1.0]
    assert predicted.extrapolating.all()


def test_one_measurement_and_foreign_ones(script: Scripts) -> None:
    replay = script(0)
    measurement = replay.measure(replay.default)
    foreign = dataclasses.replace(measurement, configuration=Configuration(batch_size=4))
    odd = dataclasses.replace(
        measurement, configuration=Configuration({**replay.default, "threads": "all"})
    )
    predictor = fit_predictor(replay.space, [measurement, foreign, odd])
    predicted = predictor.predict([replay.default])
    assert predicted.seconds[0] == pytest.approx(measurement.seconds, rel=0.1)


def test_a_space_without_a_size_and_with_a_single_value(script: Scripts) -> None:
    space = Space((Parameter("mode", ("a", "b", "c")), Parameter("one", (1,))))
    template = script(0).measure(script(0).default)
    times = {"a": 1.0, "b": 2.0, "c": 4.0}
    measurements = [
        dataclasses.replace(template, configuration=c, samples=(times[str(c["mode"])],))
        for c in space
        for _ in range(3)
    ]
    predicted = fit_predictor(space, measurements).predict(space.configurations)
    assert predicted.seconds == pytest.approx([1.0, 2.0, 4.0], rel=0.1)
