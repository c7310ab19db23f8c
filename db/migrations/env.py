"""Alembic's environment: runs inside the transaction that `db.migrate` hands over."""

from alembic import context

from db.schema import PREFIX, VERSION_TABLE, metadata


def is_ours(name: str | None, type_: str, parent_names: object) -> bool:
    """Whether autogenerate may look at it: Optuna's tables, and a user's own, are none of ours."""
    return type_ != "table" or (name or "").startswith(PREFIX)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    transactional_ddl=True,  # SQLite's is, since our connections begin transactions themselves
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
