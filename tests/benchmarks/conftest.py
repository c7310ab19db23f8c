"""A small sweep with a known best configuration, as `benchmarks.main_job` records them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.job.recording import ROUND, SUFFIX, Sweep, save
from perfmodel.history import Study
from perfmodel.records import Configuration, Device, Facts, Measurement, Software, Workload
from perfmodel.space import Parameter, Space

SPACE = Space(
    (
        Parameter("batch_size", (4, 8, 16, 32, 64)),
        Parameter("threads", (1, 2)),
        Parameter("precision", ("fp32", "bf16")),
    ),
    ("batch_size*threads<=64",),
)
BEST = Configuration(batch_size=32, threads=2, precision="bf16")


def seconds_of(configuration: Configuration) -> float:
    """Affine in the batch, dearer beyond 32; 2 threads and bf16 help."""
    batch = float(configuration["batch_size"])
    each = 1e-3 if batch <= 32 else 1.5e-3
    speed = (1.6 if configuration["threads"] == 2 else 1.0) * (
        1.2 if configuration["precision"] == "bf16" else 1.0
    )
    return 4e-3 + each * batch / speed


@pytest.fixture
def sweep() -> Sweep:
    """Three rounds with 1 % of noise."""
    rng = np.random.default_rng(0)
    study = Study(
        device=Device("cpu", "AMD", "a CPU", "zen4", 2**34, 2),
        software=Software(Facts(torch="2.13.0")),
        workload=Workload("step", "train", Facts(command="python train.py")),
        space=SPACE,
        objective="samples_per_second",
        samples="batch_size",
    )
    measurements = [
        Measurement(
            device=study.device,
            software=study.software,
            workload=study.workload,
            configuration=configuration,
            measured_at=f"2026-01-0{number + 1}T00:00:{place:02d}.000000+00:00",
            samples=tuple(
                float(s)
                for s in seconds_of(configuration)
                * np.exp(rng.normal(0, 0.01, 15) + rng.normal(0, 0.005))
            ),
            conditions=Facts({ROUND: number, "elapsed_seconds": 3.0}),
        )
        for number in range(3)
        for place, configuration in enumerate(SPACE)
    ]
    default = Configuration(batch_size=8, threads=1, precision="fp32")
    return Sweep(study, default, tuple(measurements))


@pytest.fixture
def sweeps(sweep: Sweep, tmp_path: Path) -> Path:
    """A folder that holds it as `toy`."""
    folder = tmp_path / "sweeps"
    folder.mkdir()
    save(sweep, folder / f"toy{SUFFIX}")
    return folder
