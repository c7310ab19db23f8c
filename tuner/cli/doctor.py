"""`tune doctor`: what was found on this machine, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from tuner.cli.options import Database, Json


def doctor(
    db: Database = None,
    json_: Json = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure sustained FLOP/s and bandwidth now.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="INTERPRETER", help="The Python your script runs under.", show_default="ours"
        ),
    ] = None,
) -> None:
    """Check devices, drivers, compiler, database, packages, clock and load.

    Exit code 1 when there is a problem, 0 when there are only warnings.
    """
    from tuner.diagnosis import diagnose

    interpreter = python or sys.executable
    if calibrate:
        _calibrate(db, interpreter)
    findings = diagnose(db, interpreter)
    if json_:
        typer.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(f"{finding.status:<8} {finding.name:<12} {finding.text}")
            if finding.advice:
                typer.echo(f"{'':<21} → {finding.advice}")
    if any(f.status == "problem" for f in findings):
        raise typer.Exit(1)


def _calibrate(db: str | None, interpreter: str) -> None:
    from collectors.machine import recognise_device, recognise_software
    from db.store import Store
    from tuner.calibration import measure_calibration

    software = recognise_software(interpreter)
    device = recognise_device(software)
    with Store.open(db) as store:
        measured = measure_calibration(store, device, software, interpreter=interpreter)
    for measurement in measured:
        if measurement.failure is not None:
            typer.echo(f"calibration failed: {measurement.failure.detail}", err=True)
