"""The parts that measurements share (device, software, workload, configuration): kept once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from sqlalchemy import Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from db import schema
from db.rows import Fetched, Part, Row, part_of, part_row
from perfmodel.records import Configuration, Device, Software, Workload

T = TypeVar("T")

TABLES: Mapping[type[Part], Table] = {
    Device: schema.devices,
    Software: schema.software,
    Workload: schema.workloads,
    Configuration: schema.configurations,
}
COLUMNS: Mapping[type[Part], str] = {
    Device: "device_id",
    Software: "software_id",
    Workload: "workload_id",
    Configuration: "configuration_id",
}
Interned = Mapping[type[Part], Mapping[str, int]]
"""Kind of part → content address → id."""

LOOKUP = 500
"""Values in one IN (...), below every driver's limit on parameters."""

REMEMBERED = 100_000
"""Ids of one kind of part kept in memory between transactions."""


def chunks(items: Iterable[T], size: int = LOOKUP) -> Iterable[list[T]]:
    """`items` in lists of up to `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert the rows whose address the table lacks, in order; how many those were."""
    if not rows:
        return 0
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).on_conflict_do_nothing(index_elements=["address"])
    result = connection.execute(statement, rows, execution_options={"preserve_rowcount": True})
    return result.rowcount


def ids_of(connection: Connection, table: Table, addresses: Iterable[bytes]) -> dict[bytes, int]:
    """Address → id for those of `addresses` that the table holds."""
    found: dict[bytes, int] = {}
    for chunk in chunks(addresses):
        query = select(table.c.address, table.c.id).where(table.c.address.in_(chunk))
        found.update((bytes(address), id_) for address, id_ in connection.execute(query))
    return found


class PartIds:
    """Address → id, as last committed; `intern` adds what is missing inside a transaction."""

    def __init__(self) -> None:
        self._known: dict[type[Part], dict[str, int]] = {kind: {} for kind in TABLES}

    def intern(
        self, connection: Connection, parts: Mapping[type[Part], Iterable[Part]]
    ) -> Interned:
        """The id of every part, by kind and address. Give it to `remember` after the commit."""
        return {kind: self._intern(connection, kind, parts.get(kind, ())) for kind in TABLES}

    def _intern(
        self, connection: Connection, kind: type[Part], parts: Iterable[Part]
    ) -> dict[str, int]:
        known = self._known[kind]
        by_address = {part.address: part for part in parts}
        # One look for each: another thread may clear `known` at any moment.
        held = {address: known.get(address) for address in by_address}
        ids = {address: id_ for address, id_ in held.items() if id_ is not None}
        missing = {bytes.fromhex(address): address for address in by_address if address not in ids}
        if missing:
            table = TABLES[kind]
            found = ids_of(connection, table, missing)
            # Sorted, so that two writers of the same parts never wait for each other crosswise.
            new = sorted(missing.keys() - found.keys())
            insert_new(connection, table, [part_row(by_address[missing[key]]) for key in new])
            found |= ids_of(connection, table, new)
            ids |= {missing[key]: id_ for key, id_ in found.items()}
        return ids

    def remember(self, interned: Interned) -> None:
        """Keep ids that were committed."""
        for kind, ids in interned.items():
            if len(self._known[kind]) > REMEMBERED:
                self._known[kind].clear()
            self._known[kind].update(ids)


class PartReader:
    """Id → part within one reading transaction; each part is read and parsed once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parts: dict[type[Part], dict[int, Part]] = {kind: {} for kind in TABLES}

    def load(self, rows: Sequence[Fetched]) -> None:
        """Read every part that `rows` name."""
        for kind, table in TABLES.items():
            parts = self._parts[kind]
            wanted = {row[COLUMNS[kind]] for row in rows} - parts.keys()
            for chunk in chunks(wanted):
                query = select(table.c.id, table.c.record).where(table.c.id.in_(chunk))
                parts.update(
                    (id_, part_of(kind, record)) for id_, record in self._connection.execute(query)
                )

    def of(self, row: Fetched) -> dict[type[Part], Part]:
        """The parts of one row that was given to `load`."""
        return {kind: self._parts[kind][row[column]] for kind, column in COLUMNS.items()}
