"""Every error a user can meet, under one root; each becomes one line and an exit code."""

from __future__ import annotations


class PerfModelError(Exception):
    """Root of our errors.

    `message` names the offending value and what is allowed. `next_command` holds the arguments of
    the command that helps (without the program's name, which the command line adds, since the
    program may have been started as `tune`, `perfmodel` or `python -m tuner`). `context` is shown
    before it, such as the last lines that a user's script printed.
    """

    exit_code = 1

    def __init__(self, message: str, *, next_command: str = "", context: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_command = next_command
        self.context = context


class UsageError(PerfModelError):
    """The command line or an argument is wrong: nothing was started."""

    exit_code = 2


class ExpressionError(UsageError):
    """An expression is malformed, too large, or names something unknown."""


class SpaceError(UsageError):
    """A space is empty, contradictory or too large."""


class RecordError(PerfModelError):
    """A stored or imported record doesn't follow its format."""


class ArtifactError(PerfModelError):
    """A model file is damaged, of another format, or fails its checksum."""


class StorageError(PerfModelError):
    """The database can't be opened, read or written."""


class SchemaVersionError(StorageError):
    """The database's schema is newer or older than this program's."""


class MeasurementError(PerfModelError):
    """A measurement could not even be attempted (no such interpreter, no socket)."""


class StudyError(PerfModelError):
    """A study ended without a configuration that works."""


class Interrupted(PerfModelError):
    """Ctrl-C or SIGTERM: what was measured is kept."""

    exit_code = 130
