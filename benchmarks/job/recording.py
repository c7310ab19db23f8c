"""A recorded sweep: every configuration of a space measured in interleaved rounds, raw."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError, RecordError
from perfmodel.history import Study
from perfmodel.records import Configuration, Measurement
from tuner.objective import Objective

FORMAT = 1
SUFFIX = ".json.gz"
SHARED = ("device", "software", "workload")
"""Parts that all measurements of a sweep have in common; written once."""

ROUND = "sweep_round"


@dataclass(frozen=True)
class Sweep:
    """The study a sweep answers, its default, and the measurements by round and configuration."""

    study: Study
    default: Configuration
    measurements: tuple[Measurement, ...] = field(repr=False)

    @property
    def objective(self) -> Objective:
        """What the study asks for."""
        return Objective.of(self.study)

    @cached_property
    def table(self) -> dict[tuple[int, Configuration], Measurement]:
        """The measurements by round and configuration."""
        return {(int(m.conditions[ROUND]), m.configuration): m for m in self.measurements}

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that hold every configuration of the space."""
        numbers = sorted({number for number, _ in self.table})
        return tuple(n for n in numbers if all((n, c) in self.table for c in self.study.space))

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Log scores, a row per complete round, a column per configuration; -inf for a failure."""
        score = self.objective.score
        return np.array(
            [[score(self.table[n, c]) for c in self.study.space] for n in self.rounds], dtype=float
        )

    @cached_property
    def truth(self) -> NDArray[np.float64]:
        """Each configuration's log score: the median over the rounds."""
        found: NDArray[np.float64] = np.median(self.scores, axis=0)
        return found

    @property
    def best(self) -> Configuration:
        """The best configuration of the whole space."""
        return self.study.space.configurations[int(np.argmax(self.truth))]

    @cached_property
    def noise(self) -> float:
        """Robust standard deviation of a log score between rounds; NaN with a single round.

        What all configurations of a round have in common (a faster minute) isn't noise.
        """
        if len(self.rounds) < 2:
            return float("nan")
        worked = self.scores[:, np.isfinite(self.scores).all(axis=0)]
        if worked.size == 0:
            return float("nan")
        residual = worked - np.median(worked, axis=1, keepdims=True)
        residual = residual - residual.mean(axis=0)
        freedom = (len(self.rounds) - 1) / len(self.rounds)
        return float(1.4826 * np.median(np.abs(residual)) / np.sqrt(freedom))

    @property
    def tolerance(self) -> float:
        """Half width (95 %) of a difference of two configurations' truths; 0 if not known."""
        half = 1.96 * self.noise * float(np.sqrt(2 / max(1, len(self.rounds))))
        return half if np.isfinite(half) else 0.0

    def regret(self, configuration: Configuration) -> float:
        """How much slower than the best: objective of the best / its own - 1."""
        gap = self.truth.max() - self.truth[self.study.space.index(configuration)]
        return float(np.expm1(gap))

    def rank(self, configuration: Configuration) -> int:
        """1 for the best."""
        own = self.truth[self.study.space.index(configuration)]
        return int((self.truth > own).sum()) + 1


def save(sweep: Sweep, path: Path) -> None:
    """Write the sweep whole, or leave the file as it was."""
    document = {
        "format": FORMAT,
        "study": sweep.study.to_json(),
        "default": sweep.default.to_json(),
        "measurements": [own_parts(m) for m in sweep.measurements],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    partial = path.with_suffix(".writing")
    with partial.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream:
        stream.write(text)
    partial.replace(path)


def own_parts(measurement: Measurement) -> dict[str, Any]:
    """A measurement as JSON without what the whole sweep shares; four digits are enough."""
    own = {k: v for k, v in measurement.to_json().items() if k not in SHARED}
    if measurement.failure is not None:
        # What a script printed names folders of the machine that nobody else has.
        own["failure"] = replace(measurement.failure, output="").to_json()
    return {**own, "samples": [float(f"{s:.4g}") for s in measurement.samples]}


def with_shared(own: Mapping[str, Any], study: Study) -> Measurement:
    """Inverse of `own_parts`."""
    shared = {part: getattr(study, part).to_json() for part in SHARED}
    return Measurement.from_json({**own, **shared})


def load(path: Path) -> Sweep:
    """Read a sweep; RecordError when the file isn't one."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            document = json.load(stream)
        if document["format"] != FORMAT:
            raise RecordError(f"{path.name} has format {document['format']!r}; allowed: {FORMAT}")
        study = Study.from_json(document["study"])
        measurements = tuple(with_shared(own, study) for own in document["measurements"])
        return Sweep(study, Configuration(document["default"]), measurements)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RecordError(f"{path.name} isn't a sweep: {error!r}") from error
    except PerfModelError as error:
        raise RecordError(f"{path.name} isn't a sweep: {error}") from error


def extended(sweep: Sweep, more: tuple[Measurement, ...]) -> Sweep:
    """The sweep with further measurements."""
    return replace(sweep, measurements=(*sweep.measurements, *more))
