"""What is read, inside a transaction of the caller's: rows back into records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.engine import Connection

from db import schema
from db.parts import COLUMNS, TABLES, PartReader, chunks
from db.rows import Part, escape, launch_of, measurement_of, parse, unescape
from perfmodel.errors import RecordError
from perfmodel.history import Launch, Study
from perfmodel.records import Measurement

COUNTED = (
    "devices", "software", "workloads", "configurations", "measurements", "studies", "launches",
    "launch_outcomes", "models",
)  # fmt: skip
BATCH = 2000
"""Rows of measurements turned into records at a time."""


@dataclass(frozen=True)
class StoredModel:
    """A model in the database, without its content: `Store.model` reads that."""

    address: str
    kind: str
    trained_on: Mapping[str, Any]
    created_at: str
    size_bytes: int


def key_of(address: str) -> bytes:
    """A content address as the tables hold it; RecordError when it isn't one."""
    try:
        return bytes.fromhex(address)
    except ValueError as error:
        raise RecordError(f"content address {address!r}; allowed: 64 hex digits") from error


def matching(
    *parts: Part | None, kind: str | None = None, name: str | None = None
) -> list[ColumnElement[bool]]:
    """Conditions on measurements: these parts, and a workload of that kind and name."""
    table, workloads = schema.measurements, schema.workloads
    conditions: list[ColumnElement[bool]] = []
    for part in parts:
        if part is not None:
            of = TABLES[type(part)]
            id_ = select(of.c.id).where(of.c.address == key_of(part.address)).scalar_subquery()
            conditions.append(table.c[COLUMNS[type(part)]] == id_)
    named = []
    if kind is not None:
        named.append(workloads.c.kind == kind)
    if name is not None:
        named.append(workloads.c.name == escape(name))
    if named:
        conditions.append(table.c.workload_id.in_(select(workloads.c.id).where(*named)))
    return conditions


def read_measurements(
    connection: Connection, *conditions: ColumnElement[bool]
) -> list[tuple[int, Measurement]]:
    """Measurements with their ids, in the order they were added."""
    table = schema.measurements
    query = select(table).where(*conditions).order_by(table.c.id)
    reader = PartReader(connection)
    found: list[tuple[int, Measurement]] = []
    for rows in connection.execute(query).mappings().partitions(BATCH):
        reader.load(rows)
        found.extend((row["id"], measurement_of(row, reader.of(row))) for row in rows)
    return found


def read_studies(connection: Connection, *conditions: ColumnElement[bool]) -> dict[int, Study]:
    """Id → study, in the order they were added."""
    table = schema.studies
    query = select(table.c.id, table.c.record).where(*conditions).order_by(table.c.id)
    return {id_: Study.from_json(parse(record)) for id_, record in connection.execute(query)}


def read_launches(connection: Connection, limit: int | None) -> list[Launch]:
    """The `limit` launches started last (None: every one), the latest last, as last recorded."""
    table, outcomes = schema.launches, schema.launch_outcomes
    query = select(table).order_by(table.c.started_at.desc(), table.c.id.desc()).limit(limit)
    rows = connection.execute(query).all()[::-1]
    became: dict[int, Any] = {}
    for chunk in chunks(row.id for row in rows):
        query = select(outcomes).where(outcomes.c.launch_id.in_(chunk)).order_by(outcomes.c.id)
        became.update((outcome.launch_id, outcome) for outcome in connection.execute(query))
    studies: dict[int, Study] = {}
    for chunk in chunks({row.study_id for row in rows}):
        studies |= read_studies(connection, schema.studies.c.id.in_(chunk))
    achieved: dict[int | None, Measurement] = {}
    wanted = {outcome.achieved_id for outcome in became.values()} - {None}
    for chunk in chunks(wanted):
        achieved.update(read_measurements(connection, schema.measurements.c.id.in_(chunk)))
    return [
        launch_of(
            row.record,
            studies[row.study_id],
            outcome=became[row.id].record if row.id in became else None,
            achieved=achieved.get(became[row.id].achieved_id) if row.id in became else None,
        )
        for row in rows
    ]


def read_models(connection: Connection, kind: str | None) -> list[StoredModel]:
    """Models (of `kind`), in the order they were added, without their content."""
    table = schema.models
    query = select(
        table.c.address, table.c.kind, table.c.trained_on, table.c.created_at, table.c.size_bytes
    ).order_by(table.c.id)
    if kind is not None:
        query = query.where(table.c.kind == escape(kind))
    return [
        StoredModel(
            address=bytes(row.address).hex(),
            kind=unescape(row.kind),
            trained_on=parse(row.trained_on),
            created_at=row.created_at,
            size_bytes=row.size_bytes,
        )
        for row in connection.execute(query)
    ]


def read_model(connection: Connection, address: str) -> bytes | None:
    """A model's content."""
    table = schema.models
    query = select(table.c.content).where(table.c.address == key_of(address))
    found = connection.execute(query).scalar()
    return None if found is None else bytes(found)


def read_counts(connection: Connection) -> dict[str, int]:
    """Rows of each table."""
    return {
        name: connection.execute(
            select(func.count()).select_from(schema.metadata.tables[schema.PREFIX + name])
        ).scalar_one()
        for name in COUNTED
    }


def read_size_bytes(connection: Connection) -> int:
    """What the database takes on disk, Optuna's tables included."""
    if connection.dialect.name == "postgresql":
        query = "SELECT pg_database_size(current_database())"
        return int(connection.execute(text(query)).scalar_one())
    pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    return int(pages) * int(connection.execute(text("PRAGMA page_size")).scalar_one())
