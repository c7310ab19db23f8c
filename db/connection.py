"""One database: connections of either kind set up alike, transactions retried, errors explained."""

from __future__ import annotations

import os
import random
import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import event, func, select
from sqlalchemy.engine import URL, Connection, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from db.faults import ELSEWHERE, is_transient, is_unreachable, translated
from db.location import busy_seconds
from perfmodel.errors import StorageError

T = TypeVar("T")

CONNECT_SECONDS = 10
CACHE_KIBIBYTES = 32 * 1024
SERVER_RETRY_SECONDS = 30.0
"""How long a server's "try again" (deadlock) is followed, and how long one that went away (a
restart) is waited for. A server that was never reached isn't waited for."""

MEMORY_SQLITE = (3, 36, 0)
_SCHEMA_LOCK = 0x70657266
"""Key of the PostgreSQL advisory lock under which tables are created ("perf")."""


class Database:
    """An engine and how it is used: `read` and `write` run a function in one transaction.

    An SQLite database in memory lives as long as this object; its connections (ours and Optuna's)
    share it under a name of its own.
    """

    def __init__(self, url: URL) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.waits_seconds = busy_seconds(url) if self.is_sqlite else SERVER_RETRY_SECONDS
        self._reached = False
        self._anchor: sqlite3.Connection | None = None
        if self.is_sqlite:
            self._file = Path(str(url.database)) if url.database else None
            self._memory = f"file:/perfmodel-{uuid.uuid4().hex}?vfs=memdb"
            if self._file is None:
                self._anchor = self._anchor_memory()
        self.engine = self._engine()

    @property
    def file(self) -> Path | None:
        """The SQLite file, or None in memory or on a server."""
        return self._file if self.is_sqlite else None

    def _anchor_memory(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < MEMORY_SQLITE:
            raise StorageError(
                f"a database in memory needs SQLite 3.36 or newer; this Python has "
                f"{sqlite3.sqlite_version}. Name a file with --db"
            )
        return self._connect_sqlite(None)

    def _engine(self) -> Engine:
        if self.is_sqlite:
            engine = create_engine(
                "sqlite://",
                creator=lambda: self._connect_sqlite(None),
                poolclass=QueuePool,
                hide_parameters=True,
            )
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        try:
            return create_engine(
                self.url,
                hide_parameters=True,
                pool_pre_ping=True,
                connect_args=self._server_arguments(),
            )
        except ModuleNotFoundError as error:
            raise StorageError(
                "a postgresql:// database needs psycopg: pip install 'perfmodel[postgres]'"
            ) from error

    def _server_arguments(self) -> dict[str, Any]:
        """What the URL and libpq's environment leave open."""
        chosen: dict[str, Any] = {"fallback_application_name": "perfmodel"}
        if "PGCONNECT_TIMEOUT" not in os.environ:
            chosen["connect_timeout"] = CONNECT_SECONDS
        return {k: v for k, v in chosen.items() if k not in self.url.query}

    def _connect_sqlite(self, isolation_level: str | None) -> sqlite3.Connection:
        connection = sqlite3.connect(
            str(self._file) if self._file else self._memory,
            uri=self._file is None,
            timeout=self.waits_seconds,
            check_same_thread=False,
            isolation_level=isolation_level,  # type: ignore[arg-type]
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            # For the index of addresses, which are inserted in no order. Reading through a memory
            # map was no faster, and there a failing disk kills the process instead of being told.
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            _set_synchronous(connection, mode)
        except BaseException:
            connection.close()
            raise
        return connection

    def use_wal(self) -> None:
        """Switch an SQLite file to write-ahead logging, where readers and a writer don't wait.

        Where it can't be had (some network file systems, a file that another program holds all the
        while) the ordinary journal stays.
        """
        if self.file is None:
            return

        def switch(connection: Connection) -> None:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            if driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                mode = driver.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                _set_synchronous(driver, mode)

        try:
            # Not every case is waited for by SQLite's own timeout (a writer in the ordinary journal
            # isn't).
            self._attempt(switch, begin=None)
        except StorageError as error:
            if not is_transient(error.__cause__):
                raise

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work`'s result, from one consistent state; StorageError when it can't be read."""
        return self._attempt(work, begin="deferred")

    def write(self, work: Callable[[Connection], T]) -> T:
        """`work`'s result, committed whole or not at all; StorageError when it can't be written.

        `work` may run more than once (after a deadlock, a lost connection), so it must leave
        nothing behind but what it writes.
        """
        return self._attempt(work, begin="immediate")

    def _attempt(self, work: Callable[[Connection], T], *, begin: str | None) -> T:
        deadline = time.monotonic() + self.waits_seconds
        pause = 0.01
        while True:
            try:
                with self.engine.connect() as connection:
                    self._reached = True
                    if begin is None:
                        return work(connection)
                    connection = connection.execution_options(**self._options(begin))
                    with connection.begin():
                        return work(connection)
            except (SQLAlchemyError, sqlite3.Error) as error:
                again = is_transient(error) or (self._reached and is_unreachable(error))
                if not again or time.monotonic() >= deadline:
                    raise translated(error, self.url, waited_seconds=self.waits_seconds) from error
            # Two that collided must not collide again in step.
            time.sleep(random.uniform(0.5, 1.5) * pause)
            pause = min(2 * pause, 1.0)

    def _options(self, begin: str) -> dict[str, Any]:
        """How SQLAlchemy begins a transaction; see `_begin_sqlite` for SQLite's."""
        if self.is_sqlite or begin == "immediate":
            return {"perfmodel_begin": begin}
        # By default each of a server's statements sees a state of its own.
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    def lock_schema(self, connection: Connection) -> None:
        """Keep other processes from creating tables until this transaction ends.

        An SQLite write transaction is such a lock already.
        """
        if not self.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))

    def optuna_engine_arguments(self) -> tuple[str, dict[str, Any]]:
        """URL and engine arguments for Optuna's storage on this very database.

        Optuna gets a function that connects instead of the real URL: its own handling of URLs
        would trip over braces in a path, and a password has no business in its attributes.
        """
        if self.is_sqlite:
            return "sqlite://", {
                "creator": lambda: self._connect_sqlite("IMMEDIATE"),
                "poolclass": QueuePool,
            }
        dialect = self.engine.dialect
        positional, named = dialect.create_connect_args(self.url)
        named = {**named, **self._server_arguments()}
        return "postgresql+psycopg://", {
            "creator": lambda: dialect.connect(*positional, **named),
            "pool_pre_ping": True,
        }

    def close(self) -> None:
        """Give every connection back; a database in memory is gone."""
        self.engine.dispose()
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None


def check_file(path: Path, *, create: bool) -> None:
    """Make an SQLite file's folder; StorageError where a database there can't be opened."""
    try:
        if path.is_dir():
            raise StorageError(
                f"database {path} is a folder; name a file in it, e.g. {path}/timings.db"
            )
        if not path.exists() and not create:
            raise StorageError(f"there is no database at {path}; {ELSEWHERE}", next_command="run")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"database {path} can't be opened ({error.strerror}: {error.filename}); {ELSEWHERE}"
        ) from error
    for needed in (path.parent, path):
        if needed.exists() and not os.access(needed, os.R_OK | os.W_OK):
            kind = "folder" if needed == path.parent else "file"
            raise StorageError(
                f"database {path} can't be written: you have no right to write to the {kind} "
                f"{needed}. Change its permissions, or {ELSEWHERE}"
            )


def _set_synchronous(connection: sqlite3.Connection, mode: str) -> None:
    # In WAL mode NORMAL survives a killed process and keeps the file whole in a power cut; without
    # WAL only FULL does.
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")


def _begin_sqlite(connection: Connection) -> None:
    # Python's sqlite3 would begin late and without the write lock; then two transactions that
    # read before they write can only fail.
    mode = connection.get_execution_options().get("perfmodel_begin", "deferred")
    connection.exec_driver_sql(f"BEGIN {mode.upper()}")
