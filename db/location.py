"""Where the database is: the URL a user means, checked, and shown without its secrets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

ENVIRONMENT = "TUNE_DB"
ALLOWED = "allowed: a file's path, sqlite:///PATH, or postgresql://USER@HOST/DATABASE"
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE = ("sqlite", "sqlite+pysqlite")
_SECRET = re.compile(r"(?i)([?&](?:ssl)?(?:password|passphrase|secret|token)=)[^&]*")
_NO_SCHEME = re.compile(r"(?s)^([^/:@]*):.*@(?=.)")
_USERINFO = re.compile(r"(?s)(://[^:/@?]*):.*@")


def default_path() -> Path:
    """The file in the user's data folder that is used when nothing else is named."""
    import platformdirs

    return platformdirs.user_data_path("perfmodel") / "timings.db"


def database_url(text: str | None = None) -> str:
    """The URL that `text` (a URL or a path), else TUNE_DB, else the user's data folder names.

    Secrets in it are kept: show it through `shown_url`. UsageError when it is no URL of a kind we
    know.
    """
    return located(text).render_as_string(hide_password=False)


def located(text: str | None = None) -> URL:
    """`database_url(text)`, parsed."""
    return parse_url(text or os.environ.get(ENVIRONMENT) or str(default_path()))


def parse_url(text: str) -> URL:
    """`text` as a checked URL: driver filled in, SQLite paths absolute; UsageError otherwise."""
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError

    if text == ":memory:":
        return URL.create("sqlite")
    if "://" not in text:
        if _NO_SCHEME.match(text):
            shown = _NO_SCHEME.sub(r"\1:***@", text)
            raise UsageError(
                f"database {shown!r} names a user and a password, but no kind of server; {ALLOWED} "
                "(./PATH for a file of such a name)"
            )
        return URL.create("sqlite", database=_absolute(text))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"database URL {shown_url(text)!r} can't be parsed; {ALLOWED}") from error
    if url.drivername in _SQLITE:
        return _sqlite_url(url)
    if url.drivername in _POSTGRESQL:
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"database URL of kind {url.drivername!r}; {ALLOWED}")


def _sqlite_url(url: URL) -> URL:
    if url.host or url.username:
        raise UsageError(
            f"database URL {shown_url(url)!r} names a host; a file needs three slashes "
            f"(sqlite:///PATH), four for an absolute path. {ALLOWED}"
        )
    unknown = set(url.query) - {"timeout"}
    if unknown:
        raise UsageError(
            f"database URL option {sorted(unknown)[0]!r}; allowed for SQLite: timeout (seconds)"
        )
    busy_seconds(url)
    if url.database in (None, "", ":memory:"):
        return url.set(drivername="sqlite", database=None)
    return url.set(drivername="sqlite", database=_absolute(str(url.database)))


def busy_seconds(url: URL, default: float = 60.0) -> float:
    """How long another writer of an SQLite file is waited for: `?timeout=`, or `default`."""
    given = url.query.get("timeout")
    if given is None:
        return default
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise UsageError(f"database URL option timeout={given!r}; allowed: 0 to 3600 seconds")
    return seconds


def _absolute(path: str) -> str:
    if "\0" in path:
        raise UsageError(f"database path {path!r} holds a NUL character; {ALLOWED}")
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise UsageError(f"database path {path!r}: no such user; {ALLOWED}") from error


def shown_url(url: URL | str) -> str:
    """`url` for eyes: every password replaced by `***`, the rest as given."""
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    return _SECRET.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def place(url: URL) -> str:
    """The database in a message: an SQLite file's path, else the URL without secrets."""
    if url.get_backend_name() == "sqlite":
        return str(url.database or ":memory:")
    return shown_url(url.set(drivername="postgresql"))
