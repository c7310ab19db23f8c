"""Schema versions: golden databases open, migrations and schema agree, newer ones are refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from db import schema
from db.connection import Database
from db.location import parse_url
from db.migrate import MIGRATIONS
from db.store import Store
from perfmodel.errors import SchemaVersionError, StorageError

GOLDEN = Path(__file__).parents[1] / "golden"


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found}


@pytest.mark.parametrize("version", schema.VERSIONS)
def test_golden_database_opens(version: str, tmp_path: Path) -> None:
    path = tmp_path / "golden.db"
    shutil.copy(GOLDEN / f"schema_{version}.db", path)
    held: dict[str, Any] = json.loads((GOLDEN / f"schema_{version}.json").read_text())
    with Store.open(str(path)) as store:
        assert store.info()["schema_version"] == schema.VERSIONS[-1]
        assert [m.to_json() for m in store.measurements()] == held["measurements"]
        assert [m.address for m in store.measurements()] == held["addresses"]
        assert [s.to_json() for s in store.studies()] == held["studies"]
        assert [launch.to_json() for launch in store.launches()] == held["launches"]
        assert [m.address for m in store.models()] == held["models"]
        assert store.model(held["models"][0]) == bytes(range(256))
        # What was recorded then is known now: nothing is new.
        assert store.add(store.measurements()) == 0
        study = optuna.load_study(storage=store.optuna_storage(), study_name=held["optuna_study"])
        assert study.best_trial.user_attrs == {"measurement": held["addresses"][1]}
        study.tell(study.ask(), 1.0)


def test_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    ordered = [script.revision for script in scripts.walk_revisions()][::-1]
    assert tuple(ordered) == schema.VERSIONS
    assert scripts.get_current_head() == schema.VERSIONS[-1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_migrations_make_the_schema(kind: str, tmp_path: Path, request: Any) -> None:
    """What autogenerate would change is nothing, with Optuna's and a user's tables present."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "a.db")
    with Store.open(url) as store:
        store.optuna_storage()
    database = Database(parse_url(url))
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (a INTEGER)")
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": schema.VERSION_TABLE,
                "compare_type": True,
                "include_name": lambda name, type_, _: (
                    type_ != "table" or name.startswith(schema.PREFIX)
                ),
            },
        )
        assert compare_metadata(context, schema.metadata) == []
    database.close()


def test_only_prefixed_tables_are_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store.open(str(path)).close()
    ours = tables(path) - {"sqlite_sequence"}
    assert all(name.startswith("perfmodel_") for name in ours)
    assert "alembic_version" not in ours  # Optuna would take it for its own


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("version", ["0002", "1000", "future"])
def test_a_newer_schema_is_refused(kind: str, version: str, tmp_path: Path, request: Any) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "a.db")
    Store.open(url).close()
    database = Database(parse_url(url))
    with database.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = :v"), {"v": version}
        )
    database.close()
    for create in (True, False):
        with pytest.raises(SchemaVersionError) as caught:
            Store.open(url, create=create)
        for word in (version, schema.VERSIONS[-1], "pip install --upgrade perfmodel"):
            assert word in caught.value.message


def test_a_failed_migration_leaves_nothing(tmp_path: Path) -> None:
    """A table in its way: the whole upgrade is undone."""
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
        connection.execute("CREATE VIEW perfmodel_models AS SELECT * FROM mine")
    with pytest.raises(StorageError, match="perfmodel_models"):
        Store.open(str(path))
    assert tables(path) == {"mine"}


def test_tables_without_a_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE {schema.VERSION_TABLE}")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="changed by hand"):
        Store.open(str(path))
    assert tables(path) >= {"perfmodel_measurements"}
    assert len(path.read_bytes()) == len(before)


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE devices (a)")
        connection.execute("INSERT INTO devices VALUES (1)")
    with pytest.raises(StorageError, match="holds no timings yet"):
        Store.open(str(path), create=False)
    assert tables(path) == {"devices"}
    with Store.open(str(path)) as store:
        assert store.info()["counts"]["devices"] == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT a FROM devices").fetchall() == [(1,)]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("first", ["optuna", "ours"])
def test_optuna_and_ours_in_either_order(
    kind: str, first: str, tmp_path: Path, request: Any, make_measurement: Any
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "a.db")
    plain = parse_url(url).render_as_string(hide_password=False)
    if first == "ours":
        with Store.open(url) as store:
            store.add([make_measurement(0)])
    study = optuna.create_study(storage=plain, study_name="theirs")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    with Store.open(url) as store:
        store.add([make_measurement(0), make_measurement(1)])
        assert len(store.measurements()) == 2
        seen = optuna.load_study(storage=store.optuna_storage(), study_name="theirs")
        assert len(seen.trials) == 2
        seen.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert len(optuna.load_study(storage=plain, study_name="theirs").trials) == 3


def test_alembic_is_loaded_only_to_migrate(tmp_path: Path) -> None:
    """Opening a database that is up to date must stay quick."""
    import subprocess
    import sys

    path = str(tmp_path / "a.db")
    Store.open(path).close()
    program = (
        "import sys; from db.store import Store; Store.open(sys.argv[1]).close(); "
        "print([m for m in ('alembic', 'optuna', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_upgrading_waits_for_another_opener(tmp_path: Path) -> None:
    """A second opener that comes while the first migrates waits and finds it done."""
    path = tmp_path / "a.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("PRAGMA journal_mode = WAL")
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, holder.execute, ("COMMIT",))
    release.start()
    Store.open(str(path)).close()
    release.join()
    holder.close()
