"""What a driver's error means for the user: one StorageError saying what, where, what next."""

from __future__ import annotations

import re
import sqlite3
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from db.location import place
from perfmodel.errors import StorageError

ELSEWHERE = "name another database with --db or TUNE_DB"

_SQLITE = {
    "SQLITE_NOTADB": "isn't an SQLite database; {elsewhere}",
    "SQLITE_CORRUPT": "is damaged ({reason}); restore a copy, or {elsewhere}",
    "SQLITE_READONLY": "can't be written ({reason}): you need the right to write to the file and "
    "its folder; or {elsewhere}",
    "SQLITE_CANTOPEN": "can't be opened ({reason}): you need the right to write to the file and "
    "its folder; or {elsewhere}",
    "SQLITE_PERM": "can't be opened ({reason}); {elsewhere}",
    "SQLITE_AUTH": "can't be opened ({reason}); {elsewhere}",
    "SQLITE_FULL": "can't be written: the disk is full. Free some space, or {elsewhere}",
    "SQLITE_IOERR": "can't be written or read ({reason}): the disk is full, a limit on file size "
    "is reached, or the disk is failing. What was recorded before is kept. Free some space, or "
    "{elsewhere}",
    "SQLITE_BUSY": "is held by another program (waited {seconds:g} s); end that program, or "
    "{elsewhere}",
    "SQLITE_LOCKED": "is held by another program (waited {seconds:g} s); end that program, or "
    "{elsewhere}",
    "SQLITE_TOOBIG": "can't hold this record ({reason})",
}

_POSTGRESQL = {
    "28": "refuses the login ({reason}); check the user and password in the URL or PGPASSFILE",
    "3D000": "doesn't exist on that server ({reason}); create it with createdb, or {elsewhere}",
    "42501": "doesn't let you do that ({reason}); ask its owner for the right, or {elsewhere}",
    "25006": "is open for reading only ({reason}); {elsewhere}",
    "53100": "can't be written: the server's disk is full ({reason})",
    "53300": "has no connection left ({reason}); try again later",
    "57P": "was shut down ({reason}); try again when the server is back",
}

_UNREACHABLE = (
    "can't be reached ({reason}); check host and port and that the server runs, or {elsewhere}"
)
_AWAY_SQLSTATES = ("08", "57P01", "57P02", "57P03")
_SHORT_SECRET = 5
_TRANSIENT_SQLSTATES = ("40001", "40P01", "55P03")


def is_transient(error: BaseException | None) -> bool:
    """Whether the same transaction may well succeed when run again at once."""
    if error is None:
        return False
    cause = _driver_error(error)
    if isinstance(cause, sqlite3.Error):
        return _sqlite_name(cause).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return _sqlstate(cause) in _TRANSIENT_SQLSTATES


def is_unreachable(error: BaseException) -> bool:
    """Whether a server went away, was shut down or is starting: it may be back in a moment."""
    cause = _driver_error(error)
    state = _sqlstate(cause)
    if state:
        return state.startswith(_AWAY_SQLSTATES)
    # What libpq says while connecting has no state.
    return isinstance(error, OperationalError) and _meaning(cause) == _UNREACHABLE


def translated(error: Exception, url: URL, *, waited_seconds: float = 0.0) -> StorageError:
    """The StorageError for an error of a driver, SQLAlchemy or Optuna; never shows a secret."""
    cause = _driver_error(error)
    # Secrets first: they may hold several spaces.
    reason = " ".join(_without_secrets(str(cause), url).split())
    meaning = _meaning(cause).format(reason=reason, seconds=waited_seconds, elsewhere=ELSEWHERE)
    return StorageError(f"database {place(url)} {meaning}", next_command="doctor")


def _driver_error(error: BaseException) -> BaseException:
    """The driver's own error underneath wrappers that tell less."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DBAPIError) and seen.orig is not None:
            return seen.orig
        if isinstance(seen, sqlite3.Error):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def _meaning(cause: BaseException) -> str:
    if isinstance(cause, sqlite3.Error):
        name = _sqlite_name(cause)
        primary = "_".join(name.split("_")[:2])
        return _SQLITE.get(primary, "failed: {reason}")
    if isinstance(cause, SQLAlchemyError):
        return "failed: {reason}"
    state = _sqlstate(cause)
    for known in (state, state[:3], state[:2]):
        if known in _POSTGRESQL:
            return _POSTGRESQL[known]
    if not state:
        return _without_state(str(cause))
    return "failed: {reason}"


def _without_state(text: str) -> str:
    """libpq gives no SQLSTATE for what happens while connecting: its words tell the cases apart."""
    lowered = text.lower()
    if "password" in lowered or "authentication" in lowered or "no pg_hba.conf" in lowered:
        return _POSTGRESQL["28"]
    if "database" in lowered and "does not exist" in lowered:
        return _POSTGRESQL["3D000"]
    if "role" in lowered and "does not exist" in lowered:
        return _POSTGRESQL["28"]
    return _UNREACHABLE


def _sqlite_name(cause: sqlite3.Error) -> str:
    # What Python's module raises by itself ("Cannot operate on a closed database") has none.
    return str(getattr(cause, "sqlite_errorname", ""))


def _sqlstate(cause: BaseException | None) -> str:
    return str(getattr(cause, "sqlstate", None) or "")


def _without_secrets(text: str, url: URL) -> str:
    secrets = [str(url.password)] if url.password else []
    secrets += [str(v) for k, v in url.query.items() if "pass" in k.lower() and v]
    for secret in secrets:
        for form in {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}:
            # A short one is part of many words: it is hidden only where it stands as a value.
            shape = "{}" if len(form) > _SHORT_SECRET else "(?<=[:='\"]){}(?=[@&;,'\"\\s]|$)"
            text = re.sub(shape.format(re.escape(form)), "***", text)
    return text
