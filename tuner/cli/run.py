"""`tune run`: find the fastest configuration of a training script, launch it, remember."""

from __future__ import annotations

import typer

from perfmodel.errors import UsageError
from tuner.cli.options import Database, Json
from tuner.cli.run_options import (
    Budget,
    Command,
    Deadline,
    Default,
    LaunchIt,
    LaunchOnly,
    MemoryLimit,
    ObjectiveName,
    Python,
    Require,
    Retune,
    Samples,
    SamplesGlobal,
    Seed,
    StepOptimizer,
    TrialCount,
    TrialTime,
    Vary,
)


def run(
    command: Command = None,
    vary: Vary = None,
    default: Default = None,
    require: Require = None,
    budget: Budget = "10m",
    trials: TrialCount = 20,
    objective: ObjectiveName = "samples_per_second",
    samples: Samples = "",
    samples_global: SamplesGlobal = False,
    trial_time: TrialTime = "10s",
    deadline: Deadline = "2m",
    memory_limit: MemoryLimit = None,
    step_optimizer: StepOptimizer = None,
    launch: LaunchIt = True,
    launch_only: LaunchOnly = False,
    retune: Retune = False,
    seed: Seed = 0,
    python: Python = None,
    db: Database = None,
    json_: Json = False,
) -> None:
    """Find the fastest configuration of a training script, launch it, and remember.

    Your command is started once per trial and ended as soon as its step time is known. Write
    {name} where a parameter goes, {trial_dir} for a folder of each trial's own, {{ and }} for
    braces. These need no placeholder: threads, interop_threads, matmul_precision, cudnn_benchmark
    and the other runtime parameters of `doctor`.
    """
    from tuner.jobs.script import script_job
    from tuner.quantities import parse_bytes, parse_seconds

    if trials < 1:
        raise UsageError(f"--trials {trials}; allowed: 1 or more")
    job = script_job(
        command or [],
        vary=vary or [],
        require=require or [],
        default=default or [],
        objective=objective,
        samples=samples,
        samples_global=samples_global,
    )
    budget_seconds, trial_seconds = parse_seconds(budget), parse_seconds(trial_time)
    deadline_seconds = parse_seconds(deadline)
    memory_limit_bytes = parse_bytes(memory_limit) if memory_limit else None
    # Loads Optuna and the models, so wrong usage is answered before it.
    from tuner.tuning import Request, tune

    request = Request(
        job=job,
        budget_seconds=budget_seconds,
        trials=trials,
        trial_seconds=trial_seconds,
        deadline_seconds=deadline_seconds,
        memory_limit_bytes=memory_limit_bytes,
        step_optimizer=step_optimizer,
        launch=launch,
        launch_only=launch_only,
        retune=retune,
        seed=seed,
        database=db,
        python=python,
        json=json_,
    )
    raise typer.Exit(tune(request))
