"""Measures what a device sustains under a software stack: matrix products and memory copies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collectors.isolate import Ended, IsolatedProcess, classify_failure
from collectors.machine import machine_conditions
from perfmodel.errors import MeasurementError
from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Software,
    Workload,
)

MATMUL, COPY = "matmul", "copy"
CPU_DTYPES = ("fp32", "bf16")
GPU_DTYPES = ("fp32", "tf32", "fp16", "bf16")

DEADLINE_SECONDS = 120.0
"""Longest the child may take beyond its share of time: torch's first import can be slow."""

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_CHILD = Path(__file__).with_name("calibration_child.py")


@dataclass(frozen=True)
class Calibration:
    """The fastest rates that measurements of matrix products and copies show.

    `flops_per_second` is per dtype. A copy of n bytes moves 2 n: it reads and writes.
    """

    flops_per_second: Mapping[str, float]
    bytes_per_second: float | None

    @classmethod
    def from_measurements(cls, measurements: Iterable[Measurement]) -> Calibration | None:
        """The best of the medians of one device's operators; None if they show no rate at all.

        Failures, and operators that aren't matrix products or copies, are passed by.
        """
        rates: dict[str, dict[str, float]] = {}
        for measurement in measurements:
            for dtype, rate in _rate(measurement):
                best = rates.setdefault(measurement.workload.name, {})
                best[dtype] = max(rate, best.get(dtype, 0.0))
        if not rates:
            return None
        return cls(
            flops_per_second=rates.get(MATMUL, {}),
            bytes_per_second=max(rates.get(COPY, {}).values(), default=None),
        )

    def __str__(self) -> str:
        flops = [f"{d} {v / 1e9:,.0f} GFLOP/s" for d, v in sorted(self.flops_per_second.items())]
        moved = self.bytes_per_second
        return ", ".join([*flops, *([f"memory {moved / 1e9:,.1f} GB/s"] if moved else [])])


def tried(measurements: Iterable[Measurement]) -> bool:
    """Whether any of these is a calibration's, failures included: it needn't be repeated."""
    operators = (m.workload for m in measurements if m.workload.kind == "operator")
    return any(workload.name in (MATMUL, COPY) for workload in operators)


def calibrate(
    device: Device,
    software: Software,
    *,
    interpreter: str | None = None,
    seconds: float = 4.0,
    deadline_seconds: float = DEADLINE_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> list[Measurement]:
    """Measure `device` with the torch of `interpreter` (default: ours) in about `seconds`.

    One measurement for each operator, dtype and, on a CPU, number of threads (all cores and 1).
    What can't be measured is a measurement with its failure: this raises nothing for it. A crash
    costs the operator that crashed, the others are taken up by another process.
    """
    tasks = _tasks(device)
    conditions = machine_conditions(device, environment=environment)
    answers: dict[int, dict[str, Any] | Failure] = {}
    while left := [i for i in range(len(tasks)) if i not in answers]:
        order = {"tasks": [tasks[i] for i in left], "seconds": seconds / len(tasks)}
        program = interpreter or sys.executable
        said, failure = _run(
            (program, str(_CHILD), json.dumps(order)),
            environment=os.environ if environment is None else environment,
            deadline_seconds=deadline_seconds + 2 * seconds,
        )
        answers.update((left[place], answer) for place, answer in _answers(said))
        begun = [line["begun"] for line in said if "begun" in line]
        hopeless = not begun or failure.reason is FailureReason.TIMEOUT
        for place in left if hopeless else [left[begun[-1]]]:
            answers.setdefault(place, failure)
    return [
        _measurement(device, software, conditions, task, answers[i]) for i, task in enumerate(tasks)
    ]


def _tasks(device: Device) -> list[dict[str, Any]]:
    """What to measure, as the child wants to be told."""
    gpu = device.kind == "gpu"
    threads_tried = [1] if gpu else sorted({device.units, 1}, reverse=True)
    operators = [(MATMUL, dtype) for dtype in (GPU_DTYPES if gpu else CPU_DTYPES)]
    operators.append((COPY, "fp32"))
    return [
        {
            "operator": operator,
            "dtype": dtype,
            "device": "cuda" if gpu else "cpu",
            "threads": threads,
        }
        for threads in threads_tried
        for operator, dtype in operators
    ]


def _run(
    command: Sequence[str], *, environment: Mapping[str, str], deadline_seconds: float
) -> tuple[list[dict[str, Any]], Failure]:
    """What the child said, and how it failed to say the rest (unused if it said everything)."""
    try:
        with IsolatedProcess.start(command, environment=environment) as process:
            late = process.wait(deadline_seconds) is None
            ended = process.end()
    except MeasurementError as error:
        return [], Failure(FailureReason.CRASH, error.message)
    failure = classify_failure(ended, deadline_seconds=deadline_seconds if late else None)
    if failure.reason is FailureReason.NO_STEPS:
        failure = Failure(FailureReason.CRASH, "ended without an answer", failure.exit_code)
    return list(_said(ended)), failure


def _said(ended: Ended) -> Iterator[dict[str, Any]]:
    """The child's lines among whatever else was printed."""
    for line in ended.output.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and message.keys() & {"ready", "begun", "done", "failed"}:
            yield message


def _answers(said: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any] | Failure]]:
    for line in said:
        if "done" in line:
            yield line["done"], line
        elif "failed" in line:
            yield line["failed"], Failure(FailureReason(line["reason"]), line["detail"])


def _measurement(
    device: Device,
    software: Software,
    conditions: Facts,
    task: Mapping[str, Any],
    answer: Mapping[str, Any] | Failure,
) -> Measurement:
    failure = answer if isinstance(answer, Failure) else None
    told = {} if isinstance(answer, Failure) else answer
    threads = {"threads": task["threads"]} if task["device"] == "cpu" else {}
    return Measurement(
        device=device,
        software=software,
        workload=Workload(
            "operator", task["operator"], Facts(told.get("parameters", {"dtype": task["dtype"]}))
        ),
        configuration=Configuration(threads),
        measured_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        samples=tuple(float(s) for s in told.get("samples", ())),
        failure=failure,
        conditions=conditions,
    )


def _rate(measurement: Measurement) -> Iterator[tuple[str, float]]:
    """The dtype and the FLOP/s or bytes/s of one measurement, if it is one of these operators."""
    if not measurement.ok or measurement.workload.kind != "operator":
        return
    shape = measurement.workload.parameters
    dtype = str(shape.get("dtype"))
    try:
        if measurement.workload.name == MATMUL:
            flops = 2.0 * float(shape["m"]) * float(shape["n"]) * float(shape["k"])
            yield dtype, flops / measurement.seconds
        elif measurement.workload.name == COPY:
            yield dtype, 2.0 * float(shape["elements"]) * _BYTES[dtype] / measurement.seconds
    except (KeyError, ValueError):
        return
