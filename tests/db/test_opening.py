"""Which database is meant, and what is said when it can't be opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from db.connection import Database
from db.faults import translated
from db.location import database_url, default_path, parse_url, shown_url
from db.store import Store
from perfmodel.errors import PerfModelError, StorageError, UsageError
from perfmodel.records import Measurement

SECRET = "s3cret/p@ss word"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNE_DB", raising=False)


def test_the_default_is_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "perfmodel/timings.db"
    assert database_url() == database_url("") == f"sqlite:///{default_path()}"
    monkeypatch.setenv("TUNE_DB", "/data/team.db")
    assert database_url() == "sqlite:////data/team.db"
    assert database_url("/data/mine.db") == "sqlite:////data/mine.db"


def test_urls_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert database_url("a.db") == database_url("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    assert database_url("~/a.db") == "sqlite:////home/me/a.db"
    assert database_url(":memory:") == database_url("sqlite://") == "sqlite://"
    assert parse_url("sqlite+pysqlite:////a.db").drivername == "sqlite"
    for name in ("postgresql", "postgres", "postgresql+psycopg"):
        assert database_url(f"{name}://u:p@h/d") == "postgresql+psycopg://u:p@h/d"


@pytest.mark.parametrize("name", ["a b?c=d", "50%20", "{x}", "#1", "é", "a&b;c'd"])
def test_awkward_file_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "timings.db"
    with Store.open(str(path)) as store:
        store.optuna_storage()
        assert store.info()["url"] == str(path)
    assert path.is_file()
    with Store.open(database_url(str(path)), create=False):
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mysql://u:s3cret@h/d", ["mysql", "postgresql://"]),
        ("postgresql+psycopg2://u:s3cret@h/d", ["postgresql+psycopg2"]),
        ("nonsense://", ["nonsense", "sqlite:///PATH"]),
        ("://u:s3cret@h", ["can't be parsed", "***"]),
        ("postgresql://u:s3cret@h:port/d", ["can't be parsed", "***"]),
        ("sqlite://timings.db", ["three slashes"]),
        ("sqlite:///a.db?mode=ro", ["'mode'", "timeout"]),
        ("sqlite:///a.db?timeout=soon", ["timeout='soon'", "0 to 3600"]),
        ("me:s3cret@h/d", ["'me:***@h/d'", "postgresql://"]),
        ("me:s3cret@s3cret/s3cret@h:5432/d", ["'me:***@h:5432/d'"]),
        ("postgresql:/me:s3cret@h/d", ["***@h/d", "postgresql://"]),
        ("a\0b", ["NUL"]),
        ("~nosuchuser/a.db", ["no such user"]),
    ],
)
def test_malformed_urls_are_usage_errors(text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(text)
    for word in words:
        assert word in caught.value.message
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host/d",
        "postgresql://user:s3cret@word@host/d",
        "postgresql://user:s3cret/x@host/d",
        "postgresql://user@host/d?password=s3cret&sslmode=require",
        "postgresql://user@host/d?sslpassword=s3cret",
        "postgresql://:s3cret@host/d",
    ],
)
def test_secrets_are_hidden(url: str) -> None:
    assert "s3cret" not in shown_url(url)
    assert "***" in shown_url(url)
    assert "host/d" in shown_url(url)


def test_what_is_no_secret_is_shown() -> None:
    for url in ("postgresql://user@host:5432/d", "postgresql:///d?host=/tmp", "sqlite:////a:b@c"):
        assert shown_url(url) == url


def test_a_file_may_be_called_like_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("./a:b@c").database == f"{tmp_path}/a:b@c"
    assert parse_url(f"{tmp_path}/a:b@c").database == f"{tmp_path}/a:b@c"
    assert parse_url("me@home.db").database == f"{tmp_path}/me@home.db"


@pytest.mark.parametrize(
    ("password", "said", "shown"),
    [
        ("two  spaces", 'no "two  spaces"\nfor  you', 'no "***" for you'),
        ("two  spaces", "x=two++spaces&", "x=***&"),
        ("a", "a server at u:a@host has password='a'", "a server at u:***@host has password='***'"),
        ("data", "database: data", "database: data"),
        ("lengthy", "alengthyb", "a***b"),
    ],
)
def test_secrets_are_taken_out_of_what_a_driver_says(password: str, said: str, shown: str) -> None:
    url = parse_url("postgresql://u@host/d").set(password=password)
    error = OperationalError("", None, Exception(said))
    assert f"({shown})" in translated(error, url).message


def refused(url: str, **options: Any) -> str:
    """The message of the StorageError at opening."""
    with pytest.raises(StorageError) as caught:
        Store.open(url, **options)
    assert caught.value.exit_code == 1
    return caught.value.message


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "a/b/c.db")):
        assert (tmp_path / "a/b/c.db").is_file()


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert "is a folder" in refused(str(tmp_path))


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(str(tmp_path / "file/a.db"))
    assert str(tmp_path / "file") in refused(str(tmp_path / "file/b/a.db"))


def test_not_made_without_create(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert "there is no database at" in refused(str(path), create=False)
    assert not path.exists()
    path.touch()
    assert "holds no timings yet" in refused(str(path), create=False)
    with Store.open(str(path)):
        pass


@pytest.mark.parametrize("content", [b"not a database\n" * 100, b"PAR1", b"\0" * 4096])
def test_a_file_that_is_no_database(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    assert f"{path} isn't an SQLite database" in refused(str(path))
    assert path.read_bytes() == content


def test_a_damaged_database(tmp_path: Path, make_measurement: Callable[..., Measurement]) -> None:
    path = tmp_path / "a.db"
    with Store.open(str(path)) as store:
        store.add([make_measurement(n) for n in range(200)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"), Store.open(str(path)) as store:
        store.measurements()


def test_a_database_that_another_program_holds(
    tmp_path: Path, make_measurement: Callable[..., Measurement]
) -> None:
    path = tmp_path / "a.db"
    with Store.open(f"sqlite:///{path}?timeout=0.2") as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"held by another program \(waited 0.2 s\)"):
            store.add([make_measurement(0)])
        assert store.measurements() == []  # reading goes on
        holder.execute("COMMIT")
        holder.close()
        assert store.add([make_measurement(0)]) == 1


@pytest.mark.parametrize("holds", ["BEGIN IMMEDIATE", "BEGIN; SELECT * FROM mine"])
class TestSwitchingToWal:
    """A file in the ordinary journal, in use by another program."""

    @pytest.fixture
    def holder(self, holds: str, tmp_path: Path) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(
            tmp_path / "a.db", isolation_level=None, check_same_thread=False
        )
        connection.execute("CREATE TABLE mine (a)")
        for statement in holds.split("; "):
            connection.execute(statement)
        yield connection
        connection.close()

    @pytest.fixture
    def mode(self, tmp_path: Path) -> Callable[[], str]:
        def read() -> str:
            connection = sqlite3.connect(tmp_path / "a.db")
            found = connection.execute("PRAGMA journal_mode").fetchone()[0]
            connection.close()
            return str(found)

        return read

    def test_waits_for_it(
        self, holder: sqlite3.Connection, mode: Callable[[], str], tmp_path: Path
    ) -> None:
        release = threading.Timer(0.3, holder.execute, ("COMMIT",))
        release.start()
        with Store.open(str(tmp_path / "a.db")) as store:
            assert store.measurements() == []
        release.join()
        assert mode() == "wal"

    def test_goes_on_without(
        self, holder: sqlite3.Connection, mode: Callable[[], str], tmp_path: Path
    ) -> None:
        database = Database(parse_url(f"sqlite:///{tmp_path}/a.db?timeout=0.2"))
        database.use_wal()
        assert mode() == "delete"
        holder.execute("COMMIT")
        database.write(lambda c: c.exec_driver_sql("INSERT INTO mine VALUES (1)"))
        database.use_wal()
        assert mode() == "wal"
        database.close()

    def test_a_holder_that_stays_is_named(self, holder: sqlite3.Connection, tmp_path: Path) -> None:
        said = refused(f"sqlite:///{tmp_path}/a.db?timeout=0.2")
        assert "is held by another program (waited 0.2 s)" in said


class TestAsAnUnprivilegedUser:
    """Permissions bind only who isn't root."""

    @pytest.fixture
    def opened(self, unprivileged: Any) -> Callable[[Path], str]:
        """Opens the database at a path as that user; "opened" or the error."""

        def attempt(path: Path) -> str:
            try:
                Store.open(str(path)).close()
            except PerfModelError as error:
                return f"{type(error).__name__} {error.message}"
            return "opened"

        return lambda path: unprivileged(lambda: attempt(path))

    @pytest.fixture
    def made(self, nobodys_folder: Path, unprivileged: Any) -> Path:
        """A database of theirs."""
        path = nobodys_folder / "a.db"
        Store.open(str(path)).close()
        if os.geteuid() == 0:
            shutil.chown(path, "nobody")
        return path

    def test_their_own(self, made: Path, opened: Callable[[Path], str]) -> None:
        assert opened(made) == "opened"

    def test_a_read_only_folder(self, made: Path, opened: Callable[[Path], str]) -> None:
        folder = made.parent
        folder.chmod(0o555)
        for path in (made, folder / "b.db", folder / "new/a.db"):
            said = opened(path)
            assert said.startswith(f"StorageError database {path} can't be ")
            assert str(folder) in said
            assert "--db or TUNE_DB" in said

    def test_a_read_only_file(self, made: Path, opened: Callable[[Path], str]) -> None:
        made.chmod(0o444)
        assert f"no right to write to the file {made}" in opened(made)

    def test_a_folder_that_is_closed_to_them(
        self, made: Path, opened: Callable[[Path], str]
    ) -> None:
        closed = made.parent / "closed"
        closed.mkdir()
        closed.chmod(0o000)
        for path in (closed / "a.db", closed / "b/a.db"):
            said = opened(path)
            assert said.startswith(f"StorageError database {path} can't be ")
            assert str(closed) in said


class TestServer:
    """What PostgreSQL, or its absence, makes of a URL."""

    def test_nobody_listens(self) -> None:
        pytest.importorskip("psycopg")
        said = refused("postgresql://user:s3cret@127.0.0.1:1/timings")
        assert "can't be reached" in said
        assert "postgresql://user:***@127.0.0.1:1/timings" in said
        assert "s3cret" not in said

    def test_no_such_host(self) -> None:
        pytest.importorskip("psycopg")
        said = refused("postgresql://user:s3cret@no-such-host.invalid/timings")
        assert "no-such-host.invalid" in said
        assert "s3cret" not in said

    def test_a_wrong_password(self, postgres_server: Any) -> None:
        postgres_server.execute("DROP ROLE IF EXISTS locked")
        postgres_server.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        url = parse_url(postgres_server.url(user="locked"))
        with pytest.raises(StorageError) as caught:
            Store.open(url.set(password=SECRET).render_as_string(hide_password=False))
        said = caught.value.message
        assert "refuses the login" in said
        assert "***" in said
        assert "s3cret" not in said
        assert "p@ss" not in said

    def test_what_the_user_set_is_kept(
        self, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def name(url: str) -> str:
            database = Database(parse_url(url))
            shown = database.read(lambda c: c.exec_driver_sql("SHOW application_name").scalar())
            database.close()
            return str(shown)

        url = postgres_server.url()
        assert name(url) == "perfmodel"
        monkeypatch.setenv("PGAPPNAME", "night run")
        assert name(url) == "night run"
        assert name(f"{url}&application_name=mine") == "mine"
        for seconds, variable in (("10", None), ("3", "3")):
            if variable:
                monkeypatch.setenv("PGCONNECT_TIMEOUT", variable)
            database = Database(parse_url(url))
            with database.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                # What was given to libpq; of its own variables it makes its own parameters.
                found = driver.info.get_parameters().get("connect_timeout", seconds)
                assert found == seconds
            database.close()

    def test_no_such_database(self, postgres_server: Any) -> None:
        said = refused(postgres_server.url(database="missing"))
        assert "doesn't exist on that server" in said
        assert "createdb" in said

    def test_no_such_user(self, postgres_server: Any) -> None:
        assert "refuses the login" in refused(postgres_server.url(user="stranger"))

    def test_an_option_that_libpq_refuses(self) -> None:
        pytest.importorskip("psycopg")
        with pytest.raises(PerfModelError) as caught:
            Store.open("postgresql://u:s3cret@127.0.0.1:1/d?colour=red")
        assert "colour" in caught.value.message
        assert "s3cret" not in caught.value.message

    def test_without_the_right_to_make_tables(self, postgres_server: Any) -> None:
        postgres_server.execute("DROP ROLE IF EXISTS reader")
        postgres_server.execute("CREATE ROLE reader LOGIN")
        said = refused(postgres_server.url(user="reader"))
        assert "doesn't let you do that" in said
        assert "permission denied for schema public" in said
