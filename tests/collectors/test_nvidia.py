"""GPUs through NVML: written-down answers of drivers, and the real pynvml over a stub library."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectors import nvidia
from perfmodel.records import Device


class RecordedNvml:
    """pynvml's functions with the answers of a machine written down; the rest isn't supported."""

    class NVMLError(Exception):
        """As in pynvml."""

    def __init__(self, gpus: list[dict[str, Any]]) -> None:
        self.gpus = gpus

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(handle: Any = None, *_: Any) -> Any:
            try:
                return handle[name]
            except (KeyError, TypeError):
                raise self.NVMLError(name) from None

        return function

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        for gpu in self.gpus:
            for handle in (gpu, *gpu.get("instances", ())):
                if handle.get("nvmlDeviceGetUUID") == uuid:
                    return handle
        raise self.NVMLError(uuid)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(
        self, gpu: dict[str, Any], index: int
    ) -> dict[str, Any]:
        # The first slots may well be empty.
        if index < 2 or index - 2 >= len(gpu.get("instances", ())):
            raise self.NVMLError("not found")
        instance: dict[str, Any] = gpu["instances"][index - 2]
        return instance


def gpu(
    name: str, uuid: str, gib: float, cores: int, capability: tuple[int, int]
) -> dict[str, Any]:
    """One GPU's answers."""
    return {
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=int(gib * 2**30)),
        "nvmlDeviceGetNumGpuCores": cores,
        "nvmlDeviceGetMaxClockInfo": 1500,
        "nvmlDeviceGetCudaComputeCapability": list(capability),
        "nvmlDeviceGetMigMode": [0, 0],
    }


def t4() -> dict[str, Any]:
    return gpu("Tesla T4", "GPU-aaa1", 15, 2560, (7, 5))


def h100() -> dict[str, Any]:
    return gpu("NVIDIA H100 80GB HBM3", "GPU-bbb2", 79.6, 16896, (9, 0))


def sliced() -> dict[str, Any]:
    """An H100 in MIG mode with one instance."""
    board = h100()
    board["nvmlDeviceGetMigMode"] = [1, 1]
    board["instances"] = [
        {
            "nvmlDeviceGetUUID": "MIG-ccc3",
            "nvmlDeviceIsMigDeviceHandle": 1,
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": board,
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=10 * 2**30),
            "nvmlDeviceGetAttributes": SimpleNamespace(multiprocessorCount=16),
        }
    ]
    return board


class TestNvidia:
    def test_a_gpu_is_described_by_its_driver(self) -> None:
        assert nvidia.describe_gpu(RecordedNvml([]), h100()) == Device(
            kind="gpu",
            vendor="NVIDIA",
            model="H100 SXM 80GB",
            architecture="sm_90",
            memory_bytes=80 * 2**30,
            units=132,
        )

    @pytest.mark.parametrize(
        ("environment", "uuid"),
        [
            ({}, "GPU-bbb2"),  # the fastest comes first for CUDA
            ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-aaa1"),
            ({"CUDA_VISIBLE_DEVICES": "1"}, "GPU-aaa1"),
            ({"CUDA_VISIBLE_DEVICES": "1,0"}, "GPU-aaa1"),
            ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-bbb2"),
            ({"CUDA_VISIBLE_DEVICES": "GPU-aaa1"}, "GPU-aaa1"),
            ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, "GPU-bbb2"),
            ({"CUDA_VISIBLE_DEVICES": ""}, None),
            ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
            ({"CUDA_VISIBLE_DEVICES": "2,0"}, None),
            ({"CUDA_VISIBLE_DEVICES": "GPU-zzz"}, None),
            ({"CUDA_VISIBLE_DEVICES": "MIG-zzz"}, None),
            ({"CUDA_VISIBLE_DEVICES": "none"}, None),
        ],
    )
    def test_visibility(self, environment: dict[str, str], uuid: str | None) -> None:
        handle = nvidia.first_visible(RecordedNvml([t4(), h100()]), environment)
        assert (handle and handle["nvmlDeviceGetUUID"]) == uuid

    def test_no_gpu_is_none(self) -> None:
        assert nvidia.first_visible(RecordedNvml([]), {}) is None

    @pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "MIG-ccc3"}])
    def test_a_mig_instance_is_a_device_of_its_own(self, environment: dict[str, str]) -> None:
        nvml = RecordedNvml([sliced()])
        handle = nvidia.first_visible(nvml, environment)
        device = nvidia.describe_gpu(nvml, handle)
        assert device.model == "H100 SXM 80GB MIG 1g.10gb"
        assert (device.memory_bytes, device.units) == (10 * 2**30, 16)
        assert device.architecture == "sm_90"

    def test_mig_mode_without_an_instance_shows_the_next_gpu(self) -> None:
        empty = {**h100(), "nvmlDeviceGetMigMode": [1, 1]}
        handle = nvidia.first_visible(RecordedNvml([empty, t4()]), {})
        assert handle["nvmlDeviceGetUUID"] == "GPU-aaa1"
        assert nvidia.first_visible(RecordedNvml([empty]), {}) is None

    def test_a_driver_that_says_little(self) -> None:
        """What it won't say comes from the data sheet; an unknown GPU keeps its name."""
        known = nvidia.describe_gpu(RecordedNvml([]), {"nvmlDeviceGetName": b"Tesla T4"})
        assert (known.model, known.units, known.architecture) == ("T4", 40, "sm_75")
        assert known.memory_bytes == 16 * 2**30
        other = nvidia.describe_gpu(RecordedNvml([]), {"nvmlDeviceGetName": "NVIDIA X1"})
        assert (other.model, other.units, other.memory_bytes) == ("NVIDIA X1", 0, 0)

    def test_another_memory_under_a_known_name_is_another_model(self) -> None:
        variant = gpu("NVIDIA GeForce RTX 3080", "GPU-d", 12, 8960, (8, 6))
        device = nvidia.describe_gpu(RecordedNvml([]), variant)
        assert (device.model, device.units) == ("NVIDIA GeForce RTX 3080", 70)

    def test_conditions(self) -> None:
        handle = {
            **h100(),
            "nvmlDeviceGetClockInfo": 900,
            "nvmlDeviceGetTemperature": 84,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4 | 0x20,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=os.getpid()),
                SimpleNamespace(pid=1),
            ],
        }
        assert nvidia.gpu_conditions(RecordedNvml([]), handle) == {
            "gpu_clock_mhz": 900,
            "gpu_clock_max_mhz": 1500,
            "gpu_memory_bytes": int(79.6 * 2**30),
            "gpu_temperature_celsius": 84,
            "gpu_throttle_reasons": "power_cap,software_thermal",
            "gpu_other_processes": 1,
        }
        assert nvidia.gpu_conditions(RecordedNvml([]), {}) == {}

    @pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")
    def test_the_real_pynvml_over_a_stub_driver(self, tmp_path: Path) -> None:
        library = tmp_path / "libnvidia-ml.so.1"
        source = Path(__file__).with_name("nvml_stub.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        code = (
            "from collectors.machine import *\n"
            "d = recognise_device(environment={})\n"
            "print(d.model, d.units, d.memory_bytes, d.architecture)\n"
            "print(recognise_device(environment={'CUDA_VISIBLE_DEVICES': ''}).kind)\n"
            "print(recognise_software().facts['driver'])\n"
            "c = machine_conditions(d, environment={})\n"
            "print({k: v for k, v in c.items() if k.startswith('gpu')})\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.stderr == ""
        assert ended.stdout.splitlines() == [
            "H100 PCIe 80GB 114 85899345920 sm_90",
            "cpu",
            "570.86.10",
            "{'gpu_clock_max_mhz': 1755, 'gpu_clock_mhz': 1410, 'gpu_memory_bytes': 85520809984, "
            "'gpu_other_processes': 0, 'gpu_throttle_reasons': 'power_cap'}",
        ]
