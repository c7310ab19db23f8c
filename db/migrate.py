"""Schema versions: read at each opening, created or upgraded in one transaction where needed."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from db.connection import Database
from db.location import place
from db.schema import PREFIX, VERSION_TABLE, VERSIONS
from perfmodel.errors import SchemaVersionError, StorageError

MIGRATIONS = Path(__file__).parent / "migrations"
_UPGRADE = "pip install --upgrade perfmodel"


def schema_version(connection: Connection) -> str | None:
    """The version the database says it has; None where there is nothing of ours."""
    inspector = inspect(connection)
    if not inspector.has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def bring_up_to_date(database: Database, *, create: bool) -> None:
    """Leave the database at this program's schema version, or raise and leave it as it was.

    A database without tables of ours gets them (unless `create` is False); an older one is upgraded
    if it is an SQLite file, which is one user's. A server's is a team's: upgrading it locks out
    every program not yet upgraded, so that is left to be asked for. Other tables aren't touched.
    """
    found = database.read(schema_version)
    if found == VERSIONS[-1]:
        return
    _check(database, found, create=create)
    database.use_wal()

    def upgrade(connection: Connection) -> None:
        database.lock_schema(connection)
        # Another process may have done it, or more than it, while we waited for the lock.
        current = schema_version(connection)
        if current == VERSIONS[-1]:
            return
        _check(database, current, create=create)
        if current is None:
            _refuse_stray_tables(database, connection)
        run_migrations(connection)

    database.write(upgrade)


def _check(database: Database, found: str | None, *, create: bool) -> None:
    where = place(database.url)
    if found is None:
        if not create:
            raise StorageError(f"database {where} holds no timings yet", next_command="run")
    elif found not in VERSIONS:
        raise SchemaVersionError(
            f"database {where} has schema version {found}, made by a newer perfmodel; this program "
            f"knows {', '.join(VERSIONS)}. Install one that knows {found} ({_UPGRADE}), or name "
            "another database with --db or TUNE_DB"
        )
    elif not database.is_sqlite:
        raise SchemaVersionError(
            f"database {where} has schema version {found}, this program writes {VERSIONS[-1]}; "
            "upgrading it shuts out programs that only know the older one, so it isn't done by "
            "itself. Ask whoever runs the database, or use the perfmodel that made it"
        )


def _refuse_stray_tables(database: Database, connection: Connection) -> None:
    strays = sorted(name for name in inspect(connection).get_table_names() if _is_ours(name))
    if strays:
        raise StorageError(
            f"database {place(database.url)} has the table {strays[0]} but no {VERSION_TABLE}: it "
            "was changed by hand. Restore a copy, or name another database with --db or TUNE_DB"
        )


def _is_ours(table: str) -> bool:
    return table.startswith(PREFIX) and table != VERSION_TABLE


def run_migrations(connection: Connection) -> None:
    """Run every migration that the database lacks, inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
