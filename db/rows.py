"""Records to rows and back: nothing lost, every value's type kept, the same content address."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from perfmodel.errors import RecordError
from perfmodel.history import Launch, Study
from perfmodel.identity import (
    canonical_json,
    content_address,
    pack_samples,
    unpack_samples,
)
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

Row = dict[str, Any]
"""A row to be written: column → value."""

Fetched = Mapping[Any, Any]
"""A row as the database gave it: column → value."""

Part = Device | Software | Workload | Configuration
_INTEGER_LIMIT = 2**63
_AWKWARD = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


def escape(text: str) -> str:
    """`text` as any database takes it: NUL, lone surrogates and the backslash as `\\uXXXX`.

    A process's last words and file names hold whatever they like. Equal texts stay equal and
    unequal ones unequal, so filters compare escaped values.
    """
    if not _AWKWARD.search(text):
        return text
    return _AWKWARD.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def unescape(text: str) -> str:
    """Inverse of `escape`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "\\" in text else text


def parse(text: str) -> Any:
    """JSON text of a row; RecordError when it is damaged."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise RecordError(f"a stored record isn't JSON: {text[:80]!r}") from error


def _integer(name: str, value: int | None) -> int | None:
    # A bool or a float would come back as another type, that is under another address.
    if value is not None and (type(value) is not int or abs(value) >= _INTEGER_LIMIT):
        raise RecordError(f"{name} is {value!r}; allowed: whole numbers below 2**63")
    return value


def part_row(part: Part) -> Row:
    """A part's row without its id."""
    row: Row = {"address": bytes.fromhex(part.address), "record": canonical_json(part.to_json())}
    if isinstance(part, Device):
        row |= {name: escape(getattr(part, name)) for name in ("kind", "vendor", "model")}
    elif isinstance(part, Workload):
        row |= {"kind": part.kind, "name": escape(part.name)}
    return row


def part_of(kind: type[Part], record: str) -> Part:
    """Inverse of `part_row`."""
    data = parse(record)
    return Configuration(data) if kind is Configuration else kind.from_json(data)  # type: ignore[union-attr]


def measurement_row(measurement: Measurement) -> Row:
    """A measurement's row without its id and the ids of its parts."""
    failure, memory = measurement.failure, measurement.memory
    row: Row = {
        "address": bytes.fromhex(measurement.address),
        "seconds": None if failure else measurement.seconds,
        "ranks": _integer("ranks", measurement.ranks),
        "measured_at": escape(measurement.measured_at),
        "failure_reason": str(failure.reason) if failure else None,
        "failure_detail": escape(failure.detail) if failure else None,
        "failure_output": escape(failure.output) if failure else None,
        "exit_code": _integer("exit_code", failure.exit_code) if failure else None,
        "conditions": measurement.conditions.canonical if measurement.conditions else None,
        "samples": pack_samples(measurement.samples),
    }
    for key in MEMORY_KEYS:
        row[key] = _integer(key, getattr(memory, key))
    return row


def measurement_of(row: Fetched, parts: Mapping[type[Part], Part]) -> Measurement:
    """Inverse of `measurement_row`, given the parts that its ids name."""
    failure = None
    if row["failure_reason"] is not None:
        try:
            reason = FailureReason(row["failure_reason"])
        except ValueError as error:
            raise RecordError(
                f"failure reason {row['failure_reason']!r}; allowed: {', '.join(FailureReason)}"
            ) from error
        failure = Failure(
            reason,
            detail=unescape(row["failure_detail"]),
            exit_code=row["exit_code"],
            output=unescape(row["failure_output"]),
        )
    return Measurement(
        device=parts[Device],  # type: ignore[arg-type]
        software=parts[Software],  # type: ignore[arg-type]
        workload=parts[Workload],  # type: ignore[arg-type]
        configuration=parts[Configuration],  # type: ignore[arg-type]
        measured_at=unescape(row["measured_at"]),
        samples=unpack_samples(row["samples"]),
        memory=Memory(*(row[key] for key in MEMORY_KEYS)),
        failure=failure,
        ranks=row["ranks"],
        conditions=Facts(parse(row["conditions"])) if row["conditions"] else Facts(),
    )


def study_row(study: Study, *, created_at: str) -> Row:
    """A study's row without its id and the ids of its parts."""
    return {
        "address": bytes.fromhex(study.address),
        "created_at": created_at,
        "record": canonical_json(study.to_json()),
    }


def launch_row(launch: Launch) -> Row:
    """The row of a launch's start without its id and its study's."""
    return {
        "address": bytes.fromhex(launch.address),
        "started_at": escape(launch.started_at),
        "record": canonical_json(launch.start_to_json()),
    }


def outcome_row(launch: Launch) -> Row | None:
    """The row of what became of a launch, without any id; None if nothing is known yet."""
    outcome = launch.outcome_to_json()
    if outcome is None:
        return None
    return {
        "address": bytes.fromhex(content_address("launch_outcome", outcome)),
        "record": canonical_json(outcome),
    }


def launch_of(
    record: str, study: Study, outcome: str | None, achieved: Measurement | None
) -> Launch:
    """Inverse of `launch_row` and `outcome_row`."""
    data, known = parse(record), parse(outcome) if outcome else {}
    try:
        return Launch(
            study=study,
            configuration=Configuration(data["configuration"]),
            command=tuple(data["command"]),
            started_at=data["started_at"],
            seconds=known.get("seconds"),
            exit_code=known.get("exit_code"),
            predicted=Prediction.from_json(data["predicted"]) if data["predicted"] else None,
            achieved=achieved,
        )
    except (KeyError, TypeError) as error:
        raise RecordError(f"not a launch: {error!r}") from error
