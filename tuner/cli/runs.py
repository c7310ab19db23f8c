"""`tune runs`: the launches so far, predicted beside reached."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tuner.cli.options import Database, Json


def runs(
    db: Database = None,
    json_: Json = False,
    limit: Annotated[int, typer.Option(min=1, help="Show the last N launches.")] = 20,
) -> None:
    """List launched runs: what was chosen, predicted and reached."""
    from db.store import Store
    from tuner.objective import Objective
    from tuner.report.document import launch_document
    from tuner.report.table import launches_table, report_console

    with Store.open(db, create=False) as store:
        launches = store.launches(limit)
    objectives = [Objective.of(launch.study) for launch in launches]
    if json_:
        pairs = zip(launches, objectives, strict=True)
        typer.echo(json.dumps([launch_document(launch, o) for launch, o in pairs], indent=2))
    elif not launches:
        typer.echo("no launches yet; `run` makes them")
    else:
        report_console().print(launches_table(launches, objectives))
