"""Records: JSON both ways, addresses that two machines agree on, and what is refused."""

import hashlib
import json
import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import RecordError
from perfmodel.history import Launch, Study
from perfmodel.identity import content_address
from perfmodel.records import (
    MEMORY_KEYS,
    OUTPUT_CHARACTERS,
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

DEVICE = Device("cpu", "AMD", "EPYC", "zen4", 2**34, 2)
SOFTWARE = Software(Facts(torch="2.13.0", python="3.11.7"))
WORKLOAD = Workload("step", "train.py", Facts(command="python train.py"))

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
facts = st.dictionaries(st.text(min_size=1, max_size=12), scalars, max_size=5).map(Facts)
printed = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["\ud83d\ude00", "\udcff\0", "x" * 9000, "\ud83d" * 8191 + "\ude00x"]
)
outcomes = st.fixed_dictionaries(
    {"samples": st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=5).map(tuple)}
) | st.fixed_dictionaries(
    {
        "failure": st.builds(
            Failure,
            st.sampled_from(FailureReason),
            printed,
            st.none() | st.integers(-255, 255),
            printed,
        )
    }
)
surroundings = st.fixed_dictionaries(
    {
        "device": st.just(DEVICE),
        "software": facts.map(Software),
        "workload": st.builds(Workload, st.just("step"), st.text(max_size=20), facts),
        "configuration": facts.map(Configuration),
        "measured_at": st.just("2026-01-02T03:04:05.000006+00:00"),
        "memory": st.builds(Memory, resident_bytes=st.none() | st.integers(0, 2**50)),
        "ranks": st.integers(1, 64),
        "conditions": facts,
    }
)
measurements = st.builds(lambda a, b: Measurement(**a, **b), surroundings, outcomes)


@given(measurements)
def test_measurement_survives_json(measurement: Measurement) -> None:
    again = Measurement.from_json(json.loads(json.dumps(measurement.to_json())))
    assert again == measurement
    assert again.address == measurement.address


def test_addresses_do_not_depend_on_the_process() -> None:
    """Golden values: a changed address would split every team's history in two."""
    assert content_address("x", {"b": 1, "a": [True, None, "é"]}) == (
        "5af1c5da4152a045ce921238560e2471d956024d0bd312ac6fe57139fb11f993"
    )
    assert Configuration(batch_size=16, precision="bf16").address == (
        "8b443ae5a99b4679529848963affc7c176370459a432ddbe023008dd47ef1ee5"
    )


STUDY = Study(
    DEVICE,
    SOFTWARE,
    WORKLOAD,
    Space((Parameter("batch_size", (4, 8)),), ("batch_size > 2",)),
    "samples_per_second",
    "batch_size",
)
FAILED = Measurement(
    DEVICE,
    SOFTWARE,
    WORKLOAD,
    Configuration(batch_size=16),
    "2026-01-02T03:04:05.000006+00:00",
    failure=Failure(FailureReason.CRASH, "é", -11, "\udcff\n"),
    conditions=Facts(load1=0.5),
)
TIMED = replace(FAILED, failure=None, samples=(0.1, 1 / 3), memory=Memory(1, 2, None, 4), ranks=2)
LAUNCH = Launch(
    STUDY, Configuration(batch_size=8), ("python", "t.py"), "t", predicted=Prediction(1.0, 0.9, 1.1)
)


@pytest.mark.parametrize(
    ("record", "address"),
    [
        (DEVICE, "4561f4f9e03c41afc45e076bb0c47fe95269c511768c9502615a67a19a268c5f"),
        (SOFTWARE, "755c4bd89376201f345da94b9de981301ebd9a359be969e42d2af191150ef037"),
        (WORKLOAD, "120c20135046425acfa564a798ee3abb9b64735d9e6c0d882b78b0875199b8cc"),
        (TIMED, "c1d876ca6ee58458182e82ed703b163b9fcd8c76332b26df93eb0a10b6e5d1f3"),
        (FAILED, "417c7574f64caa5e6ed2fc36fd85a333291adb15053ab7f5cdbf5eb0855a4fe8"),
        (STUDY, "5c6afffaab287d384a9eb7453474609ea39d18613988cd1d8863c19fb4b03b9c"),
        (LAUNCH, "27e45ff0200dbe2cd8178a4d840e76332201af1a2e62571c492f08d6e45facf5"),
    ],
)
def test_addresses_are_kept_for_ever(record: Any, address: str) -> None:
    """Golden values: what was recorded by a release is found again by every later one."""
    assert record.address == address


def test_the_address_of_a_measurement_is_as_documented() -> None:
    parts = (DEVICE, SOFTWARE, WORKLOAD, TIMED.configuration)
    lines = [
        "measurement",
        *(part.address for part in parts),
        '["2026-01-02T03:04:05.000006+00:00",2,[1,2,null,4],null]',
        '{"load1":0.5}',
    ]
    text = "".join(f"{line}\n" for line in lines).encode()
    assert TIMED.address == hashlib.sha256(text + struct.pack("<2d", 0.1, 1 / 3)).hexdigest()
    lines[5] = (
        '["2026-01-02T03:04:05.000006+00:00",1,[null,null,null,null],'
        '["crash","\\u00e9",-11,"\\udcff\\n"]]'
    )
    text = "".join(f"{line}\n" for line in lines).encode()
    assert FAILED.address == hashlib.sha256(text).hexdigest()


def test_everything_observed_is_in_the_address() -> None:
    changes: list[dict[str, Any]] = [
        {"device": replace(DEVICE, units=3)},
        {"software": Software()},
        {"workload": Workload("kernel", "train.py", WORKLOAD.parameters)},
        {"configuration": Configuration(batch_size=16.0)},
        {"measured_at": ""},
        {"samples": (1 / 3, 0.1)},
        {"samples": (0.1,)},
        *({"memory": replace(TIMED.memory, **{key: 77})} for key in MEMORY_KEYS),
        {"ranks": 3},
        {"conditions": Facts(load1=0.25)},
        *(
            {"samples": (), "failure": replace(FAILED.failure, **change)}
            for change in ({}, {"detail": ""}, {"exit_code": None}, {"output": ""})
        ),
    ]
    addresses = {replace(TIMED, **change).address for change in changes}
    assert len(addresses | {TIMED.address}) == len(changes) + 1


def test_the_end_of_a_long_output_is_kept() -> None:
    failure = Failure(FailureReason.CRASH, output="first" + "x" * OUTPUT_CHARACTERS + "last")
    assert len(failure.output) == OUTPUT_CHARACTERS
    assert failure.output.endswith("xlast")
    assert Failure.from_json(failure.to_json()) == failure


def test_a_launch_ends_whole() -> None:
    with pytest.raises(RecordError, match="both"):
        replace(LAUNCH, seconds=1.0)
    with pytest.raises(RecordError, match="both"):
        replace(LAUNCH, exit_code=0)
    ended = replace(LAUNCH, seconds=1.0, exit_code=0, achieved=TIMED)
    assert (LAUNCH.ended, ended.ended) == (False, True)
    assert ended.address == LAUNCH.address
    assert LAUNCH.outcome_to_json() is None
    assert ended.outcome_to_json() == {
        "launch": LAUNCH.address,
        "seconds": 1.0,
        "exit_code": 0,
        "achieved": TIMED.address,
    }


def test_values_of_different_types_are_different_configurations() -> None:
    assert len({Configuration(a=1), Configuration(a=1.0), Configuration(a=True)}) == 3
    assert len({Configuration(a=v).address for v in (1, 1.0, True, "1")}) == 4
    assert Configuration(a=1, b=2) == Configuration({"b": 2, "a": 1})


def test_statistics_come_from_the_samples() -> None:
    measured = Measurement(
        DEVICE, SOFTWARE, WORKLOAD, Configuration(), "t", samples=(1.0, 2.0, 3.0, 4.0, 100.0)
    )
    assert measured.seconds == 3.0
    assert measured.spread == pytest.approx(2.0 / 3.0)
    failed = Measurement(
        DEVICE, SOFTWARE, WORKLOAD, Configuration(), "t", failure=Failure(FailureReason.TIMEOUT)
    )
    assert not failed.ok
    assert math.isnan(failed.seconds)
    assert math.isnan(failed.spread)


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(sample: float) -> None:
    with pytest.raises(RecordError, match="positive"):
        Measurement(DEVICE, SOFTWARE, WORKLOAD, Configuration(), "t", samples=(sample,))


def test_a_measurement_is_a_time_or_a_failure() -> None:
    with pytest.raises(RecordError, match="one of the two"):
        Measurement(DEVICE, SOFTWARE, WORKLOAD, Configuration(), "t")


@pytest.mark.parametrize("value", [math.nan, math.inf, None, [1], b"x"])
def test_only_finite_scalars_are_facts(value: object) -> None:
    with pytest.raises(RecordError, match="allowed"):
        Facts({"a": value})


@pytest.mark.parametrize(
    "damage",
    [
        {"device": {"kind": "cpu"}},
        {"samples": ["x"]},
        {"failure": {"reason": "bad luck"}},
        {"workload": {"kind": "magic", "name": "x"}},
        {"extra": 1},
    ],
)
def test_damaged_json_is_a_record_error(damage: dict[str, object]) -> None:
    good = Measurement(DEVICE, SOFTWARE, WORKLOAD, Configuration(), "t", samples=(1.0,)).to_json()
    with pytest.raises(RecordError):
        Measurement.from_json({**good, **damage})


def test_peak_memory_is_reserved_on_a_gpu_and_resident_on_a_cpu() -> None:
    assert Memory(allocated_bytes=1, reserved_bytes=2, resident_bytes=9).peak_bytes == 2
    assert Memory(resident_bytes=9).peak_bytes == 9
    assert Memory().peak_bytes is None


def test_study_and_prediction_survive_json() -> None:
    again = Study.from_json(json.loads(json.dumps(STUDY.to_json())))
    assert again == STUDY
    assert again.address == STUDY.address
    prediction = Prediction(1.0, 0.9, 1.1, peak_bytes=2.0, extrapolating=True)
    assert Prediction.from_json(prediction.to_json()) == prediction
