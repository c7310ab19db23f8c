"""Calibration: real processes throughout; a stand-in for torch where one has to misbehave."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from collectors.calibrate import Calibration, calibrate, tried
from collectors.machine import recognise_device, recognise_software
from perfmodel.hardware import find
from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Software,
    Value,
    Workload,
)

CPU = Device("cpu", "AMD", "AMD EPYC", "x86-64-v4", 2**34, 2)
GPU = Device("gpu", "NVIDIA", "T4", "sm_75", 2**34, 40)
SOFTWARE = Software(Facts(torch="2.13.0"))

# As much of torch as the child calls; each test replaces `mm` or adds to it.
STAND_IN = """
import contextlib, os, signal, sys, time, types
__version__ = "0.0"
float32, bfloat16 = "float32", "bfloat16"
class Tensor:
    dtype = float32
    def to(self, dtype):
        self.dtype = dtype
        return self
    def copy_(self, other):
        time.sleep(0.001)
def tensor(*size, **options):
    return Tensor()
randn = empty = ones = empty_like = tensor
no_grad = contextlib.nullcontext
cuda = types.SimpleNamespace(is_available=lambda: False)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace()))
def set_num_threads(threads):
    print("threads", threads)
def mm(left, right, out):
    time.sleep(0.001)
"""


def with_torch(folder: Path, source: str) -> Mapping[str, str]:
    """An environment whose torch is `source`."""
    (folder / "torch.py").write_text(source)
    return {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}


def measured(
    name: str, seconds: float, threads: int | None = None, **parameters: Value
) -> Measurement:
    """One operator's measurement."""
    return Measurement(
        device=CPU,
        software=SOFTWARE,
        workload=Workload("operator", name, Facts(parameters)),
        configuration=Configuration({} if threads is None else {"threads": threads}),
        measured_at="2026-01-01T00:00:00.000000+00:00",
        samples=(seconds / 2, seconds, seconds * 9),
    )


class TestCalibrate:
    def test_this_machine(self) -> None:
        """The real torch, briefly: everything is measured and tells a rate."""
        measurements = calibrate(CPU, SOFTWARE, seconds=0.3)
        assert [m.failure for m in measurements] == [None] * 6
        asked = {(m.workload.name, m.workload.parameters["dtype"]) for m in measurements}
        assert asked == {("matmul", "fp32"), ("matmul", "bf16"), ("copy", "fp32")}
        assert {m.configuration["threads"] for m in measurements} == {1, 2}
        assert all("load1" in m.conditions for m in measurements)
        calibration = Calibration.from_measurements(measurements)
        assert calibration is not None
        assert set(calibration.flops_per_second) == {"fp32", "bf16"}
        assert calibration.bytes_per_second is not None
        for again in measurements:
            assert Measurement.from_json(again.to_json()) == again

    @pytest.mark.gpu
    def test_this_gpu(self) -> None:
        software = recognise_software()
        device = recognise_device(software)
        if device.kind != "gpu":
            pytest.skip("needs an NVIDIA GPU and a torch built for it")
        calibration = Calibration.from_measurements(calibrate(device, software, seconds=2.0))
        assert calibration is not None
        facts = find(device.model)
        # A dtype without hardware for it is emulated; none beats the data sheet.
        for dtype, rate in calibration.flops_per_second.items():
            assert facts is None or rate <= 1.1 * facts.flops_per_second.get(dtype, rate)
        assert calibration.bytes_per_second is not None

    def test_one_core_is_measured_once(self, tmp_path: Path) -> None:
        one = Device("cpu", "AMD", "AMD EPYC", "x86-64-v4", 2**34, 1)
        measurements = calibrate(
            one, SOFTWARE, seconds=0.1, environment=with_torch(tmp_path, STAND_IN)
        )
        assert [m.ok for m in measurements] == [True] * 3
        assert {m.configuration["threads"] for m in measurements} == {1}

    def test_a_crash_costs_only_what_crashed(self, tmp_path: Path) -> None:
        environment = with_torch(
            tmp_path,
            STAND_IN + "def mm(left, right, out):\n"
            "    if left.dtype == bfloat16: os.kill(os.getpid(), signal.SIGILL)\n"
            "    time.sleep(0.001)\n",
        )
        measurements = calibrate(CPU, SOFTWARE, seconds=0.1, environment=environment)
        failed = [m for m in measurements if not m.ok]
        assert [m.workload.parameters["dtype"] for m in failed] == ["bf16", "bf16"]
        for measurement in failed:
            assert measurement.failure is not None
            assert measurement.failure.reason is FailureReason.CRASH
            assert "illegal instruction" in measurement.failure.detail
        assert len([m for m in measurements if m.ok]) == 4

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            ("MemoryError()", FailureReason.OUT_OF_MEMORY),
            (
                "RuntimeError('DefaultCPUAllocator: not enough memory')",
                FailureReason.OUT_OF_MEMORY,
            ),
            ("NotImplementedError('no addmm for BFloat16')", FailureReason.CRASH),
        ],
    )
    def test_an_exception_costs_only_its_operator(
        self, tmp_path: Path, error: str, reason: FailureReason
    ) -> None:
        source = STAND_IN + f"def mm(left, right, out):\n    raise {error}\n"
        measurements = calibrate(
            CPU, SOFTWARE, seconds=0.1, environment=with_torch(tmp_path, source)
        )
        reasons = {m.workload.name: m.failure and m.failure.reason for m in measurements}
        assert reasons == {"matmul": reason, "copy": None}

    def test_a_gpu_that_torch_does_not_see(self) -> None:
        measurements = calibrate(GPU, SOFTWARE, seconds=0.1)
        assert len(measurements) == 5
        for measurement in measurements:
            assert measurement.failure is not None
            assert "finds no CUDA device" in measurement.failure.detail
            assert "threads" not in measurement.configuration

    @pytest.mark.parametrize(
        ("source", "reason", "detail"),
        [
            ("raise ModuleNotFoundError('No module named torch')", "crash", "No module named"),
            ("import os; os._exit(3)", "crash", "exit code 3"),
            ("import os; os._exit(0)", "crash", "ended without an answer"),
            ("import time; time.sleep(600)", "timeout", "deadline of 1"),
        ],
    )
    def test_without_torch_everything_fails_alike(
        self, tmp_path: Path, source: str, reason: str, detail: str
    ) -> None:
        measurements = calibrate(
            CPU,
            SOFTWARE,
            seconds=0.1,
            deadline_seconds=1.0 if reason == "timeout" else 60.0,
            environment=with_torch(tmp_path, source),
        )
        assert len(measurements) == 6
        for measurement in measurements:
            assert measurement.failure is not None
            assert measurement.failure.reason == reason
            assert detail in measurement.failure.detail

    def test_without_an_interpreter_everything_fails_alike(self) -> None:
        measurements = calibrate(CPU, SOFTWARE, interpreter="/nowhere/python")
        assert len({m.failure for m in measurements}) == 1
        failure = measurements[0].failure
        assert failure is not None
        assert "/nowhere/python" in failure.detail

    def test_torch_stays_out_of_this_process(self) -> None:
        code = "import collectors.calibrate, sys; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestCalibration:
    def test_rates_are_of_the_best_median(self) -> None:
        calibration = Calibration.from_measurements(
            [
                measured("matmul", 1.0, threads=1, m=100, n=200, k=300, dtype="fp32"),
                measured("matmul", 0.5, threads=2, m=100, n=200, k=300, dtype="fp32"),
                measured("matmul", 0.6, threads=2, m=100, n=200, k=300, dtype="fp32"),
                measured("matmul", 2.0, threads=2, m=100, n=200, k=300, dtype="bf16"),
                measured("copy", 0.1, threads=2, elements=1000, dtype="fp32"),
                measured("copy", 0.4, threads=1, elements=1000, dtype="fp32"),
            ]
        )
        assert calibration == Calibration(
            flops_per_second={"fp32": 24e6, "bf16": 6e6},
            bytes_per_second=80_000.0,
        )

    def test_a_gpu_has_no_threads(self) -> None:
        calibration = Calibration.from_measurements(
            [measured("matmul", 0.5, m=10, n=10, k=10, dtype="bf16")]
        )
        assert calibration is not None
        assert calibration.flops_per_second == {"bf16": 4000.0}
        assert calibration.bytes_per_second is None

    def test_nothing_to_learn_from_is_none(self) -> None:
        failed = Measurement(
            device=CPU,
            software=SOFTWARE,
            workload=Workload("operator", "matmul", Facts(dtype="fp32")),
            configuration=Configuration(threads=2),
            measured_at="2026-01-01T00:00:00.000000+00:00",
            failure=Failure(FailureReason.CRASH),
        )
        other = measured("softmax", 0.1, rows=3, dtype="fp32")
        foreign = measured("matmul", 0.1, batch=3, dtype="fp32")
        assert Calibration.from_measurements([failed, other, foreign]) is None
        assert Calibration.from_measurements([]) is None

    def test_a_failed_calibration_was_tried(self) -> None:
        failures = calibrate(CPU, SOFTWARE, interpreter="/nowhere/python")
        assert tried(failures)
        assert tried([measured("softmax", 0.1, rows=3), failures[-1]])
        assert not tried([measured("softmax", 0.1, rows=3)])
        assert not tried([])

    def test_in_words(self) -> None:
        calibration = Calibration({"fp32": 123.4e9, "bf16": 2e12}, 23.45e9)
        assert str(calibration) == "bf16 2,000 GFLOP/s, fp32 123 GFLOP/s, memory 23.4 GB/s"
