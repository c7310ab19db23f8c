"""Measurements that a smooth surface can't follow."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.records import Device, Measurement, Software, Workload
from perfmodel.space import Parameter, Space


@pytest.fixture(scope="session")
def jumpy() -> tuple[Space, list[Measurement]]:
    """A space and 200 of its configurations, in which three parameters together make a jump."""
    rng = np.random.default_rng(0)
    names = "abcdef"
    space = Space(tuple(Parameter(n, (0, 1, 2, 3)) for n in names))
    parts = Device("cpu", "AMD", "a CPU", "zen4", 2**34, 2), Software(), Workload("step", "train")
    found = []
    for i in rng.choice(len(space), 200, replace=False):
        c = space.configurations[i]
        high = all(int(c[n]) > 1 for n in "abc") or all(int(c[n]) < 2 for n in "bcd")
        seconds = (5.0 if high else 1.0) * float(np.exp(rng.normal(0, 0.02)))
        found.append(Measurement(*parts, c, "2026-01-01T00:00:00+00:00", samples=(seconds,)))
    return space, found
