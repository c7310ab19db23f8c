"""One study: default first, guided trials, interleaved finals, and a winner that really won."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from perfmodel.errors import StudyError
from perfmodel.history import Study
from perfmodel.records import Configuration, Facts, FailureReason, Measurement, Prediction
from tuner.finals import (
    FINALIST,
    MIN_ROUNDS,
    Gain,
    finished,
    gains,
    rotated,
    rounds_of,
    scores_by_round,
    winner,
)
from tuner.objective import Objective
from tuner.trials import Trials

Measure = Callable[[Configuration], Measurement]

MAX_FINALISTS = 3
FINALIST_MARGIN = 0.05
"""A configuration within this much of the best (in log score) may be a finalist."""

HOPELESS = (FailureReason.NOT_PROBED, FailureReason.NO_STEPS)
"""Failures that every configuration shares: the study ends at the first."""


class Observer(Protocol):
    """Who watches a study: the progress display."""

    def started(self, number: int, configuration: Configuration, purpose: str) -> None:
        """A trial begins."""

    def ended(self, number: int, measurement: Measurement, best: Configuration | None) -> None:
        """A trial has ended and is stored."""

    def note(self, text: str) -> None:
        """Something a user should know."""


class Records(Protocol):
    """The part of the store that a study writes to."""

    def add(self, measurements: Sequence[Measurement], /) -> int:
        """Keep the measurements; the number of new ones."""


@dataclass(frozen=True)
class Limits:
    """When a search must stop: wall seconds of the whole study, number of search trials."""

    seconds: float
    trials: int


@dataclass(frozen=True)
class Outcome:
    """What a study found. `measurements` are all of its space, earlier ones included."""

    study: Study
    default: Configuration
    winner: Configuration
    gains: tuple[Gain, ...]
    measurements: tuple[Measurement, ...]
    measured_now: int
    stopped: str
    already_known: bool
    predicted: Prediction | None = None
    """For the winner, by a model that hasn't seen it."""
    expected: Prediction | None = None
    """For the winner, by a model of everything measured."""

    @property
    def gain(self) -> Gain | None:
        """The winner's gain over the default; None when the default stays or doesn't run."""
        if not any(m.ok for m in self.of(self.default)):
            return None
        return next((g for g in self.gains if g.configuration == self.winner), None)

    def of(self, configuration: Configuration) -> list[Measurement]:
        """The measurements of one configuration."""
        return [m for m in self.measurements if m.configuration == configuration]


@dataclass
class Search:
    """The loop of one study.

    `measure` runs one configuration (a process, or a replay of recorded timings); `known` are
    earlier measurements of this very workload, device and software, the Optuna side (`trials`)
    proposes what comes next. `clock` gives monotonic seconds.
    """

    study: Study
    objective: Objective
    default: Configuration
    limits: Limits
    measure: Measure
    records: Records
    trials: Trials
    observer: Observer
    known: Sequence[Measurement] = ()
    clock: Callable[[], float] = time.monotonic
    _new: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._session = datetime.now(UTC).isoformat()

    # -- what is known ---------------------------------------------------------------------

    @property
    def measurements(self) -> list[Measurement]:
        """Everything measured in this space, oldest first."""
        return [m for m in (*self.known, *self._new) if m.configuration in self.study.space]

    def score(self, configuration: Configuration) -> float:
        """Median score of a configuration's measurements; -inf if none worked."""
        scores = [
            self.objective.score(m)
            for m in self.measurements
            if m.ok and m.configuration == configuration
        ]
        return statistics.median(scores) if scores else float("-inf")

    def ranking(self) -> list[Configuration]:
        """The configurations that worked, best first."""
        worked = dict.fromkeys(m.configuration for m in self.measurements if m.ok)
        return sorted(worked, key=lambda c: -self.score(c))

    def concluded(self) -> bool:
        """Whether the answer is known: finals carried through, or nothing left to measure."""
        rounds = rounds_of(self.measurements, study=self.study.address)
        if rounds and len([r for r in rounds if len(r) == len(rounds[0])]) >= MIN_ROUNDS:
            return True
        measured = {m.configuration for m in self.measurements}
        return len(self.ranking()) == 1 and len(measured) == len(self.study.space)

    def baseline(self) -> Configuration:
        """What the finals compare with: the default, or the best if the default doesn't run."""
        ranking = self.ranking()
        return self.default if self.default in ranking else ranking[0]

    # -- running ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Search, then finals; StudyError when no configuration works."""
        self.trials.synchronise(self.measurements)
        stopped = self._search()
        if not self.ranking():
            raise self._nothing_works()
        self._finals()
        return self.outcome(stopped=stopped)

    def confirm(self) -> Outcome:
        """One trial of the known winner, to see that it still runs as remembered."""
        remembered = self.outcome(stopped="known from earlier studies").winner
        before = self.score(remembered)
        measurement = self._trial(remembered, purpose="confirm")
        if not measurement.ok:
            raise StudyError(
                f"the known winner {remembered} no longer runs: {failure_text(measurement)}",
                next_command="run --retune ...",
            )
        drift = self.objective.score(measurement) - before
        if abs(drift) > 0.1:
            self.observer.note(
                f"the winner ran {abs(drift):.0%} {'faster' if drift > 0 else 'slower'} than "
                "remembered: other load or a changed machine; --retune searches again"
            )
        return self.outcome(stopped="known from earlier studies", already_known=True)

    def outcome(self, *, stopped: str, already_known: bool = False) -> Outcome:
        """The present answer, from the measurements alone."""
        measurements = self.measurements
        rounds = rounds_of(measurements, study=self.study.address)
        baseline = self.baseline()
        found = gains(scores_by_round(rounds, self.objective.score), baseline) if rounds else []
        chosen = winner(found, baseline)
        return Outcome(
            study=self.study,
            default=self.default,
            winner=chosen,
            gains=tuple(found),
            measurements=tuple(measurements),
            measured_now=len(self._new),
            stopped=stopped,
            already_known=already_known,
            predicted=self.trials.predict(
                chosen, [m for m in measurements if m.configuration != chosen]
            ),
            expected=self.trials.predict(chosen, measurements),
        )

    def _search(self) -> str:
        """Trials until something says stop; the reason in words."""
        while True:
            done = sum(m.conditions.get("purpose") == "trial" for m in self._new)
            if done >= self.limits.trials:
                return f"{done} trials were made (--trials)"
            if self._out_of_time():
                return f"the budget of {self.limits.seconds:.0f} s is used (--budget)"
            asked = self.trials.ask(self.measurements)
            if asked.configuration is None:
                return asked.reason
            measurement = self._trial(asked.configuration, purpose="trial")
            self.trials.tell(asked, measurement)
            self._check_hopeless(measurement)

    def _out_of_time(self) -> bool:
        """Whether another trial would eat the time that the finals need."""
        costs = [float(m.conditions.get("elapsed_seconds", 0.0)) for m in self._new]
        if not costs:
            return False
        trial = statistics.median(costs)
        finals = MIN_ROUNDS * min(MAX_FINALISTS, 2) * trial
        return self.clock() - self._start + trial + finals > self.limits.seconds

    def _check_hopeless(self, measurement: Measurement) -> None:
        failure = measurement.failure
        if failure is None or self.ranking():
            return
        crashed = [m for m in self._new if m.failure and m.failure.reason == FailureReason.CRASH]
        same = len(crashed) >= 2 and len({m.failure.detail for m in crashed if m.failure}) == 1
        if failure.reason in HOPELESS or same:
            raise self._nothing_works()

    def _nothing_works(self) -> StudyError:
        failed = [m for m in self.measurements if m.failure is not None]
        if not failed or failed[-1].failure is None:
            return StudyError("nothing was measured", next_command="run --budget 10m ...")
        last = failed[-1]
        output = failed[-1].failure.output
        return StudyError(
            f"no configuration works ({len(failed)} tried); {last.configuration}: "
            f"{failure_text(last)}",
            next_command="doctor",
            context=f"--- the script's last lines\n{output}\n---" if output else "",
        )

    def _finals(self) -> None:
        """Re-measure default and finalists in interleaved rounds until the answer is decided."""
        baseline = self.baseline()
        challengers = [c for c in self.ranking() if c != baseline]
        if not challengers:
            return
        top = self.score(challengers[0])
        near = [c for c in challengers[:MAX_FINALISTS] if top - self.score(c) <= FINALIST_MARGIN]
        entrants = [baseline, *near]
        session: list[list[Measurement]] = []
        while True:
            number = len(session)
            session.append(
                [
                    self._trial(c, purpose=FINALIST, session=self._session, round=number)
                    for c in rotated(entrants, number)
                ]
            )
            found = gains(scores_by_round(session, self.objective.score), baseline)
            if finished(found, len(session)):
                return
            if self.clock() - self._start > self.limits.seconds:
                self.observer.note("the budget ended before the finals were decided (--budget)")
                return

    def _trial(
        self, configuration: Configuration, *, purpose: str, **conditions: str | int | float
    ) -> Measurement:
        number = len(self._new) + 1
        self.observer.started(number, configuration, purpose)
        measured = self.measure(configuration)
        facts = {
            **measured.conditions,
            **conditions,
            "purpose": purpose,
            "study": self.study.address,
        }
        measurement = replace(measured, conditions=Facts(facts))
        self.records.add([measurement])
        self._new.append(measurement)
        ranking = self.ranking()
        self.observer.ended(number, measurement, ranking[0] if ranking else None)
        return measurement


def failure_text(measurement: Measurement) -> str:
    """A failure in one line: its reason, then its detail."""
    failure = measurement.failure
    if failure is None:
        return "ok"
    return f"{failure.reason}: {failure.detail}" if failure.detail else str(failure.reason)
