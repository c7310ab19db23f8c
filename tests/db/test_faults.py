"""Killed processes, full disks, many writers, a server that restarts: nothing lost or doubled."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from db.connection import Database
from db.location import parse_url
from db.store import Store
from perfmodel.errors import StorageError
from perfmodel.records import Measurement

Make = Callable[..., Measurement]

WRITER = """
import sys
from db.store import Store
from perfmodel.records import *
url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = Device("cpu", "AMD", "EPYC", "Zen 4", 1, 64)
workload = Workload("step", "w")
print("ready", flush=True)
sys.stdin.readline()
with Store.open(url) as store:
    for n in range(first, first + count):
        m = Measurement(device, Software(), workload, Configuration(n=n), f"t{n}", (0.1,) * 200)
        store.add([m])
        print(m.address, flush=True)
print("done", flush=True)
"""


def start_writer(url: str, first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def let_go(writers: list[subprocess.Popen[str]]) -> None:
    """Start together once all have loaded."""
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("\n")
        writer.stdin.flush()


def healthy(path: Path) -> bool:
    with sqlite3.connect(path) as connection:
        whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        dangling = connection.execute("PRAGMA foreign_key_check").fetchall()
    return whole and not dangling


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_many_processes_write_the_same(kind: str, tmp_path: Path, request: Any) -> None:
    """Each range is written by two processes; they also make the tables together."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "a.db")
    writers = [start_writer(url, first, 30) for first in (0, 0, 15, 15)]
    let_go(writers)
    for writer in writers:
        out, err = writer.communicate()
        assert out.endswith("done\n"), err
    with Store.open(url) as store:
        addresses = [m.address for m in store.measurements()]
        assert len(addresses) == len(set(addresses)) == 45


@pytest.mark.parametrize("attempt", range(3))
def test_two_processes_make_the_same_database(tmp_path: Path, attempt: int) -> None:
    """Neither fails, and the file ends with write-ahead logging."""
    path = tmp_path / "a.db"
    writers = [start_writer(str(path), first, 1) for first in (0, 1)]
    let_go(writers)
    for writer in writers:
        out, err = writer.communicate()
        assert out.endswith("done\n"), err
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with Store.open(str(path)) as store:
        assert len(store.measurements()) == 2


def kill_while_writing(path: Path, seconds: float) -> None:
    """Whatever `add` has returned from is there after a kill -9."""
    writer = start_writer(str(path), 0, 100_000)
    let_go([writer])
    assert writer.stdout
    said = [writer.stdout.readline().strip()]
    time.sleep(seconds)
    writer.kill()
    said += [line.strip() for line in writer.stdout.read().splitlines()]
    writer.communicate()
    with Store.open(str(path)) as store:
        held = {m.address for m in store.measurements()}
        assert {line for line in said if len(line) == 64} <= held
        assert len(held) - len(said) in (-1, 0, 1)  # the last line may be torn, the last add mute
    assert healthy(path)


def test_kill_while_writing(tmp_path: Path) -> None:
    kill_while_writing(tmp_path / "a.db", 0.2)


@pytest.mark.slow
def test_kill_while_writing_many_times(tmp_path: Path) -> None:
    random.seed(0)
    for n in range(10):
        kill_while_writing(tmp_path / f"{n}.db", random.uniform(0, 0.5))


@pytest.mark.slow
def test_kill_while_opening(tmp_path: Path) -> None:
    """The tables of a new database are there, all or none, whenever it is killed."""
    random.seed(0)
    for n in range(10):
        path = tmp_path / f"{n}.db"
        writer = start_writer(str(path), 0, 1)
        let_go([writer])
        time.sleep(random.uniform(0, 0.3))
        writer.kill()
        writer.communicate()
        with Store.open(str(path)) as store:
            assert len(store.measurements()) <= 1
        assert healthy(path)


class TestFullDisk:
    """A limit on the size of files stands in for a full disk."""

    @pytest.fixture
    def limited(self) -> Callable[[int, Callable[[], str]], str]:
        """Runs a function in a child that may write no file beyond so many bytes."""

        def run(limit: int, work: Callable[[], str]) -> str:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                    os.write(writing, work().encode())
                except BaseException as error:
                    os.write(writing, f"{type(error).__name__}: {error}".encode())
                finally:
                    os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                said = pipe.read().decode()
            os.waitpid(child, 0)
            return said

        return run

    @pytest.mark.parametrize("rows", [1, 50])
    def test_while_adding(
        self, tmp_path: Path, make_measurement: Make, limited: Any, rows: int
    ) -> None:
        path = tmp_path / "a.db"

        def fill() -> str:
            n = 0
            with Store.open(str(path)) as store:
                try:
                    while n < 20_000:
                        batch = [make_measurement(n + i, samples=(0.1,) * 500) for i in range(rows)]
                        store.add(batch)
                        n += rows
                except StorageError as error:
                    return f"{n} {len(store.measurements())} {error.message}"
            return "never full"

        count, seen, message = limited(2**19, fill).split(" ", 2)
        assert "disk is full" in message, message
        assert str(path) in message
        assert int(count) == int(seen) > 0
        assert healthy(path)
        with Store.open(str(path)) as store:
            assert len(store.measurements()) == int(count)
            assert store.add([make_measurement(30_000)]) == 1

    @pytest.mark.parametrize("limit", [0, 1000, 4096, 40_000, 70_000])
    def test_while_opening(self, tmp_path: Path, limited: Any, limit: int) -> None:
        path = tmp_path / "a.db"

        def open_it() -> str:
            Store.open(str(path)).close()
            return "opened"

        said = limited(limit, open_it)
        assert said.startswith("StorageError"), said
        assert str(path) in said
        with Store.open(str(path)) as store:
            assert store.measurements() == []


class TestServerFaults:
    def test_a_restart(
        self, postgres_server: Any, postgres_url: str, make_measurement: Make
    ) -> None:
        """Connections that died while idle are replaced without a word."""
        with Store.open(postgres_url) as store:
            store.add([make_measurement(0)])
            store.optuna_storage()
            postgres_server.restart()
            assert store.add([make_measurement(0), make_measurement(1)]) == 1
            assert store.optuna_storage().get_all_studies() == []

    def test_a_restart_while_adding(
        self, postgres_server: Any, postgres_url: str, make_measurement: Make
    ) -> None:
        """The server stops between two statements of the transaction and comes back later."""
        stopped = threading.Event()

        def stop(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
            if "perfmodel_measurements" in statement and not stopped.is_set():
                postgres_server.stop()
                stopped.set()

        with Store.open(postgres_url) as store:
            store.add([make_measurement(0)])
            event.listen(store._database.engine, "before_cursor_execute", stop)
            new: list[int] = []
            rows = [make_measurement(n) for n in range(3)]
            adding = threading.Thread(target=lambda: new.append(store.add(rows)))
            adding.start()
            assert stopped.wait(10)
            time.sleep(0.5)  # connections are refused meanwhile
            assert adding.is_alive()
            postgres_server.start()
            adding.join()
            assert new == [2]
            assert store.measurements() == rows

    def test_a_server_that_stays_away(
        self, postgres_server: Any, postgres_url: str, make_measurement: Make
    ) -> None:
        """One that was reached is waited for, within limits; one that never was isn't."""
        with Store.open(postgres_url) as store:
            store._database.waits_seconds = 0.5
            postgres_server.stop()
            try:
                start = time.monotonic()
                with pytest.raises(StorageError, match="can't be reached"):
                    store.add([make_measurement(0)])
                waited = time.monotonic() - start
                assert waited >= 0.5
                with pytest.raises(StorageError, match="can't be reached"):
                    Store.open(postgres_url)
            finally:
                postgres_server.start()
            assert store.add([make_measurement(0)]) == 1

    def test_a_cancelled_query_is_no_shutdown(self, postgres_url: str) -> None:
        database = Database(parse_url(postgres_url))

        def work(connection: Any) -> None:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 20")
            connection.exec_driver_sql("SELECT pg_sleep(5)")

        with pytest.raises(StorageError, match="failed: canceling statement"):
            database.write(work)
        database.close()

    def test_reading_sees_one_state_and_writes_nothing(
        self, postgres_url: str, make_measurement: Make
    ) -> None:
        database = Database(parse_url(postgres_url))
        query = "SELECT count(*) FROM perfmodel_measurements"
        with Store.open(postgres_url) as store:

            def work(connection: Any) -> list[int]:
                before = connection.exec_driver_sql(query).scalar()
                store.add([make_measurement(0)])
                return [before, connection.exec_driver_sql(query).scalar()]

            assert database.read(work) == [0, 0]
            assert len(store.measurements()) == 1
        with pytest.raises(StorageError, match="open for reading only"):
            database.read(lambda c: c.exec_driver_sql("CREATE TABLE mine (a INTEGER)"))
        database.write(lambda c: c.exec_driver_sql("CREATE TABLE mine (a INTEGER)"))
        database.close()

    def test_a_connection_cut_while_writing(
        self, postgres_server: Any, postgres_url: str, make_measurement: Make
    ) -> None:
        """The transaction is run again: adding is idempotent."""
        database = Database(parse_url(postgres_url))
        attempts = []

        def work(connection: Any) -> int:
            attempts.append(1)
            own = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            if len(attempts) == 1:
                postgres_server.execute(f"SELECT pg_terminate_backend({own})")
            return int(connection.exec_driver_sql("SELECT 7").scalar())

        assert database.write(work) == 7
        assert len(attempts) == 2
        database.close()

    def test_a_deadlock(self, postgres_url: str, make_measurement: Make) -> None:
        """Two writers of the same rows in opposite order: the victim tries again."""
        rows = [make_measurement(n) for n in range(300)]
        with Store.open(postgres_url) as one, Store.open(postgres_url) as two:
            new: list[int] = []
            threads = [
                threading.Thread(target=lambda s=store, r=batch: new.append(s.add(r)))
                for store, batch in ((one, rows), (two, rows[::-1]))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(new) == 300
            assert len(one.measurements()) == 300

    def test_append_only_and_read_only_roles(
        self, postgres_server: Any, make_measurement: Make
    ) -> None:
        schema = postgres_server.new_schema()
        with Store.open(postgres_server.url(schema)) as store:
            store.add([make_measurement(0)])
        for role, rights in (("appender", "SELECT, INSERT"), ("onlooker", "SELECT")):
            postgres_server.execute(f"CREATE ROLE {role} LOGIN")
            postgres_server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            postgres_server.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {role}")
        with Store.open(postgres_server.url(schema, user="appender")) as store:
            assert store.add([make_measurement(0), make_measurement(1)]) == 1
        with Store.open(postgres_server.url(schema, user="onlooker"), create=False) as store:
            assert len(store.measurements()) == 2
            with pytest.raises(StorageError, match=r"doesn't let you do that.*permission denied"):
                store.add([make_measurement(2)])
            with pytest.raises(StorageError, match="doesn't let you do that"):
                store.optuna_storage()
        for role in ("appender", "onlooker"):
            postgres_server.execute(f"DROP OWNED BY {role}")
            postgres_server.execute(f"DROP ROLE {role}")
