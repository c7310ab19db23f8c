"""The `tune` program: its commands, and how errors become one line and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from perfmodel import __version__
from perfmodel.errors import PerfModelError
from tuner.cli import db, doctor, run, runs
from tuner.cli.program import program_name

app = typer.Typer(
    help="Find the fastest configuration of a training script, launch it, and remember.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run", no_args_is_help=True)(run.run)
app.command("runs")(runs.runs)
app.command("doctor")(doctor.doctor)
app.add_typer(db.app, name="db")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfmodel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main() -> NoReturn:
    """Run the program: 0 done, 1 failed, 2 wrong usage, 130 interrupted, else the launch's own."""
    name = program_name()
    try:
        app(prog_name=name)
        status = 0
    except PerfModelError as error:
        if error.context:
            typer.echo(error.context, err=True)
        typer.echo(f"error: {error.message}", err=True)
        following = error.next_command or ("run --help" if error.exit_code == 2 else "")
        if following:
            typer.echo(f"try: {name} {following}", err=True)
        status = error.exit_code
    sys.exit(status)
