"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database URL or SQLite file. Default: TUNE_DB, else a file in your data folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for a program.")]
