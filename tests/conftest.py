"""What the tests of several packages share: a training script to replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Memory,
    Software,
    Workload,
)
from perfmodel.space import Parameter, Space

DEVICE = Device("cpu", "AMD", "a CPU", "zen4", 2**34, 2)
WORKLOAD = Workload("step", "train", Facts(command="python train.py"))


@dataclass
class Script:
    """A made-up training script: what it takes is known exactly, measurements of it are noisy.

    Affine in the batch with effects on both terms, a cache cliff, interactions (threads and
    precision with the batch, workers with threads), a memory limit. `seed` varies all of it.
    """

    seed: int
    noise: float = 0.02
    limit: float = math.inf
    slower: float = 1.0

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed).uniform
        self.fixed, self.each = draw(2e-3, 2e-2), draw(2e-4, 1e-3)
        self.speedup, self.bf16, self.loading = draw(1.2, 1.9), draw(0.6, 1.5), draw(0.05, 0.6)
        self.cliff, self.cliff_at = draw(0.1, 0.6), draw(4.0, 8.0)
        self.space = Space(
            (
                Parameter("batch_size", (4, 8, 16, 32, 64, 128, 256, 512)),
                Parameter("threads", (1, 2)),
                Parameter("precision", ("fp32", "bf16")),
                Parameter("accumulation", (1, 2, 4)),
                Parameter("workers", (0, 1, 2)),
            )
        )
        self.default = Configuration(
            batch_size=32, threads=1, precision="fp32", accumulation=1, workers=0
        )
        self._noise = np.random.default_rng(self.seed + 1000)

    def bytes(self, c: Configuration) -> float:
        """Peak memory."""
        return 3e8 + 1e6 * float(c["batch_size"]) * (0.6 if c["precision"] == "bf16" else 1.0)

    def seconds(self, c: Configuration) -> float:
        """True seconds of a step."""
        batch, threads, workers = float(c["batch_size"]), int(c["threads"]), int(c["workers"])
        each, fixed = self.each, self.fixed
        if c["precision"] == "bf16":
            each, fixed = each * self.bf16, fixed * 1.2
        if threads == 2:
            each /= 1 + (self.speedup - 1) * batch / (batch + 8)
            fixed *= 1.1
        each *= 1 + self.cliff / (1 + math.exp(-(math.log2(batch) - self.cliff_at) / 0.4))
        compute, loading = fixed + each * batch, self.loading * self.each * batch
        if workers == 0:
            micro = compute + loading
        else:
            contention = 1 + 0.1 * workers * threads * min(1.0, loading / compute)
            micro = max(compute * contention, loading / workers) + 0.05 * self.fixed * workers
        return self.slower * (0.3 * self.fixed + float(c["accumulation"]) * micro)

    def throughput(self, c: Configuration) -> float:
        """True samples per second; 0 where it doesn't fit into memory."""
        if self.bytes(c) > self.limit:
            return 0.0
        return float(c["batch_size"]) * float(c["accumulation"]) / self.seconds(c)

    def best(self) -> float:
        """Samples per second of the optimum."""
        return max(self.throughput(c) for c in self.space)

    def measure(self, c: Configuration, *, torch: str = "2.13.0") -> Measurement:
        """One noisy measurement, or running out of memory."""
        at = f"2026-01-01T00:00:00.{self._noise.integers(10**6):06d}+00:00"
        software = Software(Facts(torch=torch))
        if self.bytes(c) > self.limit:
            failure = Failure(FailureReason.OUT_OF_MEMORY)
            return Measurement(DEVICE, software, WORKLOAD, c, at, failure=failure)
        seconds = self.seconds(c) * math.exp(self.noise * self._noise.normal())
        memory = Memory(resident_bytes=int(self.bytes(c)))
        return Measurement(DEVICE, software, WORKLOAD, c, at, samples=(seconds,), memory=memory)

    def sample(self, count: int, *, seed: int = 0) -> list[Configuration]:
        """Distinct random configurations."""
        chosen = np.random.default_rng(seed).choice(len(self.space), count, replace=False)
        return [self.space.configurations[i] for i in chosen]


@pytest.fixture
def script() -> Callable[..., Script]:
    """Makes a script: `script(seed, noise=..., limit=...)`."""
    return Script
