"""The finals: gains from interleaved rounds, and a winner that really won."""

import math

import numpy as np
import pytest

from perfmodel.records import Configuration, Device, Facts, Measurement, Software, Workload
from tuner.finals import CONFIDENCE, MAX_ROUNDS, Verdict, finals_of, finished, gains, rotated

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
    assert Verdict(A, tuple(found), 3).winner == B


def test_noise_keeps_the_default() -> None:
    found = gains({A: [0.0, 0.02, -0.02], B: [0.03, -0.02, 0.01]}, A)
    assert found[0].low < 0 < found[0].high
    assert Verdict(A, tuple(found), 3).winner == A
    assert not finished(found, 3)
    assert finished(found, MAX_ROUNDS)


def test_one_round_proves_nothing() -> None:
    found = gains({A: [0.0], B: [1.0]}, A)
    assert found[0].low == -1.0
    assert Verdict(A, tuple(found), 3).winner == A


def test_interval_covers_the_truth() -> None:
    """Simulated finals of four configurations, 2 % noise: all three intervals hold the truth."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        noise = rng.normal(0, 0.02, (4, 3)) + rng.normal(0, 0.2, (1, 3))
        scores = {Configuration(i=i): list(noise[i] + 0.05 * i) for i in range(4)}
        found = {g.configuration["i"]: g for g in gains(scores, Configuration(i=0))}
        held += all(found[i].low <= math.expm1(0.05 * i) <= found[i].high for i in (1, 2, 3))
    assert held / 400 >= CONFIDENCE


@pytest.mark.parametrize("entrants", [2, 3, 4])
def test_false_winners_are_rare(entrants: int) -> None:
    """No true gain, the best of several challengers, two looks: less than 2.5 % win."""
    rng = np.random.default_rng(entrants)
    wins = 0
    for _ in range(1000):
        table = rng.normal(0, 0.02, (entrants, MAX_ROUNDS))
        for rounds in range(1, MAX_ROUNDS + 1):
            scores = {Configuration(i=i): list(table[i, :rounds]) for i in range(entrants)}
            found = gains(scores, Configuration(i=0))
            if finished(found, rounds):
                wins += found[0].low > 0
                break
    assert wins / 1000 <= (1 - CONFIDENCE) / 2 + 0.01


def test_without_the_default_there_is_no_gain() -> None:
    assert gains({B: [0.0, 0.1]}, A) == []
    assert Verdict(A, (), 0).winner == A


def finalist(
    configuration: Configuration, session: str, number: int, seconds: float
) -> Measurement:
    return Measurement(
        Device("cpu", "any", "any", "any", 1, 1), Software(), Workload("step", "x"), configuration,
        f"{session} {number}", (seconds,),
        conditions=Facts(
            purpose="finalist", study="s", session=session, round=number, entrants=2,
            baseline=configuration == A,
        ),
    )  # fmt: skip


def session(name: str, rounds: int, *, gain: float = 2.0, cut: bool = False) -> list[Measurement]:
    found = []
    for number in range(rounds):
        found += [finalist(A, name, number, 1.0), finalist(B, name, number, 1.0 / gain)]
    return [*found, finalist(A, name, rounds, 1.0)] if cut else found


def score(measurement: Measurement) -> float:
    return -math.log(measurement.seconds)


def test_an_interrupted_session_hides_no_earlier_one() -> None:
    through = session("2026-01-01", 3)
    stump = session("2026-01-02", 1, gain=0.5, cut=True)
    found = finals_of([*through, *stump], study="s")
    assert found is not None
    assert found.carried_through
    assert found.verdict(score, A).winner == B
    alone = finals_of(stump, study="s")
    assert alone is not None
    assert not alone.carried_through
    assert len(alone.rounds) == 1
    assert finals_of(through, study="another") is None


def test_a_default_that_took_no_part_denies_no_winner() -> None:
    found = finals_of(session("2026-01-01", 3), study="s")
    assert found is not None
    verdict = found.verdict(score, C)
    assert verdict.baseline == A
    assert verdict.winner == B
