"""What is written, inside a transaction of the caller's: each record once, its parts first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from db import schema
from db.parts import Interned, PartIds, ids_of, insert_new
from db.rows import (
    Part,
    Row,
    escape,
    launch_row,
    measurement_row,
    outcome_row,
    parse,
    study_row,
)
from perfmodel.history import Launch, Study
from perfmodel.identity import canonical_json, content_address
from perfmodel.records import (
    Configuration,
    Device,
    Measurement,
    Software,
    Workload,
)

Encoded = Sequence[tuple[Measurement, Row]]


BATCH_MEASUREMENTS = 5000
BATCH_SAMPLES = 2_000_000
"""What one transaction of many measurements writes at most (the last one may hold more samples)."""


def batches(measurements: Iterable[Measurement]) -> Iterator[list[Measurement]]:
    """`measurements` in lists that fit into memory, and into a transaction others can wait for."""
    batch: list[Measurement] = []
    samples = 0
    for measurement in measurements:
        batch.append(measurement)
        samples += len(measurement.samples)
        if len(batch) >= BATCH_MEASUREMENTS or samples >= BATCH_SAMPLES:
            yield batch
            batch, samples = [], 0
    if batch:
        yield batch


def encoded(measurements: Iterable[Measurement]) -> Encoded:
    """Each distinct measurement with its row; before the transaction, since it may raise."""
    distinct = {measurement.address: measurement for measurement in measurements}
    return [(measurement, measurement_row(measurement)) for measurement in distinct.values()]


def record_measurements(
    connection: Connection, known: PartIds, rows: Encoded
) -> tuple[int, Interned]:
    """How many were new, and the ids to remember once it is committed."""
    parts: dict[type[Part], list[Part]] = {
        Device: [m.device for m, _ in rows],
        Software: [m.software for m, _ in rows],
        Workload: [m.workload for m, _ in rows],
        Configuration: [m.configuration for m, _ in rows],
    }
    ids = known.intern(connection, parts)
    complete = [
        row
        | {
            "device_id": ids[Device][measurement.device.address],
            "software_id": ids[Software][measurement.software.address],
            "workload_id": ids[Workload][measurement.workload.address],
            "configuration_id": ids[Configuration][measurement.configuration.address],
        }
        for measurement, row in rows
    ]
    return insert_new(connection, schema.measurements, complete), ids


def record_study(connection: Connection, known: PartIds, study: Study) -> tuple[int, Interned]:
    """1 if it was new, and the ids to remember once it is committed."""
    ids = known.intern(
        connection,
        {Device: [study.device], Software: [study.software], Workload: [study.workload]},
    )
    row = study_row(study, created_at=_now()) | {
        "device_id": ids[Device][study.device.address],
        "software_id": ids[Software][study.software.address],
        "workload_id": ids[Workload][study.workload.address],
    }
    return insert_new(connection, schema.studies, [row]), ids


def record_launch(connection: Connection, known: PartIds, launch: Launch) -> int:
    """How many of its two rows (start, outcome) were new; its study and measurement go with it."""
    record_study(connection, known, launch.study)
    study_id = _id(connection, schema.studies, launch.study.address)
    new = insert_new(connection, schema.launches, [launch_row(launch) | {"study_id": study_id}])
    outcome = outcome_row(launch)
    if outcome is None:
        return new
    outcome["launch_id"] = _id(connection, schema.launches, launch.address)
    outcome["achieved_id"] = None
    if launch.achieved is not None:
        record_measurements(connection, known, encoded([launch.achieved]))
        outcome["achieved_id"] = _id(connection, schema.measurements, launch.achieved.address)
    return new + insert_new(connection, schema.launch_outcomes, [outcome])


def model_row(content: bytes, *, kind: str, trained_on: Mapping[str, Any]) -> Row:
    """A model's row; its address is that of what it is, not of when it was recorded."""
    told = canonical_json(trained_on)
    identity = {
        "kind": kind,
        "trained_on": parse(told),
        "content": hashlib.sha256(content).hexdigest(),
    }
    return {
        "address": bytes.fromhex(content_address("model", identity)),
        "kind": escape(kind),
        "created_at": _now(),
        "trained_on": told,
        "size_bytes": len(content),
        "content": content,
    }


def _id(connection: Connection, table: Any, address: str) -> int:
    (found,) = ids_of(connection, table, [bytes.fromhex(address)]).values()
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
