"""`tune db`: the timings database. Today `info`."""

from __future__ import annotations

import json

import typer

from tuner.cli.options import Database, Json

app = typer.Typer(
    help="The timings database.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _group() -> None:
    pass


@app.command()
def info(db: Database = None, json_: Json = False) -> None:
    """Show where the database is, its schema version and what it holds."""
    from db.store import Store

    with Store.open(db, create=False) as store:
        facts = store.info()
    if json_:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        rows = value.items() if isinstance(value, dict) else [("", value)]
        for key, cell in rows:
            typer.echo(f"{name + (' ' + key if key else ''):<28} {cell}")
