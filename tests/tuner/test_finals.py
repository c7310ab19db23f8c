"""The finals: gains from interleaved rounds, and a winner that really won."""

import math

import numpy as np
import pytest

from perfmodel.records import Configuration
from tuner.finals import MAX_ROUNDS, finished, gains, rotated, winner

A, B, C = (Configuration(batch_size=b) for b in (1, 2, 3))


def test_order_rotates() -> None:
    assert [next(rotated([A, B, C], r)) for r in range(4)] == [A, B, C, A]
    assert sorted(map(str, rotated([A, B, C], 2))) == sorted(map(str, (A, B, C)))


def test_drift_between_rounds_cancels() -> None:
    """The machine slows down by half between rounds; within a round B is 10 % faster."""
    drift = [0.0, -0.5, -0.3]
    found = gains({A: drift, B: [d + math.log(1.1) for d in drift]}, A)
    assert found[0].gain == pytest.approx(0.1)
    assert found[0].low == pytest.approx(0.1)
    assert winner(found, A) == B


def test_noise_keeps_the_default() -> None:
    found = gains({A: [0.0, 0.02, -0.02], B: [0.03, -0.02, 0.01]}, A)
    assert found[0].low < 0 < found[0].high
    assert winner(found, A) == A
    assert not finished(found, 3)
    assert finished(found, MAX_ROUNDS)


def test_one_round_proves_nothing() -> None:
    found = gains({A: [0.0], B: [1.0]}, A)
    assert found[0].low == -1.0
    assert winner(found, A) == A


def test_interval_covers_the_truth() -> None:
    """Simulated finals of four configurations, 2 % noise: 95 % intervals hold the true gain."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        noise = rng.normal(0, 0.02, (4, 3)) + rng.normal(0, 0.2, (1, 3))
        scores = {Configuration(i=i): list(noise[i] + 0.05 * i) for i in range(4)}
        found = {g.configuration: g for g in gains(scores, Configuration(i=0))}
        held += found[Configuration(i=2)].low <= math.expm1(0.1) <= found[Configuration(i=2)].high
    assert 0.92 <= held / 400 <= 0.98


def test_without_the_default_there_is_no_gain() -> None:
    assert gains({B: [0.0, 0.1]}, A) == []
    assert winner([], A) == A
