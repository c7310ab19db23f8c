"""The same facts for a program: one JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perfmodel.history import Launch
from perfmodel.records import Measurement
from tuner.finals import CONFIDENCE, Gain
from tuner.objective import Objective
from tuner.study import Outcome


def finite(value: float) -> float | None:
    """NaN and infinity have no JSON: None."""
    return value if math.isfinite(value) else None


def outcome_document(
    outcome: Outcome, objective: Objective, *, assumed: Sequence[str]
) -> dict[str, Any]:
    """Everything `tune run` found; times in seconds, sizes in bytes, gains as ratios."""
    return {
        "study": {"address": outcome.study.address, **outcome.study.to_json()},
        "default": outcome.default.to_json(),
        "assumed": list(assumed),
        "winner": outcome.winner.to_json(),
        "gain": _gain(outcome.gain) if outcome.gain else None,
        "gains": [{"configuration": g.configuration.to_json(), **_gain(g)} for g in outcome.gains],
        "compared": outcome.compared,
        "predicted": outcome.predicted.to_json() if outcome.predicted else None,
        "expected": outcome.expected.to_json() if outcome.expected else None,
        "stopped": outcome.stopped,
        "already_known": outcome.already_known,
        "measured_now": outcome.measured_now,
        "trials": [_trial(m, objective) for m in outcome.measurements],
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "ratio": finite(gain.gain),
        "low": finite(gain.low),
        "high": finite(gain.high),
        "confidence": CONFIDENCE,
        "rounds": gain.rounds,
    }


def _trial(measurement: Measurement, objective: Objective) -> dict[str, Any]:
    return {
        "address": measurement.address,
        "configuration": measurement.configuration.to_json(),
        "measured_at": measurement.measured_at,
        "seconds": finite(measurement.seconds),
        "spread": finite(measurement.spread),
        "samples": len(measurement.samples),
        "samples_per_second": finite(objective.throughput(measurement)),
        "memory": measurement.memory.to_json(),
        "ranks": measurement.ranks,
        "failure": measurement.failure.to_json() if measurement.failure else None,
        "conditions": measurement.conditions.to_json(),
    }


def launch_document(launch: Launch, objective: Objective) -> dict[str, Any]:
    """One launch with what it reached."""
    achieved = launch.achieved
    return {
        "address": launch.address,
        **launch.to_json(),
        "workload": launch.study.workload.to_json(),
        "device": launch.study.device.model,
        "achieved": _trial(achieved, objective) if achieved else None,
    }
