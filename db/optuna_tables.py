"""Optuna's storage in our database: its tables beside ours, neither in the other's way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from db.connection import Database
from db.faults import translated
from db.location import place
from perfmodel.errors import SchemaVersionError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

CREATE_SECONDS = 10.0
"""How long another process that makes Optuna's tables at the same moment is waited for."""


def open_storage(database: Database) -> RDBStorage:
    """An Optuna storage on `database`, its tables made where missing.

    Optuna makes them in several transactions and fails when another process is just doing the
    same; a second try then finds them made.
    """
    from optuna.storages import RDBStorage

    url, engine_arguments = database.optuna_engine_arguments()
    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            return RDBStorage(url, engine_kwargs=dict(engine_arguments))
        except (SQLAlchemyError, StorageInternalError) as error:
            if time.monotonic() >= deadline or not _collided(error):
                raise translated(
                    error, database.url, waited_seconds=database.waits_seconds
                ) from error
            time.sleep(0.1)
        except RuntimeError as error:
            # Optuna's own words name its versions, and the URL only as $STORAGE_URL.
            raise SchemaVersionError(f"database {place(database.url)}: {error}") from error


def _collided(error: BaseException) -> bool:
    said = f"{error} {error.__cause__}".lower()
    return any(word in said for word in ("already exists", "unique", "duplicate", "locked"))
