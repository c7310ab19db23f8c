"""Databases to test against: in memory, a file, a PostgreSQL server of our own; and records."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from perfmodel.history import Launch, Study
from perfmodel.records import (
    MEMORY_KEYS,
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Memory,
    Prediction,
    Software,
    Workload,
)
from perfmodel.space import Parameter, Space

BINARIES = Path("/usr/lib/postgresql")
_SERVER_SECONDS = 30


# --- records -------------------------------------------------------------------------------------

DEVICE = Device("gpu", "NVIDIA", "H100 SXM", "Hopper", 85_899_345_920, 132)
SOFTWARE = Software(Facts(torch="2.13.0", python="3.11"))
WORKLOAD = Workload("step", "train_gpt", Facts(command="python train_gpt.py {batch_size}"))


@pytest.fixture(scope="session")
def make_measurement() -> Callable[..., Measurement]:
    """A function that makes the n-th of many distinct measurements."""

    def make(n: int = 0, **changes: object) -> Measurement:
        fields: dict[str, object] = {
            "device": DEVICE,
            "software": SOFTWARE,
            "workload": WORKLOAD,
            "configuration": Configuration(batch_size=4 << (n % 5), precision="bf16"),
            "measured_at": f"2026-01-01T00:00:00.{n:06d}+00:00",
            "samples": (0.1 + n / 1000, 0.2, 0.15),
            "memory": Memory(reserved_bytes=2**33 + n, resident_bytes=10**9),
            "conditions": Facts(load1=0.5, n=n),
        }
        return Measurement(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def study() -> Study:
    """A study that could have been asked."""
    space = Space(
        (Parameter("batch_size", (4, 8, 16)), Parameter("precision", ("fp32", "bf16"))),
        ("batch_size <= 16",),
    )
    return Study(DEVICE, SOFTWARE, WORKLOAD, space, "samples_per_second", "batch_size")


@pytest.fixture(scope="session")
def make_launch(
    study: Study, make_measurement: Callable[..., Measurement]
) -> Callable[..., Launch]:
    """A function that makes the n-th launch; the even ones reached something."""

    def make(n: int = 0) -> Launch:
        return Launch(
            study=study,
            configuration=Configuration(batch_size=8, precision="bf16"),
            command=("python", "train_gpt.py", "--name", "a b\udcff"),
            started_at=f"2026-02-{n + 1:02d}T00:00:00+00:00",
            seconds=12.5,
            exit_code=0,
            predicted=Prediction(0.1, 0.09, 0.12, peak_bytes=1e9),
            achieved=make_measurement(1000 + n) if n % 2 == 0 else None,
        )

    return make


_printed = st.text(st.characters()) | st.sampled_from(
    ["\ud83d\ude00", "\ude00\ud83d", "\0" * 9000, "é\r\n\t" * 5000, "\ud83d" * 8191 + "\ude00x"]
)
"""What a process may print: every code point, lone and paired surrogates, NUL, any length."""
_texts = st.text(max_size=20) | st.sampled_from(["a\0b", "C:\\tmp\\u0041", "\udcff", "é", "'; --"])
_whole = st.integers(-(2**63) + 1, 2**63 - 1)
_scalars = st.booleans() | _whole | st.floats(allow_nan=False, allow_infinity=False) | _texts
_facts = st.dictionaries(_texts, _scalars, max_size=4)


@pytest.fixture(scope="session")
def any_measurement() -> st.SearchStrategy[Measurement]:
    """Every measurement that the records allow."""
    seconds = st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False)
    bytes_ = st.none() | st.integers(0, 2**63 - 1)
    outcome = st.fixed_dictionaries(
        {"samples": st.lists(seconds, min_size=1, max_size=30).map(tuple)}
    ) | st.fixed_dictionaries(
        {
            "failure": st.builds(
                Failure, st.sampled_from(FailureReason), _printed, st.none() | _whole, _printed
            )
        }
    )
    parts = st.fixed_dictionaries(
        {
            "device": st.builds(
                Device, st.sampled_from(["cpu", "gpu"]), _texts, _texts, _texts, _whole, _whole
            ),
            "software": st.builds(Software, _facts.map(Facts)),
            "workload": st.builds(
                Workload, st.sampled_from(["kernel", "operator", "step"]), _texts, _facts.map(Facts)
            ),
            "configuration": _facts.map(Configuration),
            "measured_at": _texts,
            "memory": st.builds(Memory, **dict.fromkeys(MEMORY_KEYS, bytes_)),
            "ranks": st.integers(1, 2**31 - 1),
            "conditions": _facts.map(Facts),
        }
    )
    return st.builds(lambda a, b: Measurement(**a, **b), parts, outcome)


# --- databases -----------------------------------------------------------------------------------


class PostgresServer:
    """A PostgreSQL server in a temporary folder, reached through a socket there only."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._account = _unprivileged()
        if self._account:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._schemas = 0
        self._run("initdb", "-D", "data", "-U", "owner", "--auth=trust", "-E", "UTF8", "-N")
        self.start()

    def _as_account(self) -> dict[str, object]:
        common: dict[str, object] = {
            "cwd": self.folder,
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)},
        }
        if self._account:
            common |= {
                "user": self._account.pw_uid,
                "group": self._account.pw_gid,
                "extra_groups": [],
            }
        return common

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            capture_output=True,
            text=True,
            **self._as_account(),  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start it; by the main thread, with whose end it ends."""
        # One login that asks for its password; everything else is let in.
        access = self.folder / "data/pg_hba.conf"
        access.write_text("local all locked scram-sha-256\nlocal all all trust\n")
        log = (self.folder / "log").open("wb")
        self._server = subprocess.Popen(
            [
                self._binaries / "postgres", "-D", "data", "-k", str(self.folder),
                "-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off",
                "-c", "max_connections=60", "-c", "deadlock_timeout=100ms",
            ],
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
            **self._as_account(),  # type: ignore[call-overload]
        )  # fmt: skip
        log.close()
        self._wait_ready()

    def _wait_ready(self) -> None:
        import psycopg

        deadline = time.monotonic() + _SERVER_SECONDS
        while True:
            try:
                psycopg.connect(host=str(self.folder), user="owner", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def execute(self, statement: str) -> None:
        """Run one statement as the owner."""
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user="owner", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def new_schema(self) -> str:
        """The name of a fresh schema: to us as good as a database, and far cheaper."""
        self._schemas += 1
        name = f"timings{self._schemas}"
        self.execute(f"CREATE SCHEMA {name}")
        return name

    def url(
        self, schema: str = "public", *, user: str = "owner", database: str = "postgres"
    ) -> str:
        """The URL by which `user` reaches it."""
        options = f"options=-csearch_path%3D{schema}"
        return f"postgresql://{user}@/{database}?host={self.folder}&{options}"

    def restart(self) -> None:
        """Stop at once, dropping every connection, and start again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Stop at once, dropping every connection."""
        self._server.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
        self._server.wait(_SERVER_SECONDS)

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder)


def _unprivileged() -> pwd.struct_passwd | None:
    """Who to be instead of root, which PostgreSQL refuses; None if we aren't root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL refuses root, and there is no user postgres or nobody to be")


def _die_with_parent() -> None:
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGQUIT)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server; skipped where none is installed."""
    pytest.importorskip("psycopg", reason="psycopg isn't installed (extra `postgres`)")
    found = sorted(BINARIES.glob("*/bin/initdb"), key=lambda p: int(p.parent.parent.name))
    if not found:
        pytest.skip(f"no PostgreSQL server in {BINARIES}/*/bin (apt-get install postgresql)")
    server = PostgresServer(found[-1].parent)
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of a PostgreSQL database that holds nothing yet."""
    return postgres_server.url(postgres_server.new_schema())


Run = Callable[[Callable[[], str]], str]


@pytest.fixture
def unprivileged() -> Run:
    """A function that runs another as a user whom permissions bind, and gives what it returns.

    Root becomes `nobody` in a forked child: a new interpreter couldn't be started, since root's
    own may lie where nobody else may look.
    """
    return _in_child_as_nobody if os.geteuid() == 0 else lambda work: work()


def _in_child_as_nobody(work: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            account = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
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


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that belongs to who `unprivileged` becomes."""
    folder = Path(tempfile.mkdtemp(prefix="db", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(folder)
