"""Write the golden database of the newest schema: `python tests/golden/create.py`.

Run it once for each new schema version, with the release that introduces it, and never again for
an older one: what these files hold is what that version really wrote. `schema_NNNN.json` says
what the database must give back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from db.schema import VERSIONS
from db.store import Store
from perfmodel.history import Launch, Study
from perfmodel.records import (
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
from perfmodel.space import Parameter, Space

GOLDEN = Path(__file__).parent
GPU = Device("gpu", "NVIDIA", "H100 SXM", "Hopper", 85_899_345_920, 132)
CPU = Device("cpu", "AMD", "EPYC 9654", "Zen 4", 405_000_000_000, 96)
SOFTWARE = Software(Facts(torch="2.13.0", python="3.11.7", cuda="12.8", host_cores=96))
STEP = Workload("step", "train_gpt", Facts(command="python train_gpt.py --batch-size {batch_size}"))
MATMUL = Workload("operator", "matmul", Facts(m=1024, n=1024, k=4096, dtype="bf16"))
SPACE = Space(
    (
        Parameter("batch_size", (4, 8, 16)),
        Parameter("precision", ("fp32", "bf16")),
        Parameter("compile", (False, True)),
        Parameter("rate", (0.5, 1.0)),
    ),
    ("batch_size * rate <= 16",),
)
STUDY = Study(GPU, SOFTWARE, STEP, SPACE, "samples_per_second", "batch_size", samples_global=True)


def _measurement(n: int, **changes: object) -> Measurement:
    fields: dict[str, object] = {
        "device": GPU,
        "software": SOFTWARE,
        "workload": STEP,
        "configuration": SPACE.configurations[n % len(SPACE)],
        "measured_at": f"2026-01-01T00:00:{n:02d}.000000+00:00",
        "samples": tuple(0.1 + n / 7 + i / 1000 for i in range(20)),
        "memory": Memory(2**30 + n, 2**31 + n, 2**32 + n, 2**29 + n),
        "conditions": Facts(load1=0.25, round=n, clock_mhz=1980),
    }
    return Measurement(**{**fields, **changes})  # type: ignore[arg-type]


def measurements() -> list[Measurement]:
    """Times, every kind of failure, awkward texts, several devices and workloads."""
    times = [_measurement(n) for n in range(6)]
    failures = [
        _measurement(
            10 + n,
            samples=(),
            memory=Memory(),
            failure=Failure(
                reason,
                f"detail: é \0 \\ {reason}",
                exit_code=-n or None,
                output="last words\n\udcff\U0001f600\0\t\\ ".ljust(100 * n, "."),
            ),
        )
        for n, reason in enumerate(FailureReason)
    ]
    others = [
        _measurement(20, device=CPU, workload=MATMUL, configuration=Configuration(threads=8)),
        _measurement(21, conditions=Facts(), ranks=8, software=Software()),
    ]
    return times + failures + others


def launches() -> list[Launch]:
    """Every state in the order recorded: one that reached something, one that didn't, one lost."""
    command = ("python", "train_gpt.py", "--batch-size", "8")
    predicted = Prediction(0.1, 0.09, 0.11, peak_bytes=2e9, extrapolating=True)
    started = Launch(
        STUDY, SPACE.configurations[0], command, "2026-01-02T00:00:00+00:00", predicted=predicted
    )
    reached = replace(started, achieved=_measurement(30))
    ended = replace(reached, seconds=61.5, exit_code=0)
    failed = Launch(STUDY, Configuration(), command, "2026-01-03T00:00:00+00:00", 0.5, 1)
    lost = Launch(STUDY, Configuration(), command, "2026-01-04T00:00:00+00:00")
    return [started, reached, ended, failed, lost]


MODEL = bytes(range(256))


def _add_optuna_study(store: Store) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=store.optuna_storage(), study_name=STUDY.name, direction="maximize"
    )
    distribution = optuna.distributions.CategoricalDistribution([4, 8, 16])
    for value, measurement in zip((10.0, 30.0, 20.0), measurements(), strict=False):
        trial = study.ask({"batch_size": distribution})
        trial.set_user_attr("measurement", measurement.address)
        study.tell(trial, value)


def main() -> None:
    """Write the database and what it must give back."""
    name = GOLDEN / f"schema_{VERSIONS[-1]}"
    database = name.with_suffix(".db")
    database.unlink(missing_ok=True)
    with Store.open(str(database)) as store:
        store.add(measurements())
        store.add_study(STUDY)
        for launch in launches():
            store.add_launch(launch)
        store.add_model(MODEL, kind="trees", trained_on={"workload": STEP.address, "rows": 6})
        _add_optuna_study(store)
        held = {
            "measurements": [m.to_json() for m in store.measurements()],
            "addresses": [m.address for m in store.measurements()],
            "studies": [s.to_json() for s in store.studies()],
            "launches": [launch.to_json() for launch in store.launches()],
            "models": [m.address for m in store.models()],
            "optuna_study": STUDY.name,
        }
    name.with_suffix(".json").write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
