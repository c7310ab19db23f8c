"""The tables, private to this package: parts interned once, measurements pointing at them.

Core tables rather than mapped classes: rows never become objects of their own (the records of
`perfmodel` are those), and bulk inserts go to the driver as they are.

- Every record is kept once, under its UNIQUE content address (32 bytes rather than 64 characters:
  half the largest index).
- A part's `record` is its canonical JSON and the truth; the columns beside it serve look-ups.
- Samples are little-endian float64; `seconds` is their median, kept only so that an index can
  answer "the fastest of this workload on this device" without reading samples.
- A launch is a row when it starts; what became of it are later rows of `launch_outcomes`, the last
  one holding. Rows are never changed.
- Free text (names, details) goes through `rows.escape`, since PostgreSQL refuses NUL.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

VERSIONS = ("0001",)
"""Every schema version this program can open, oldest first; the last one is what it writes."""

PREFIX = "perfmodel_"
VERSION_TABLE = f"{PREFIX}alembic_version"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_Id = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *columns: Column[object] | Index) -> Table:
    # AUTOINCREMENT: an id is never used twice, so "all after id n" finds every later row even if
    # rows were deleted in between. An identity column asks no right on a sequence for an INSERT.
    return Table(
        PREFIX + name,
        metadata,
        Column("id", _Id, Identity(), primary_key=True),
        Column("address", LargeBinary(32), nullable=False, unique=True),
        *columns,
        sqlite_autoincrement=True,
    )


def _reference(name: str, table: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, _Id, ForeignKey(f"{PREFIX}{table}.id"), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, Text, nullable=nullable)


devices = _table("devices", _text("kind"), _text("vendor"), _text("model"), _text("record"))
software = _table("software", _text("record"))
workloads = _table(
    "workloads", _text("kind"), _text("name"), _text("record"), Index(None, "kind", "name")
)
configurations = _table("configurations", _text("record"))
measurements = _table(
    "measurements",
    _reference("device_id", "devices"),
    _reference("software_id", "software"),
    _reference("workload_id", "workloads"),
    _reference("configuration_id", "configurations"),
    Column("seconds", Float(53)),
    Column("ranks", Integer, nullable=False),
    Column("allocated_bytes", BigInteger),
    Column("reserved_bytes", BigInteger),
    Column("device_bytes", BigInteger),
    Column("resident_bytes", BigInteger),
    _text("measured_at"),
    _text("failure_reason", nullable=True),
    _text("failure_detail", nullable=True),
    _text("failure_output", nullable=True),
    Column("exit_code", BigInteger),
    _text("conditions", nullable=True),
    Column("samples", LargeBinary, nullable=False),
    Index(None, "workload_id", "device_id", "seconds"),
    # Not software_id alone: SQLite would take that one for a workload's measurements under a
    # software, and read everything one user ever measured.
    Index(None, "software_id", "workload_id", "device_id"),
    Index(None, "configuration_id"),
)
studies = _table(
    "studies",
    _reference("device_id", "devices"),
    _reference("software_id", "software"),
    _reference("workload_id", "workloads"),
    _text("created_at"),
    _text("record"),
)
launches = _table(
    "launches",
    _reference("study_id", "studies"),
    _text("started_at"),
    _text("record"),
    Index(None, "study_id"),
    Index(None, "started_at"),
)
launch_outcomes = _table(
    "launch_outcomes",
    _reference("launch_id", "launches"),
    _reference("achieved_id", "measurements", nullable=True),
    _text("record"),
    Index(None, "launch_id"),
    Index(None, "achieved_id"),
)
models = _table(
    "models",
    _text("kind"),
    _text("created_at"),
    _text("trained_on"),
    Column("size_bytes", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
