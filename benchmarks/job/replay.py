"""Searches replayed on a recorded sweep: ours, random and Optuna's TPE, seed by seed.

Every approach measures the default first and may start the script TRIALS times. A visit to a
configuration returns what one round of the sweep recorded for it, the next visit another round's.
The rivals choose the best they measured; ours goes through its finals, as `tune run` does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from benchmarks.job.recording import Sweep
from perfmodel.errors import StudyError
from perfmodel.records import Configuration, Measurement, Value

TRIALS = 20

Visit = Callable[[Configuration], Measurement]


@dataclass(frozen=True)
class Choice:
    """What an approach chose, and how many times it started the script, finals included."""

    configuration: Configuration
    starts: int


class Replayer:
    """Measures by looking up: the same seed sees the same timings in the same order."""

    def __init__(self, sweep: Sweep, seed: int) -> None:
        self._sweep = sweep
        self._rng = np.random.default_rng([seed, 7])
        self._orders: dict[Configuration, itertools.cycle[int]] = {}
        self.visits = 0

    def __call__(self, configuration: Configuration) -> Measurement:
        """The next recorded measurement of `configuration`, as if taken now."""
        if configuration not in self._orders:
            order = self._rng.permutation(self._sweep.rounds).tolist()
            self._orders[configuration] = itertools.cycle(order)
        self.visits += 1
        recorded = self._sweep.table[next(self._orders[configuration]), configuration]
        # A later visit is another measurement: the time it was taken at keeps them apart.
        moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=self.visits)
        return replace(recorded, measured_at=moment.isoformat(timespec="microseconds"))


@dataclass
class Unobserved:
    """A study's observer, and its records in memory."""

    kept: list[Measurement] = field(default_factory=list)

    def started(self, number: int, configuration: Configuration, purpose: str) -> None:
        """Nobody watches."""

    def ended(self, number: int, measurement: Measurement, best: Configuration | None) -> None:
        """Nobody watches."""

    def note(self, text: str) -> None:
        """Nobody watches."""

    def add(self, measurement: Measurement, /) -> None:
        """Keep it in memory."""
        self.kept.append(measurement)

    def read(self) -> Sequence[Measurement]:
        """What was kept."""
        return self.kept


def guided(sweep: Sweep, seed: int) -> Choice:
    """Ours: the very study of `tune run`, its measurements looked up."""
    from tuner.study import Limits, Search
    from tuner.trials import Trials

    visit, unobserved = Replayer(sweep, seed), Unobserved()
    search = Search(
        study=sweep.study,
        objective=sweep.objective,
        default=sweep.default,
        limits=Limits(seconds=math.inf, trials=TRIALS),
        measure=visit,
        records=unobserved,
        trials=Trials(sweep.study, sweep.objective, sweep.default, seed=seed),
        observer=unobserved,
        clock=lambda: 0.0,
    )
    try:
        chosen = search.run().winner
    except StudyError:
        chosen = sweep.default  # nothing it tried worked: the regret is infinite
    return Choice(chosen, visit.visits)


def random_search(sweep: Sweep, seed: int) -> Choice:
    """Legal configurations drawn without repetition; the best one measured."""
    visit = Replayer(sweep, seed)
    others = [c for c in sweep.study.space if c != sweep.default]
    order = np.random.default_rng(seed).permutation(len(others))[: TRIALS - 1]
    tried = [sweep.default, *(others[i] for i in order)]
    return _best(sweep, [visit(c) for c in tried], visit)


def tpe(sweep: Sweep, seed: int) -> Choice:
    """Optuna's TPE as its users write it: words are categories, numbers are ordered.

    A proposal that breaks a constraint is pruned and costs nothing; one proposed again costs a
    trial, as it would.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, objective, visit = sweep.study.space, sweep.objective, Replayer(sweep, seed)
    study = optuna.create_study(
        direction="maximize" if objective.name == "samples_per_second" else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    study.enqueue_trial({p.name: p.values.index(sweep.default[p.name]) for p in space.parameters})
    measured: list[Measurement] = []
    for _ in range(100 * TRIALS):
        trial = study.ask()
        values = {p.name: _suggest(trial, p.name, p.values, p.numeric) for p in space.parameters}
        configuration = Configuration(values)
        if configuration not in space:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        measurement = visit(configuration)
        measured.append(measurement)
        if measurement.ok:
            study.tell(trial, objective.value(measurement))
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if len(measured) == TRIALS:
            break
    return _best(sweep, measured, visit)


def _suggest(trial: object, name: str, values: Sequence[Value], numeric: bool) -> Value:
    import optuna

    assert isinstance(trial, optuna.trial.Trial)
    if numeric:
        return values[trial.suggest_int(name, 0, len(values) - 1)]
    place = trial.suggest_categorical(name, range(len(values)))
    assert isinstance(place, int)
    return values[place]


def _best(sweep: Sweep, measured: Sequence[Measurement], visit: Replayer) -> Choice:
    best = max(measured, key=sweep.objective.score)
    return Choice(best.configuration, visit.visits)


APPROACHES: dict[str, Callable[[Sweep, int], Choice]] = {
    "guided": guided,
    "random": random_search,
    "tpe": tpe,
}
