"""The loop of a study, by replay: order, stopping, finals, resuming, what it concludes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from perfmodel.errors import StudyError
from perfmodel.history import Study
from perfmodel.records import Configuration, Facts, Failure, FailureReason, Measurement
from perfmodel.space import Parameter, Space
from tuner.finals import MAX_ROUNDS, MIN_ROUNDS
from tuner.objective import Objective, objective_for
from tuner.study import Limits, Search
from tuner.trials import ADDRESS, Trials


@dataclass
class World:
    """A replayed script with a clock of its own: every measurement takes `cost` seconds."""

    script: Any
    fails: Callable[[Configuration], Failure | None] = lambda c: None
    cost: float = 4.0
    now: float = 0.0
    kept: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    space: Space | None = None

    def measure(self, configuration: Configuration) -> Measurement:
        self.now += self.cost
        measured = self.script.measure(configuration)
        failure = self.fails(configuration)
        if failure is not None:
            measured = replace(measured, samples=(), failure=failure)
        return replace(measured, conditions=Facts(elapsed_seconds=self.cost))

    def add(self, measurements: Sequence[Measurement]) -> int:
        self.kept += measurements
        return len(measurements)

    def started(self, number: int, configuration: Configuration, purpose: str) -> None:
        pass

    def ended(self, number: int, measured: Measurement, best: Configuration | None) -> None:
        assert self.kept[-1] is measured, "stored before anything else happens"

    def note(self, text: str) -> None:
        self.notes.append(text)

    def search(self, *, seconds: float = 3600.0, trials: int = 20, **more: Any) -> Search:
        sample = self.script.measure(self.script.default)
        space = self.space or self.script.space
        study = Study(
            sample.device, sample.software, sample.workload, space, "samples_per_second",
            "batch_size*accumulation",
        )  # fmt: skip
        objective = objective_for(space, samples="batch_size*accumulation")
        default = more.pop("default", self.script.default)
        return Search(
            study=study,
            objective=objective,
            default=default,
            limits=Limits(seconds, trials),
            measure=self.measure,
            records=self,
            trials=Trials(study, objective, default),
            observer=self,
            clock=lambda: self.now,
            **more,
        )

    def purposes(self, purpose: str) -> list[Configuration]:
        return [m.configuration for m in self.kept if m.conditions["purpose"] == purpose]


Scripts = Callable[..., Any]


def test_default_first_none_twice_then_interleaved_finals(script: Scripts) -> None:
    world = World(script(3))
    outcome = world.search(trials=15).run()
    searched = world.purposes("trial")
    assert searched[0] == world.script.default
    assert len(searched) == len(set(searched)) <= 15
    rounds = [m for m in world.kept if m.conditions["purpose"] == "finalist"]
    entrants = {m.configuration for m in rounds if m.conditions["round"] == 0}
    assert world.script.default in entrants
    assert outcome.winner in entrants
    for number in range(MIN_ROUNDS):
        assert {m.configuration for m in rounds if m.conditions["round"] == number} == entrants
    assert outcome.gain is not None
    assert outcome.gain.low > 0
    truth = world.script.throughput(outcome.winner) / world.script.throughput(outcome.default) - 1
    assert outcome.gain.low - 0.05 <= truth <= outcome.gain.high + 0.05
    assert outcome.predicted is not None
    assert outcome.measured_now == len(world.kept)


def test_the_default_stays_when_nothing_is_really_faster(script: Scripts) -> None:
    """Two configurations, equal but for the noise."""
    flat = script(1, noise=0.03)
    flat.seconds = lambda c: 0.01
    flat.bytes = lambda c: 3e8
    flat.space = Space(
        (Parameter("batch_size", (8,)), Parameter("accumulation", (1,)), Parameter("x", (1, 2)))
    )
    flat.default = Configuration(batch_size=8, accumulation=1, x=1)
    world = World(flat)
    outcome = world.search().run()
    assert outcome.winner == flat.default
    assert outcome.gain is None
    assert MIN_ROUNDS * 2 <= len(world.purposes("finalist")) <= MAX_ROUNDS * 2
    assert outcome.stopped == "all 2 configurations of the space are measured"


def test_the_budget_leaves_time_for_the_finals(script: Scripts) -> None:
    world = World(script(5))
    outcome = world.search(seconds=60.0, trials=99).run()
    assert "--budget" in outcome.stopped
    assert len(world.purposes("trial")) >= 6
    assert world.now <= 60.0 + MIN_ROUNDS * 4 * world.cost
    assert len(world.purposes("finalist")) >= 2 * MIN_ROUNDS


def test_the_number_of_trials_is_kept(script: Scripts) -> None:
    world = World(script(5))
    outcome = world.search(trials=4).run()
    assert len(world.purposes("trial")) == 4
    assert outcome.stopped == "4 trials were made (--trials)"


def test_going_on_repeats_nothing(script: Scripts) -> None:
    world = World(script(7))
    world.search(trials=6).run()
    before = list(world.kept)
    again = World(script(7))
    again.search(trials=6, known=before).run()
    assert not set(again.purposes("trial")) & {m.configuration for m in before}


def test_known_is_confirmed_by_one_trial(script: Scripts) -> None:
    world = World(script(7))
    search = world.search(trials=8)
    assert not search.concluded()
    outcome = search.run()
    again = World(script(7))
    search = again.search(known=world.kept)
    assert search.concluded()
    confirmed = search.confirm()
    assert confirmed.already_known
    assert confirmed.measured_now == 1
    assert confirmed.winner == outcome.winner
    assert again.notes == []


def test_a_changed_machine_is_noticed(script: Scripts) -> None:
    world = World(script(7))
    world.search(trials=8).run()
    slower = World(script(7, slower=1.5))
    slower.search(known=world.kept).confirm()
    assert any("slower than remembered" in note for note in slower.notes)
    broken = World(script(7), fails=lambda c: Failure(FailureReason.CRASH, "gone"))
    with pytest.raises(StudyError, match="no longer runs: crash: gone"):
        broken.search(known=world.kept).confirm()


def test_a_default_that_fails_is_a_trial_like_any_other(script: Scripts) -> None:
    failing = script(2)
    world = World(
        failing,
        fails=lambda c: Failure(FailureReason.OUT_OF_MEMORY) if c == failing.default else None,
    )
    search = world.search(trials=8)
    outcome = search.run()
    assert outcome.winner != failing.default
    assert outcome.gain is None, "there is nothing to compare with"
    assert search.concluded()


@pytest.mark.parametrize("reason", [FailureReason.NOT_PROBED, FailureReason.NO_STEPS])
def test_what_every_configuration_shares_ends_the_study_at_once(
    script: Scripts, reason: FailureReason
) -> None:
    world = World(script(2), fails=lambda c: Failure(reason, "why", output="last words"))
    with pytest.raises(StudyError, match=f"{reason}: why") as caught:
        world.search().run()
    assert len(world.kept) == 1
    assert "last words" in caught.value.context


def test_the_same_crash_twice_ends_the_study(script: Scripts) -> None:
    world = World(script(2), fails=lambda c: Failure(FailureReason.CRASH, "KeyError: 'x'"))
    with pytest.raises(StudyError, match="2 tried"):
        world.search().run()


def test_optuna_agrees_with_the_measurements(script: Scripts) -> None:
    """Each trial holds its measurement's address, and all can be made anew from measurements."""
    world = World(script(4))
    search = world.search(trials=6)
    search.run()
    told = search.trials._optuna.get_trials()
    trials = [m for m in world.kept if m.conditions["purpose"] == "trial"]
    assert [t.user_attrs[ADDRESS] for t in told] == [m.address for m in trials]
    objective = search.objective
    assert [t.value for t in told] == pytest.approx([objective.value(m) for m in trials])
    assert [Configuration(t.params) for t in told] == [m.configuration for m in trials]

    anew = World(script(4)).search(known=world.kept).trials
    anew.synchronise(world.kept)
    anew.synchronise(world.kept)
    assert len(anew._optuna.get_trials()) == len(world.kept)


def test_other_objectives_have_their_own_best(script: Scripts) -> None:
    small = script(4)
    objective = Objective("peak_memory", "", small.space.names)
    light, heavy = (
        small.measure(c) for c in sorted(small.space, key=small.bytes)[:: len(small.space) - 1]
    )
    assert objective.score(light) > objective.score(heavy)
    assert objective.text(objective.value(light)).endswith("MiB")
