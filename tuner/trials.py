"""The Optuna side of a study: ask for a configuration, tell what it measured.

An Optuna trial holds the address of its measurement; its value can be recomputed from that. So
trials that are missing (another database, a merge) are made anew from the measurements, and those
that a killed process left running are closed.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import optuna
import psutil
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from perfmodel.history import Study
from perfmodel.predictors.trees import TreesPredictor, fit_predictor
from perfmodel.records import Configuration, Measurement, Prediction
from tuner.objective import Objective
from tuner.samplers import GuidedSampler, Proposal, distributions

ADDRESS = "measurement"
"""The user attribute that holds a measurement's content address."""

OWNER = "owner"
"""The user attribute of an open trial: the host, process and its start that work on it."""


def _owner(pid: int) -> str:
    return f"{socket.gethostname()} {pid} {psutil.Process(pid).create_time():.2f}"


def _alive(owner: str) -> bool:
    """Whether the process that opened a trial may still work on it; on other hosts it may."""
    host, _, rest = owner.partition(" ")
    if host != socket.gethostname():
        return bool(owner)
    pid = int(rest.split()[0])
    try:
        return _owner(pid) == owner
    except psutil.Error:
        return False


@dataclass(frozen=True)
class Asked:
    """A configuration to measure (None: stop, for `reason`) and the open Optuna trial for it."""

    configuration: Configuration | None
    reason: str
    trial: optuna.trial.Trial | None = None


class Trials:
    """Proposals for one study, recorded in an Optuna study of the same name."""

    def __init__(
        self,
        study: Study,
        objective: Objective,
        default: Configuration,
        *,
        storage: BaseStorage | None = None,
        history: Sequence[Measurement] = (),
        seed: int = 0,
        calibrated: bool = True,
    ) -> None:
        self._study = study
        self._objective = objective
        self._history = history
        self._calibrated = calibrated
        self._measurements: Sequence[Measurement] = ()
        self._sampler = GuidedSampler(
            study.space, objective, default, lambda: self._measurements, history=history, seed=seed
        )
        maximised = objective.name == "samples_per_second"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna.create_study(
            storage=storage,
            sampler=self._sampler,
            study_name=study.name,
            direction="maximize" if maximised else "minimize",
            load_if_exists=True,
        )

    def synchronise(self, measurements: Sequence[Measurement]) -> None:
        """Make Optuna's trials agree with the measurements of this study's space."""
        trials = self._optuna.get_trials(deepcopy=False)
        for trial in trials:
            if trial.state == TrialState.RUNNING and not _alive(trial.user_attrs.get(OWNER, "")):
                self._optuna.tell(trial.number, state=TrialState.FAIL)
        held = {trial.user_attrs.get(ADDRESS) for trial in trials}
        for measurement in measurements:
            if measurement.address not in held:
                self._optuna.add_trial(self._frozen(measurement))

    def _frozen(self, measurement: Measurement) -> optuna.trial.FrozenTrial:
        value = self._objective.value(measurement)
        failed = math.isnan(value)  # a failure, or memory that wasn't observed
        return optuna.trial.create_trial(
            params=measurement.configuration.to_json(),
            distributions=distributions(self._study.space),
            value=None if failed else value,
            state=TrialState.FAIL if failed else TrialState.COMPLETE,
            user_attrs={ADDRESS: measurement.address},
        )

    def ask(self, measurements: Sequence[Measurement]) -> Asked:
        """What to measure next, given everything measured so far."""
        self._measurements = measurements
        proposal: Proposal = self._sampler.proposal()
        if proposal.configuration is None:
            return Asked(None, proposal.reason)
        trial = self._optuna.ask(distributions(self._study.space))
        trial.set_user_attr(OWNER, _owner(os.getpid()))
        return Asked(proposal.configuration, proposal.reason, trial)

    def tell(self, asked: Asked, measurement: Measurement) -> None:
        """Close the trial with its measurement's address and value."""
        if asked.trial is None:
            return
        value = self._objective.value(measurement)
        # The measurement is stored; a trial that somebody closed meanwhile can be made anew.
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            asked.trial.set_user_attr(ADDRESS, measurement.address)
            if math.isnan(value):
                self._optuna.tell(asked.trial, state=TrialState.FAIL)
            else:
                self._optuna.tell(asked.trial, value)

    def fitted(self, measurements: Sequence[Measurement]) -> TreesPredictor | None:
        """A model of `measurements` and the history; None if none of them worked."""
        if not any(m.ok for m in measurements):
            return None
        return fit_predictor(
            self._study.space,
            measurements,
            self._history,
            size_names=self._objective.size_names or ("batch_size",),
        )

    def predict(
        self, configuration: Configuration, measurements: Sequence[Measurement]
    ) -> Prediction | None:
        """Step time and memory by a model of `measurements`; None if they teach nothing."""
        predictor = self.fitted(measurements)
        if predictor is None:
            return None
        found = predictor.predict([configuration])
        peak = float(found.peak_bytes[0])
        return Prediction(
            seconds=float(found.seconds[0]),
            low=float(found.low[0]),
            high=float(found.high[0]),
            peak_bytes=None if math.isnan(peak) else peak,
            extrapolating=bool(found.extrapolating[0]),
            calibrated=self._calibrated,
        )
