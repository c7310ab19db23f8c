"""Records: JSON both ways, addresses that two machines agree on, and what is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import RecordError
from perfmodel.history import Study
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
    content_address,
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
measurements = st.builds(
    Measurement,
    device=st.just(DEVICE),
    software=facts.map(Software),
    workload=st.builds(Workload, st.just("step"), st.text(max_size=20), facts),
    configuration=facts.map(Configuration),
    measured_at=st.just("2026-01-02T03:04:05.000006+00:00"),
    samples=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=5).map(tuple),
    memory=st.builds(Memory, resident_bytes=st.one_of(st.none(), st.integers(0, 2**50))),
    ranks=st.integers(1, 64),
    conditions=facts,
)


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
    space = Space((Parameter("batch_size", (4, 8)),), ("batch_size > 2",))
    study = Study(DEVICE, SOFTWARE, WORKLOAD, space, "samples_per_second", "batch_size")
    again = Study.from_json(json.loads(json.dumps(study.to_json())))
    assert again == study
    assert again.address == study.address
    prediction = Prediction(1.0, 0.9, 1.1, peak_bytes=2.0, extrapolating=True)
    assert Prediction.from_json(prediction.to_json()) == prediction
