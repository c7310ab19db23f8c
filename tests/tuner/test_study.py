"""The loop of a study, by replay: order, stopping, finals, resuming, what it concludes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
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
    before: Sequence[Measurement] = ()
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

    def add(self, measurement: Measurement) -> None:
        self.kept.append(measurement)

    def read(self) -> Sequence[Measurement]:
        return [*self.before, *self.kept]

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
    again = World(script(7), before=[m for m in before if m.conditions["purpose"] == "trial"])
    again.search(trials=6).run()
    assert not set(again.purposes("trial")) & {m.configuration for m in before}


def test_known_is_confirmed_by_one_trial(script: Scripts) -> None:
    world = World(script(7))
    search = world.search(trials=8)
    assert not search.concluded()
    outcome = search.run()
    again = World(script(7), before=world.kept)
    search = again.search()
    assert search.concluded()
    confirmed = search.confirm()
    assert confirmed.already_known
    assert confirmed.measured_now == 1
    assert confirmed.winner == outcome.winner
    assert again.notes == []


def test_a_changed_machine_is_noticed(script: Scripts) -> None:
    world = World(script(7))
    world.search(trials=8).run()
    slower = World(script(7, slower=1.5), before=world.kept)
    slower.search().confirm()
    assert any("worse than remembered" in note for note in slower.notes)
    gone = Failure(FailureReason.CRASH, "gone")
    broken = World(script(7), fails=lambda c: gone, before=world.kept)
    with pytest.raises(StudyError, match="no longer runs: crash: gone"):
        broken.search().confirm()


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


def test_what_every_configuration_shares_ends_the_study_at_once(script: Scripts) -> None:
    why = Failure(FailureReason.NOT_PROBED, "why", output="last words")
    world = World(script(2), fails=lambda c: why)
    with pytest.raises(StudyError, match="not_probed: why") as caught:
        world.search().run()
    assert len(world.kept) == 1
    assert "last words" in caught.value.context


@pytest.mark.parametrize("reason", [FailureReason.CRASH, FailureReason.NO_STEPS])
def test_the_same_failure_again_and_again_ends_the_study(
    script: Scripts, reason: FailureReason
) -> None:
    world = World(script(2), fails=lambda c: Failure(reason, "KeyError: 'x'"))
    with pytest.raises(StudyError, match="3 tried"):
        world.search().run()


def test_what_failed_yesterday_may_work_today(script: Scripts) -> None:
    """A data set was missing; now it isn't. The default and the rest are tried again."""
    missing = World(script(2), fails=lambda c: Failure(FailureReason.CRASH, "no data"))
    with pytest.raises(StudyError):
        missing.search().run()
    mended = World(script(2), before=missing.kept)
    outcome = mended.search(trials=5).run()
    assert mended.purposes("trial")[0] == mended.script.default
    assert outcome.compared


def test_a_tighter_deadline_is_not_the_last_word(script: Scripts) -> None:
    late = script(2)
    slow = sorted(late.space, key=late.seconds)[-60:]
    first = World(
        late, fails=lambda c: Failure(FailureReason.TIMEOUT, "late") if c in slow else None
    )
    first.search(trials=12, limits_of_trial=Facts(deadline_seconds=8.0)).run()
    timed_out = {m.configuration for m in first.kept if not m.ok}
    assert timed_out, "the replay must run into the deadline"
    same = World(script(2), before=first.kept).search(limits_of_trial=Facts(deadline_seconds=8.0))
    more = World(script(2), before=first.kept).search(limits_of_trial=Facts(deadline_seconds=60.0))
    assert timed_out <= {m.configuration for m in same.everything if same._final(m)}
    assert not timed_out & {m.configuration for m in more.everything if more._final(m)}


def test_another_default_keeps_the_winner(script: Scripts) -> None:
    """What was decided stays decided; only the new default is measured and compared."""
    world = World(script(3))
    winner = world.search(trials=12).run().winner
    other = next(c for c in world.script.space if c not in {m.configuration for m in world.kept})
    again = World(script(3), before=world.kept)
    search = again.search(default=other)
    assert search.concluded()
    assert not search.compared()
    assert search.outcome(stopped="").winner == winner
    outcome = search.run()
    assert again.purposes("trial") == [other]
    assert outcome.compared
    assert again.script.throughput(outcome.winner) >= 0.97 * again.script.throughput(winner)


def test_retune_measures_again(script: Scripts) -> None:
    world = World(script(3))
    world.search(trials=8).run()
    again = World(script(3), before=world.kept)
    outcome = again.search(trials=8, afresh=True).run()
    assert again.purposes("trial")[0] == world.script.default
    assert len(again.purposes("trial")) == 8
    assert set(outcome.measurements) == set(again.kept)


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

    anew = World(script(4), before=world.kept).search().trials
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


def test_two_workers_share_one_study(script: Scripts) -> None:
    """Each sees what the other has measured, and neither closes the other's open trial."""
    both = World(script(6))
    first, second = both.search(trials=3), both.search(trials=3)
    second.trials = first.trials  # one Optuna study, as on one database
    asked = first.trials.ask(first.measurements)
    assert asked.configuration is not None
    first.trials.synchronise(first.measurements)
    assert [t.state.name for t in first.trials._optuna.get_trials()] == ["RUNNING"]
    first.trials._optuna.tell(asked.trial, state=optuna.trial.TrialState.FAIL)
    first.trials.tell(asked, both.measure(asked.configuration))
    first.run()
    second._search()
    searched = both.purposes("trial")
    assert len(searched) == len(set(searched)) == 6
