"""The options of `tune run`: their types, metavars and help."""

from __future__ import annotations

from typing import Annotated

import typer

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...",
        help="Your own training command, unmodified; {name} is filled from the configuration.",
        show_default=False,
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="A parameter and its values: 4..64:x2, 8..64:+8, 1..4, 1,2,8, true,false, words.",
        show_default=False,
    ),
]
Default = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="What you run today: measured first, and beaten only by more than the noise.",
        show_default=False,
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPRESSION",
        help='A constraint, such as "batch_size*accumulation==64".',
        show_default=False,
    ),
]
Budget = Annotated[str, typer.Option(help="Wall time of the whole search.")]
TrialCount = Annotated[int, typer.Option(help="Most configurations to try.")]
ObjectiveName = Annotated[
    str, typer.Option(help="samples_per_second, step_seconds or peak_memory.")
]
Samples = Annotated[
    str,
    typer.Option(metavar="EXPRESSION", help="Samples of a step and rank. Default: batch_size."),
]
SamplesGlobal = Annotated[
    bool, typer.Option("--samples-global", help="--samples already counts every rank.")
]
TrialTime = Annotated[
    str, typer.Option(help="Most time spent timing steps in one trial, after warm-up.")
]
Deadline = Annotated[
    str, typer.Option(help="A trial that takes longer is ended and counts as timed out.")
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Host memory of a trial, such as 8GiB.", show_default=False),
]
StepOptimizer = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Count only calls of the N-th optimizer (from 0) as steps.",
        show_default=False,
        min=0,
    ),
]
LaunchIt = Annotated[
    bool, typer.Option("--launch/--no-launch", help="Start the whole run with the winner.")
]
LaunchOnly = Annotated[
    bool, typer.Option("--launch-only", help="Measure nothing: launch what is known already.")
]
Retune = Annotated[
    bool, typer.Option("--retune", help="Search again although the answer is known.")
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="INTERPRETER",
        help="The Python your script runs under, where the command doesn't show it.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the search's random choices.")]
