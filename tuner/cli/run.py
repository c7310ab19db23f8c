"""`tune run`: find the fastest configuration of a training script, launch it, remember."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.errors import UsageError
from tuner.cli.options import Database, Json

EXAMPLE = """Example:

tune run --vary batch_size=4..64:x2 --vary threads=1,2 --default batch_size=16 --budget 5m
-- python train.py --batch-size {batch_size}
"""


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="Your own training command, unmodified; {name} is filled from the configuration.",
            show_default=False,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="A parameter and its values: 4..64:x2, 8..64:+8, 1..4, 1,2,8, true,false, words.",
            show_default=False,
        ),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What you run today: measured first, and beaten only by more than the noise.",
            show_default=False,
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPRESSION",
            help='A constraint, such as "batch_size*accumulation==64".',
            show_default=False,
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="Wall time of the whole search.")] = "10m",
    trials: Annotated[int, typer.Option(help="Most configurations to try.")] = 20,
    objective: Annotated[
        str, typer.Option(help="samples_per_second, step_seconds or peak_memory.")
    ] = "samples_per_second",
    samples: Annotated[
        str,
        typer.Option(metavar="EXPRESSION", help="Samples of a step and rank. Default: batch_size."),
    ] = "",
    samples_global: Annotated[
        bool, typer.Option("--samples-global", help="--samples already counts every rank.")
    ] = False,
    trial_time: Annotated[
        str, typer.Option(help="Most time spent timing steps in one trial, after warm-up.")
    ] = "10s",
    deadline: Annotated[
        str, typer.Option(help="A trial that takes longer is ended and counts as timed out.")
    ] = "2m",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Host memory of a trial, such as 8GiB.", show_default=False
        ),
    ] = None,
    step_optimizer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Count only calls of the N-th optimizer (from 0) as steps.",
            show_default=False,
            min=0,
        ),
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch/--no-launch", help="Start the whole run with the winner.")
    ] = True,
    launch_only: Annotated[
        bool, typer.Option("--launch-only", help="Measure nothing: launch what is known already.")
    ] = False,
    retune: Annotated[
        bool, typer.Option("--retune", help="Search again although the answer is known.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the search's random choices.")] = 0,
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
        json=json_,
    )
    raise typer.Exit(tune(request))
