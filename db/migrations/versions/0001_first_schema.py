"""First schema: parts, measurements, studies, launches, models.

Written out rather than taken from `db.schema`: a migration says for ever what it said once.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _create(name: str, *columns: sa.Column[Any] | sa.Constraint) -> None:
    table = f"perfmodel_{name}"
    op.create_table(
        table,
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("address", sa.LargeBinary(32), nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.UniqueConstraint("address", name=f"uq_{table}_address"),
        sqlite_autoincrement=True,
    )


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _reference(
    owner: str, name: str, table: str, *, nullable: bool = False
) -> tuple[sa.Column[Any], sa.Constraint]:
    return (
        sa.Column(name, _ID, nullable=nullable),
        sa.ForeignKeyConstraint(
            [name], [f"perfmodel_{table}.id"], name=f"fk_perfmodel_{owner}_{name}"
        ),
    )


def _index(owner: str, *columns: str) -> None:
    table = f"perfmodel_{owner}"
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def upgrade() -> None:
    """Create every table of schema 0001."""
    _create("devices", _text("kind"), _text("vendor"), _text("model"), _text("record"))
    _create("software", _text("record"))
    _create("workloads", _text("kind"), _text("name"), _text("record"))
    _index("workloads", "kind", "name")
    _create("configurations", _text("record"))
    _create_measurements()
    _create(
        "studies",
        *_reference("studies", "device_id", "devices"),
        *_reference("studies", "software_id", "software"),
        *_reference("studies", "workload_id", "workloads"),
        _text("created_at"),
        _text("record"),
    )
    _create_launches()
    _create(
        "models",
        _text("kind"),
        _text("created_at"),
        _text("trained_on"),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )


def _create_measurements() -> None:
    _create(
        "measurements",
        *_reference("measurements", "device_id", "devices"),
        *_reference("measurements", "software_id", "software"),
        *_reference("measurements", "workload_id", "workloads"),
        *_reference("measurements", "configuration_id", "configurations"),
        sa.Column("seconds", sa.Float(53)),
        sa.Column("ranks", sa.Integer, nullable=False),
        sa.Column("allocated_bytes", sa.BigInteger),
        sa.Column("reserved_bytes", sa.BigInteger),
        sa.Column("device_bytes", sa.BigInteger),
        sa.Column("resident_bytes", sa.BigInteger),
        _text("measured_at"),
        _text("failure_reason", nullable=True),
        _text("failure_detail", nullable=True),
        _text("failure_output", nullable=True),
        sa.Column("exit_code", sa.BigInteger),
        _text("conditions", nullable=True),
        sa.Column("samples", sa.LargeBinary, nullable=False),
    )
    _index("measurements", "workload_id", "device_id", "seconds")
    _index("measurements", "software_id", "workload_id", "device_id")
    _index("measurements", "configuration_id")


def _create_launches() -> None:
    _create(
        "launches",
        *_reference("launches", "study_id", "studies"),
        _text("started_at"),
        _text("record"),
    )
    _create(
        "launch_outcomes",
        *_reference("launch_outcomes", "launch_id", "launches"),
        *_reference("launch_outcomes", "achieved_id", "measurements", nullable=True),
        _text("record"),
    )
    _index("launches", "study_id")
    _index("launches", "started_at")
    _index("launch_outcomes", "launch_id")
    _index("launch_outcomes", "achieved_id")
