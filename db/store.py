"""The store: every measurement, study, launch and model, kept once and for good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from db import schema
from db.connection import Database, check_file
from db.faults import translated
from db.location import located, place
from db.migrate import bring_up_to_date, schema_version
from db.parts import PartIds, insert_new
from db.reading import (
    StoredModel,
    key_of,
    matching,
    read_counts,
    read_launches,
    read_measurements,
    read_model,
    read_models,
    read_size_bytes,
    read_studies,
)
from db.recording import (
    batches,
    encoded,
    model_row,
    record_launch,
    record_measurements,
    record_study,
)
from perfmodel.history import Launch, Study
from perfmodel.records import Device, Measurement, Software, Workload

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

__all__ = ["Store", "StoredModel"]


class Store:
    """One database of timings. Append-only: adding what it already holds adds nothing.

    Usable from several threads; several processes and machines may use one database at once.
    Every method raises StorageError where the database can't be read or written, and RecordError
    for a record that can't be kept as it is.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._parts = PartIds()
        self._optuna: RDBStorage | None = None

    @classmethod
    def open(cls, url: str | None = None, *, create: bool = True) -> Store:
        """Open the database at `url` (see `database_url`), making or upgrading it where needed.

        Without `create`, a database that isn't there or holds nothing of ours is an error.
        UsageError for a malformed URL, SchemaVersionError for a newer schema, else StorageError.
        """
        parsed = located(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            check_file(Path(parsed.database), create=create)
        database = Database(parsed)
        try:
            bring_up_to_date(database, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Give back every connection, Optuna's too."""
        if self._optuna is not None:
            self._optuna.remove_session()
            self._optuna.engine.dispose()
            self._optuna = None
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Record measurements; how many of them were new.

        Up to BATCH_MEASUREMENTS are one transaction: all of them or none. More (an import) are
        several, taken from the iterable as they are written: after an error or a kill the
        earlier ones are kept, and adding everything again goes on from there.
        """
        return sum(self._add(batch) for batch in batches(measurements))

    def _add(self, batch: Iterable[Measurement]) -> int:
        rows = encoded(batch)
        new, ids = self._database.write(lambda c: record_measurements(c, self._parts, rows))
        self._parts.remember(ids)
        return new

    def measurements(
        self,
        *,
        device: Device | None = None,
        software: Software | None = None,
        workload: Workload | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> list[Measurement]:
        """Every measurement that matches, in the order they were added.

        `kind` and `name` are the workload's ("step", "train_gpt").
        """
        conditions = matching(device, software, workload, kind=kind, name=name)
        found = self._database.read(lambda c: read_measurements(c, *conditions))
        return [measurement for _, measurement in found]

    def measurement(self, address: str) -> Measurement | None:
        """The measurement of that content address, if it is here."""
        condition = schema.measurements.c.address == key_of(address)
        found = self._database.read(lambda c: read_measurements(c, condition))
        return found[0][1] if found else None

    def add_study(self, study: Study) -> bool:
        """Record a study; whether it was new."""
        new, ids = self._database.write(lambda c: record_study(c, self._parts, study))
        self._parts.remember(ids)
        return bool(new)

    def studies(self) -> list[Study]:
        """Every study, in the order they were added."""
        return list(self._database.read(read_studies).values())

    def add_launch(self, launch: Launch) -> bool:
        """Record a launch, with its study and what it reached; whether anything was new.

        Called when it starts and again when more is known: rows are added, none is changed, and
        the last outcome recorded is the one read.
        """
        return bool(self._database.write(lambda c: record_launch(c, self._parts, launch)))

    def launches(self, limit: int | None = None) -> list[Launch]:
        """The `limit` launches started last (None: every one), the latest started last."""
        return self._database.read(lambda c: read_launches(c, limit))

    def add_model(self, content: bytes, *, kind: str, trained_on: Mapping[str, Any]) -> str:
        """Record a fitted model (bytes of `perfmodel.artifact`); its content address.

        `trained_on` says what it was fitted on, as plain JSON.
        """
        row = model_row(content, kind=kind, trained_on=trained_on)
        self._database.write(lambda c: insert_new(c, schema.models, [row]))
        address: bytes = row["address"]
        return address.hex()

    def models(self, *, kind: str | None = None) -> list[StoredModel]:
        """Every model (of `kind`), in the order they were added, without their content."""
        return self._database.read(lambda c: read_models(c, kind))

    def model(self, address: str) -> bytes | None:
        """The content of the model of that address, if it is here."""
        return self._database.read(lambda c: read_model(c, address))

    def info(self) -> dict[str, Any]:
        """What the database is and holds, as plain JSON without secrets."""
        return self._database.read(self._info)

    def _info(self, connection: Connection) -> dict[str, Any]:
        return {
            "url": place(self._database.url),
            "dialect": connection.dialect.name,
            "schema_version": schema_version(connection),
            "counts": read_counts(connection),
            "size_bytes": read_size_bytes(connection),
        }

    def optuna_storage(self) -> RDBStorage:
        """Optuna's storage in this database, in tables of its own; made at the first call."""
        if self._optuna is None:
            from db.optuna_tables import open_storage

            self._optuna = open_storage(self._database)
        return self._optuna

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn what Optuna raises about its storage, inside the block, into a StorageError."""
        from optuna.exceptions import StorageInternalError

        try:
            yield
        except (StorageInternalError, SQLAlchemyError) as error:
            raise translated(
                error, self._database.url, waited_seconds=self._database.waits_seconds
            ) from error
