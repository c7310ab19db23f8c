"""One study: default first, guided trials, interleaved finals, and a winner that really won."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from perfmodel.errors import StudyError
from perfmodel.history import Study
from perfmodel.records import Configuration, Facts, FailureReason, Measurement, Prediction, Value
from tuner.finals import (
    FINALIST,
    MIN_ROUNDS,
    Finals,
    Gain,
    Verdict,
    finals_of,
    finished,
    rotated,
)
from tuner.objective import Objective
from tuner.trials import Trials

Measure = Callable[[Configuration], Measurement]

TRIAL, CONFIRM, LAUNCH = "trial", "confirm", "launch"
"""The other values of `purpose` among a measurement's conditions."""

MAX_FINALISTS = 3
FINALIST_MARGIN = 0.05
"""A configuration within this much of the best (in log score) may be a finalist."""

ALIKE_FAILURES = 3
"""So many equal failures, and nothing that works, end a study."""

DRIFT = 0.1
"""A confirming trial that is off by more (in log score) is worth a note."""


class Observer(Protocol):
    """Who watches a study: the progress display."""

    def started(self, number: int, configuration: Configuration, purpose: str) -> None:
        """A trial begins."""

    def ended(self, number: int, measurement: Measurement, best: Configuration | None) -> None:
        """A trial has ended and is stored."""

    def note(self, text: str) -> None:
        """Something a user should know."""


class Records(Protocol):
    """Where a study keeps its measurements, and finds those of others who work on it too."""

    def add(self, measurement: Measurement, /) -> None:
        """Keep one more."""

    def read(self) -> Sequence[Measurement]:
        """Every measurement of this workload, device and software, oldest first."""


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
    compared: bool
    """Whether the default took part in finals, so that winner and gain hold against it."""
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
        """The winner's gain over the default; None when the default stays or wasn't compared."""
        if not self.compared:
            return None
        return next((g for g in self.gains if g.configuration == self.winner), None)

    def of(self, configuration: Configuration) -> list[Measurement]:
        """The measurements of one configuration."""
        return [m for m in self.measurements if m.configuration == configuration]


@dataclass
class Search:
    """The loop of one study.

    `measure` runs one configuration (a process, or a replay of recorded timings), `records` keep
    what was measured, now and earlier, here and by others; the Optuna side (`trials`) proposes
    what comes next. `clock` gives monotonic seconds. `limits_of_trial` are what a trial may use
    (conditions such as deadline_seconds): a failure under a tighter limit isn't final. `afresh`
    (--retune) takes measurements of earlier sessions for history only.
    """

    study: Study
    objective: Objective
    default: Configuration
    limits: Limits
    measure: Measure
    records: Records
    trials: Trials
    observer: Observer
    limits_of_trial: Facts = field(default_factory=Facts)
    afresh: bool = False
    clock: Callable[[], float] = time.monotonic
    everything: list[Measurement] = field(init=False)
    """All of the workload that count, in this space and outside of it, oldest first."""
    _new: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._session = datetime.now(UTC).isoformat()
        self._read()

    # -- what is known ---------------------------------------------------------------------

    def _read(self) -> None:
        found = self.records.read()
        if self.afresh:
            found = [m for m in found if m.conditions.get("session") == self._session]
        self.everything = list(found)

    @property
    def measurements(self) -> list[Measurement]:
        """Those in this space."""
        return [m for m in self.everything if m.configuration in self.study.space]

    def score(self, configuration: Configuration) -> float:
        """Median score of a configuration's measurements; -inf if none worked."""
        return self._scores().get(configuration, -math.inf)

    def _scores(self) -> dict[Configuration, float]:
        scores: dict[Configuration, list[float]] = {}
        for measurement in self.measurements:
            score = self.objective.score(measurement)
            if score > -math.inf:
                scores.setdefault(measurement.configuration, []).append(score)
        return {c: statistics.median(s) for c, s in scores.items()}

    def ranking(self) -> list[Configuration]:
        """The configurations that worked, best first."""
        scores = self._scores()
        return sorted(scores, key=lambda c: -scores[c])

    def finals(self) -> Finals | None:
        """The finals that count, if there were any."""
        return finals_of(self.measurements, study=self.study.address)

    def concluded(self) -> bool:
        """Whether the answer is known: finals carried through, or nothing left to measure."""
        finals = self.finals()
        if finals is not None and finals.carried_through:
            return True
        measured = {m.configuration for m in self.measurements}
        return len(self.ranking()) == 1 and len(measured) == len(self.study.space)

    def compared(self) -> bool:
        """Whether the conclusion holds against the present default (or it doesn't run)."""
        finals = self.finals()
        if finals is None or self.default not in self.ranking():
            return any(m.configuration == self.default for m in self.measurements)
        return self.default in finals.scores(self.objective.score)

    def baseline(self) -> Configuration:
        """What the finals compare with: the default, or the best if the default doesn't run."""
        ranking = self.ranking()
        return self.default if self.default in ranking else ranking[0]

    # -- running ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Search, then finals; StudyError when no configuration works."""
        self.trials.synchronise(self.measurements)
        if self.concluded():
            stopped = "known from earlier finals; only the new default was compared"
            if self.default not in self.ranking():
                self._trial(self.default, purpose=TRIAL)
        else:
            stopped = self._search()
        if not self.ranking():
            raise self._nothing_works()
        self._finals()
        return self.outcome(stopped=stopped)

    def confirm(self) -> Outcome:
        """One trial of the known winner, to see that it still runs as remembered."""
        remembered = self._verdict().winner
        before = self.score(remembered)
        measurement = self._trial(remembered, purpose=CONFIRM)
        if measurement.failure is not None:
            raise StudyError(
                f"the known winner {remembered} no longer runs: {failure_text(measurement)}; "
                "search again with --retune",
                context=_last_words(measurement),
            )
        drift = self.objective.score(measurement) - before
        if abs(drift) > DRIFT:
            self.observer.note(
                f"the winner is now {math.expm1(abs(drift)):.0%} "
                f"{'better' if drift > 0 else 'worse'} than remembered: other load or a changed "
                "machine; --retune searches again"
            )
        return self.outcome(stopped="known from earlier studies", already_known=True)

    def _verdict(self) -> Verdict:
        """What the finals say; without any, that the baseline stays."""
        finals = self.finals()
        if finals is None:
            return Verdict(self.baseline(), (), 0)
        return finals.verdict(self.objective.score, self.default)

    def outcome(self, *, stopped: str, already_known: bool = False) -> Outcome:
        """The present answer, from the measurements alone."""
        verdict = self._verdict()
        chosen = verdict.winner
        unseen = [m for m in self.everything if m.configuration != chosen]
        return Outcome(
            study=self.study,
            default=self.default,
            winner=chosen,
            gains=verdict.gains,
            compared=self.finals() is not None and verdict.baseline == self.default,
            measurements=tuple(self.measurements),
            measured_now=len(self._new),
            stopped=stopped,
            already_known=already_known,
            predicted=self.trials.predict(chosen, unseen),
            expected=self.trials.predict(chosen, self.everything),
        )

    def _search(self) -> str:
        """Trials until something says stop; the reason in words."""
        while True:
            done = sum(m.conditions["purpose"] == TRIAL for m in self._new)
            if done >= self.limits.trials:
                return f"{done} trials were made (--trials)"
            if done and self._out_of_time():
                return (
                    f"the budget of {self.limits.seconds:.0f} s leaves only the finals (--budget)"
                )
            self._read()  # others may work on the same study
            asked = self.trials.ask([m for m in self.everything if self._final(m)])
            if asked.configuration is None:
                return asked.reason
            measurement = self._trial(asked.configuration, purpose=TRIAL)
            self.trials.tell(asked, measurement)
            if self._hopeless():
                raise self._nothing_works()

    def _final(self, measurement: Measurement) -> bool:
        """Whether what was measured stands; some failures of earlier sessions are tried again."""
        failure = measurement.failure
        if failure is None or measurement.conditions.get("session") == self._session:
            return True
        if measurement.configuration == self.default or not self.ranking():
            return False  # what was wrong then may be mended: a data set, a dependency
        limit = {
            FailureReason.TIMEOUT: "deadline_seconds",
            FailureReason.OUT_OF_MEMORY: "memory_limit_bytes",
        }.get(failure.reason)
        if limit is None or limit not in measurement.conditions:
            return True
        return float(measurement.conditions[limit]) >= _number(self.limits_of_trial.get(limit))

    def _out_of_time(self) -> bool:
        """Whether another trial would eat the time that the finals need."""
        finals = MIN_ROUNDS * (1 + min(MAX_FINALISTS, len(self._near()))) * self._cost()
        return self._elapsed() + self._cost() + finals > self.limits.seconds

    def _cost(self) -> float:
        """Seconds that a trial takes, start-up included."""
        costs = [float(m.conditions.get("elapsed_seconds", 0.0)) for m in self._new]
        return statistics.median(costs) if costs else 0.0

    def _elapsed(self) -> float:
        return self.clock() - self._start

    def _near(self) -> list[Configuration]:
        """The challengers within the margin of the best challenger, best first."""
        ranking = self.ranking()
        if not ranking:
            return []
        baseline, scores = self.baseline(), self._scores()
        challengers = [c for c in ranking if c != baseline]
        return [c for c in challengers if scores[challengers[0]] - scores[c] <= FINALIST_MARGIN]

    def _hopeless(self) -> bool:
        if self.ranking():
            return False
        failures = [m.failure for m in self._new if m.failure is not None]
        if failures[-1].reason == FailureReason.NOT_PROBED:
            return True
        alike = [
            f
            for f in failures
            if (f.reason, f.detail) == (failures[-1].reason, failures[-1].detail)
        ]
        stated = failures[-1].reason in (FailureReason.CRASH, FailureReason.NO_STEPS)
        return stated and len(alike) >= ALIKE_FAILURES

    def _nothing_works(self) -> StudyError:
        failed = [m for m in self._new or self.measurements if m.failure is not None]
        if not failed:
            return StudyError("nothing was measured within --budget and --trials; give more")
        last = failed[-1]
        return StudyError(
            f"no configuration works ({len(failed)} tried); {last.configuration}: "
            f"{failure_text(last)}",
            context=_last_words(last),
        )

    def _finals(self) -> None:
        """Re-measure baseline and finalists in interleaved rounds until the answer is decided."""
        near = self._near()
        if not near:
            return
        affordable = (self.limits.seconds - self._elapsed()) / max(MIN_ROUNDS * self._cost(), 1e-9)
        near = near[: int(max(1, min(MAX_FINALISTS, affordable - 1)))]
        entrants = [self.baseline(), *near]
        for number in itertools.count():
            for configuration in rotated(entrants, number):
                self._trial(
                    configuration,
                    purpose=FINALIST,
                    round=number,
                    entrants=len(entrants),
                    baseline=configuration == entrants[0],
                )
            finals = finals_of(self._new, study=self.study.address)
            found = finals.verdict(self.objective.score, entrants[0]).gains if finals else ()
            if finished(found, number + 1):
                return
            if number + 1 >= MIN_ROUNDS and self._elapsed() > self.limits.seconds:
                self.observer.note("the budget ended before the finals were decided (--budget)")
                return

    def _trial(
        self, configuration: Configuration, *, purpose: str, **conditions: Value
    ) -> Measurement:
        number = len(self._new) + 1
        self.observer.started(number, configuration, purpose)
        measured = self.measure(configuration)
        facts = {
            **measured.conditions,
            **self.limits_of_trial,
            **conditions,
            "purpose": purpose,
            "study": self.study.address,
            "session": self._session,
        }
        measurement = replace(measured, conditions=Facts(facts))
        self.records.add(measurement)
        self._new.append(measurement)
        self.everything.append(measurement)
        ranking = self.ranking()
        self.observer.ended(number, measurement, ranking[0] if ranking else None)
        return measurement


def _number(value: Value | None) -> float:
    return math.inf if value is None else float(value)


def failure_text(measurement: Measurement) -> str:
    """A failure in one line: its reason, then its detail."""
    failure = measurement.failure
    if failure is None:
        return "ok"
    return f"{failure.reason}: {failure.detail}" if failure.detail else str(failure.reason)


def _last_words(measurement: Measurement) -> str:
    output = measurement.failure.output if measurement.failure else ""
    return f"--- the script's last lines\n{output}\n---" if output else ""
