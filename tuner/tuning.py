"""A whole `tune run`: recognise, open, calibrate, study, report, launch."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from collectors.clock import StoppingRule
from collectors.machine import recognise_device, recognise_software
from collectors.script import runner
from collectors.script.command import ScriptCommand, script_workload
from db.store import Store
from perfmodel.artifact import save
from perfmodel.errors import Interrupted, MeasurementError, StorageError, StudyError
from perfmodel.history import Launch, Study
from perfmodel.predictors.trees import fit_predictor
from perfmodel.records import Configuration, Facts, Measurement, Value
from tuner.calibration import known_calibration, measure_calibration, needs_calibration
from tuner.jobs.script import ScriptJob
from tuner.launch import Chosen, launch_run
from tuner.quantities import seconds_text
from tuner.report.document import launch_document, outcome_document
from tuner.report.progress import ProgressReport
from tuner.report.table import headline, launch_lines, report_console, trials_table
from tuner.study import Limits, Outcome, Search
from tuner.study_records import StudyRecords
from tuner.trials import Trials


@dataclass(frozen=True)
class Request:
    """The checked options of `tune run`; durations in seconds, sizes in bytes."""

    job: ScriptJob
    budget_seconds: float
    trials: int
    trial_seconds: float
    deadline_seconds: float
    memory_limit_bytes: int | None
    step_optimizer: int | None
    launch: bool
    launch_only: bool
    retune: bool
    seed: int
    database: str | None
    python: str | None
    json: bool

    @property
    def limits_of_trial(self) -> Facts:
        """What a trial may use, as conditions of its measurement."""
        limits: dict[str, Value] = {"deadline_seconds": self.deadline_seconds}
        if self.memory_limit_bytes is not None:
            limits["memory_limit_bytes"] = self.memory_limit_bytes
        return Facts(limits)


def tune(request: Request) -> int:
    """Do it; the exit code: 0, or the launched run's own.

    StudyError when no configuration works, StorageError for the database, Interrupted on Ctrl-C or
    SIGTERM; what was measured by then is stored.
    """
    job = request.job
    console = Console(stderr=True)
    interpreter = request.python or job.command.interpreter
    software = recognise_software(interpreter)
    device = recognise_device(software)
    with Store.open(request.database) as store:
        study = Study(
            device=device,
            software=software,
            workload=script_workload(job.command, step_optimizer=request.step_optimizer),
            space=job.space,
            objective=job.objective.name,
            samples=job.objective.samples,
            samples_global=job.objective.samples_global,
        )
        store.add_study(study)
        _say(console, f"device: {device.model}; {software.facts.get('torch', 'no torch found')}")
        with _interruptible():
            if not request.launch_only:
                _calibrate(store, study, console, interpreter)
            outcome = _study(request, store, study, console)
        document = outcome_document(outcome, job.objective, assumed=job.assumed)
        if not request.json:
            _print_outcome(outcome, job)
        _keep_model(store, job, outcome, console)
        status = 0
        if request.launch:
            launched = _launch(request, store, outcome, console)
            status = launched.exit_code or 0
            document["launch"] = launch_document(launched, job.objective)
        if request.json:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return status


def _study(request: Request, store: Store, study: Study, console: Console) -> Outcome:
    """Search, confirm, or only look up, as the request and what is known say."""
    job = request.job
    records = StudyRecords(store, study)
    history = records.history()
    with store.explaining():
        trials = Trials(
            study,
            job.objective,
            job.default,
            history=[*history, *records.read()] if request.retune else history,
            storage=store.optuna_storage(),
            seed=request.seed,
            calibrated=known_calibration(store, study.device, study.software) is not None,
        )
    limits = Limits(seconds=request.budget_seconds, trials=request.trials)
    with ProgressReport(job.objective, limits, console) as progress:
        search = Search(
            study=study,
            objective=job.objective,
            default=job.default,
            limits=limits,
            measure=_measurer(request, study),
            records=records,
            trials=trials,
            observer=progress,
            limits_of_trial=request.limits_of_trial,
            afresh=request.retune,
        )
        if request.launch_only:
            return _looked_up(search, console)
        if search.concluded() and search.compared():
            _say(console, "known: this study was carried through before; one confirming trial")
            return search.confirm()
        if search.measurements:
            _say(console, f"going on with {len(search.measurements)} earlier measurements")
        _announce(request, console)
        with store.explaining():
            return search.run()


def _looked_up(search: Search, console: Console) -> Outcome:
    if not search.ranking():
        raise StudyError(
            "--launch-only, but nothing is known of this command on this device; leave it out to "
            "measure first"
        )
    outcome = search.outcome(stopped="nothing was measured (--launch-only)", already_known=True)
    if not outcome.compared:
        _say(console, "note: the winner was never compared with this default")
    return outcome


def _announce(request: Request, console: Console) -> None:
    """Say before the first trial what will happen to the user's files."""
    own = "{trial_dir} is each trial's own folder, removed after it"
    shared = "files it writes are its own and stay, unless the command uses {trial_dir}"
    uses = request.job.command.uses_trial_dir
    _say(
        console,
        f"your script will be started up to {request.trials} times, and some more for the finals, "
        f"within {seconds_text(request.budget_seconds)}; {own if uses else shared}",
    )


def _measurer(request: Request, study: Study) -> Callable[[Configuration], Measurement]:
    """How one configuration is measured: an isolated process of the user's command."""
    job = request.job
    numbers = itertools.count(1)
    rule = StoppingRule(max_seconds=request.trial_seconds)
    limits = runner.Limits(
        deadline_seconds=request.deadline_seconds,
        memory_limit_bytes=request.memory_limit_bytes,
    )

    def measure(configuration: Configuration) -> Measurement:
        with _temporary_folder() as folder:
            trial = runner.Trial(
                command=job.command,
                configuration=configuration,
                device=study.device,
                software=study.software,
                workload=study.workload,
                name=str(next(numbers)),
                folder=folder,
                rule=rule,
                limits=limits,
                step_optimizer=request.step_optimizer,
            )
            measured = runner.run_trial(trial)
            _check_software(measured, job.command)
            return measured

    return measure


def _check_software(measured: Measurement, command: ScriptCommand) -> None:
    """MeasurementError if the steps were made under another torch than this study is of."""
    ran, known = measured.conditions.get("torch"), measured.software.facts.get("torch")
    if ran is not None and ran != known:
        raise MeasurementError(
            f"the steps of {command.template[0]!r} ran under torch {ran}, but torch {known} was "
            f"found for it; name its Python ({measured.conditions.get('executable')}) with --python"
        )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A trial's own folder, removed after it; MeasurementError where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="perfmodel-trial-", ignore_cleanup_errors=True)
    except OSError as error:
        raise MeasurementError(
            f"no folder for a trial can be made in {tempfile.gettempdir()}: {error.strerror}; set "
            "TMPDIR to a folder with space"
        ) from error
    with folder as name:
        yield Path(name)


def _calibrate(store: Store, study: Study, console: Console, interpreter: str | None) -> None:
    """Measure what the device sustains, once per device and software, outside the budget."""
    if not needs_calibration(store, study.device, study.software):
        return
    _say(console, "calibrating this device, once (sustained FLOP/s and memory bandwidth)")
    measured = measure_calibration(
        store, study.device, study.software, interpreter=interpreter or sys.executable
    )
    failed = [m for m in measured if m.failure is not None]
    if failed and failed[0].failure:
        _say(console, f"note: calibration failed: {failed[0].failure.detail}")


def _launch(request: Request, store: Store, outcome: Outcome, console: Console) -> Launch:
    """Start the whole run with the winner and record what it reached."""

    def record(launch: Launch) -> None:
        try:
            store.add_launch(launch)
        except StorageError as error:  # the run itself matters more
            _say(console, f"note: the launch was not recorded: {error.message}")

    _say(console, f"launching with {outcome.winner}")
    folder = Path("tune-launches", datetime.now().strftime("%Y%m%d-%H%M%S"))
    if request.job.command.uses_trial_dir:
        _say(console, f"{{trial_dir}} of the launch is {folder}")
    launched = launch_run(
        request.job.command,
        Chosen(outcome.study, outcome.winner, outcome.expected),
        folder=folder,
        record=record,
        step_optimizer=request.step_optimizer,
        output=sys.stderr.fileno() if request.json else None,
    )
    record(launched)
    for line in launch_lines(launched, request.job.objective):
        _say(console, line)
    return launched


def _keep_model(store: Store, job: ScriptJob, outcome: Outcome, console: Console) -> None:
    """Keep what a new study has taught the model, for others who use this database."""
    if outcome.already_known:
        return
    predictor = fit_predictor(
        outcome.study.space, outcome.measurements, size_names=job.objective.size_names
    )
    trained_on = {"study": outcome.study.address, "measurements": len(outcome.measurements)}
    try:
        store.add_model(save(predictor), kind="step", trained_on=trained_on)
    except StorageError as error:
        _say(console, f"note: the model was not kept: {error.message}")


def _print_outcome(outcome: Outcome, job: ScriptJob) -> None:
    console = report_console()
    console.print(trials_table(outcome, job.objective))
    for line in headline(
        outcome, job.objective, assumed=job.assumed, default_given=job.default_given
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"stopped: {outcome.stopped}", markup=False, highlight=False, soft_wrap=True)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the trial and become Interrupted."""

    def stop(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    # A signal that is ignored already (nohup) stays so.
    caught = [
        s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is not signal.SIG_IGN
    ]
    before = {s: signal.signal(s, stop) for s in caught}
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            "interrupted; what was measured is kept, and the same command goes on from there"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
