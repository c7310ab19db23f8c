"""The machine's description: recorded /proc trees, an NVML with written answers, real interpreters.

What a hypervisor, a container or a driver may report is laid out as files and answers; the reading
of the machine the test runs on is checked for what must hold anywhere.
"""

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from collectors import machine, processor
from perfmodel.errors import MeasurementError
from perfmodel.records import Device, Facts, Software

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2596.142
flags\t\t: cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave \
avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16

processor\t: 1
model name\t: AMD EPYC
cpu MHz\t\t: 2600.142
"""
XEON = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: {model}
model name\t: {name}
stepping\t: 7
flags\t\t: cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave
"""
SIGNATURE = "(family 6, model 85, stepping 7)"
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Lay out `files` under `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def described(root: Path, cpuinfo: str) -> Device:
    """The CPU of a machine with this /proc/cpuinfo."""
    return processor.describe_processor(
        write(root, {"proc/cpuinfo": cpuinfo, "proc/meminfo": "MemTotal:  24684084 kB\n"})
    )


class TestProcessor:
    def test_a_virtual_epyc_says_which_one_it_is(self, tmp_path: Path) -> None:
        device = described(tmp_path, EPYC.format(model=17))
        assert device.model == "AMD EPYC (family 25, model 17, stepping 1)"
        assert device.vendor == "AMD"
        assert device.architecture == "x86-64-v4+avx512_bf16"
        assert device.memory_bytes == 24 * 2**30

    def test_two_virtual_processors_named_alike_are_two_devices(self, tmp_path: Path) -> None:
        one = described(tmp_path / "a", EPYC.format(model=17))
        other = described(tmp_path / "b", EPYC.format(model=1))
        assert one.address != other.address

    @pytest.mark.parametrize("change", [0.995, 0.9999, 1.0001, 1.005])
    def test_another_kernel_s_share_of_memory_makes_no_other_device(
        self, tmp_path: Path, change: float
    ) -> None:
        cpuinfo = EPYC.format(model=17)
        device = described(tmp_path, cpuinfo)
        text = f"MemTotal:  {int(24684084 * change)} kB\n"
        root = write(tmp_path / "other", {"proc/cpuinfo": cpuinfo, "proc/meminfo": text})
        assert processor.describe_processor(root).address == device.address
        assert processor.memory_bytes(root) != processor.memory_bytes(tmp_path)

    @pytest.mark.parametrize(
        ("reported_mib", "nominal_mib"),
        # As machines and GPUs of these sizes report them (T4 and A100 with and without ECC).
        [
            (3886, 4096), (7821, 8192), (15880, 16384), (31780, 32768), (63970, 65536),
            (95830, 98304), (128620, 131072), (385400, 393216), (515600, 524288),
            (15109, 15360), (15360, 15360), (40536, 40960), (40960, 40960), (81559, 81920),
            (143771, 147456), (0, 0),
        ],
    )  # fmt: skip
    def test_memory_is_rounded_to_the_size_it_is_sold_as(
        self, reported_mib: int, nominal_mib: int
    ) -> None:
        assert processor.nominal_bytes(reported_mib << 20) == nominal_mib << 20

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Intel Xeon Gold 6148 CPU @ 2.40GHz"),
            ("Intel(R) Xeon(R) CPU @ 2.20GHz", f"Intel Xeon CPU @ 2.20GHz {SIGNATURE}"),
            ("QEMU Virtual CPU version 2.5+", f"QEMU Virtual CPU version 2.5+ {SIGNATURE}"),
            ("Common KVM processor", f"Common KVM processor {SIGNATURE}"),
        ],
    )
    def test_only_names_without_a_model_get_the_signature(
        self, tmp_path: Path, name: str, told: str
    ) -> None:
        device = described(tmp_path, XEON.format(model=85, name=name))
        assert (device.model, device.vendor) == (told, "Intel")
        assert device.architecture == "x86-64-v3"

    def test_arm_is_named_by_its_part(self, tmp_path: Path) -> None:
        device = described(tmp_path, GRAVITON)
        assert device.model == "Neoverse V1 r1p1"
        assert device.architecture == "aarch64+sve+bf16+i8mm"
        assert device.vendor == "ARM"

    def test_without_proc_there_is_still_a_device(self, tmp_path: Path) -> None:
        device = processor.describe_processor(tmp_path)
        assert device.kind == "cpu"
        assert device.model == platform.machine()
        assert (device.memory_bytes, device.units) == (0, len(os.sched_getaffinity(0)))

    def test_hyperthreads_share_a_core(self, tmp_path: Path) -> None:
        topology = {
            f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": str(value)
            for cpu, core in ((0, 0), (1, 1), (2, 0), (3, 1))
            for name, value in (("core_id", core), ("physical_package_id", 0))
        }
        root = write(tmp_path, topology)
        assert processor.physical_cores({0, 1, 2, 3}, root) == 2
        assert processor.physical_cores({0, 2}, root) == 1
        assert processor.physical_cores({0, 9}, root) == 2

    def test_it_does_not_change_from_run_to_run(self) -> None:
        code = "from collectors.machine import recognise_device; print(recognise_device().address)"
        seen = {
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
            for _ in range(2)
        }
        assert len(seen) == 1

    def test_affinity_counts(self) -> None:
        one = min(os.sched_getaffinity(0))
        code = "from collectors.processor import describe_processor as d; print(d().units)"
        ended = subprocess.run(
            ["taskset", "-c", str(one), sys.executable, "-c", code],
            capture_output=True,
            check=True,
        )
        assert ended.stdout.strip() == b"1"


class TestControlGroups:
    @pytest.mark.parametrize(
        ("files", "cpus"),
        [
            ({}, math.inf),
            ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1.5),
            ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000"}, math.inf),
            # A container sees its own group as the mount, and the host's path in /proc.
            ({"proc/self/cgroup": "0::/docker/a\n", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4.0),
            (
                {
                    "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/\n0::/\n",
                    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000",
                    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
                },
                2.0,
            ),
        ],
        ids=["none", "v2 ancestor", "v2 max", "container", "v1"],
    )
    def test_quota(self, tmp_path: Path, files: dict[str, str], cpus: float) -> None:
        assert processor.cpu_quota(write(tmp_path, files)) == cpus

    def test_a_quota_below_one_is_still_one_core(self, tmp_path: Path) -> None:
        write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"})
        assert described(tmp_path, EPYC.format(model=17)).units == 1
        assert processor.available_cpus(tmp_path) == 1

    def test_memory_limit_is_a_condition_and_no_fact_of_the_device(self, tmp_path: Path) -> None:
        free = described(tmp_path / "free", EPYC.format(model=17))
        root = write(
            tmp_path / "limited",
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"},
        )
        assert described(root, EPYC.format(model=17)) == free
        assert processor.memory_limit_bytes(root) == 2**30
        assert processor.memory_limit_bytes(tmp_path / "free") is None

    def test_a_limit_above_the_memory_is_none(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/\n",
                "proc/meminfo": "MemTotal: 1024 kB\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
        )
        assert processor.memory_limit_bytes(tmp_path) is None


class TestDevice:
    def test_hidden_gpus_mean_the_cpu(self) -> None:
        device = machine.recognise_device(environment={"CUDA_VISIBLE_DEVICES": ""})
        assert device == processor.describe_processor()

    def test_a_torch_without_cuda_means_the_cpu(self) -> None:
        software = Software(Facts(torch="2.13.0+cpu"))
        assert machine.recognise_device(software).kind == "cpu"

    def test_a_torch_for_amd_gpus_is_never_filed_under_the_cpu(self, tmp_path: Path) -> None:
        software = Software(Facts(torch="2.9.0+rocm6.4", hip="6.4.43482"))
        assert machine.recognise_device(software, environment={}, root=tmp_path).kind == "cpu"
        write(tmp_path, {"dev/kfd": ""})
        with pytest.raises(MeasurementError, match=r"2\.9\.0\+rocm6\.4 .*HIP_VISIBLE_DEVICES=-1"):
            machine.recognise_device(software, environment={}, root=tmp_path)
        hidden = {"HIP_VISIBLE_DEVICES": "-1"}
        assert machine.recognise_device(software, environment=hidden, root=tmp_path).kind == "cpu"

    def test_conditions_of_a_cpu(self) -> None:
        device = machine.recognise_device(environment={"CUDA_VISIBLE_DEVICES": ""})
        conditions = machine.machine_conditions(device)
        assert isinstance(conditions["load1"], float)
        assert conditions["memory_bytes"] == processor.memory_bytes()
        cpus = conditions["cpus_available"]
        assert isinstance(cpus, int)
        assert 1 <= cpus <= len(os.sched_getaffinity(0))


class TestSoftware:
    def test_ours(self) -> None:
        facts = machine.recognise_software().facts
        assert facts["python"] == platform.python_version()
        assert facts["os"] == "Linux"
        assert facts["host_cpu"] == processor.describe_processor().model
        assert machine.recognise_software(sys.executable) == machine.recognise_software()

    def test_torch_is_told_and_never_imported(self) -> None:
        code = (
            "import sys; from collectors.machine import recognise_software as r\n"
            "print(r().facts['torch']); assert 'torch' not in sys.modules\n"
            "import torch; print(torch.__version__)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        told, imported = ended.stdout.split()
        assert told == imported

    def test_a_build_for_cuda_is_told(self, tmp_path: Path, monkeypatch: Any) -> None:
        """As in torch's wheels, from 1.13 (plain) to now (annotated)."""
        write(
            tmp_path,
            {
                "torch/__init__.py": "raise SystemExit('imported')",
                "torch/version.py": "from typing import Optional\n__version__ = '2.9.0+cu128'\n"
                "debug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            },
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        facts = machine.recognise_software().facts
        assert (facts["torch"], facts["cuda"]) == ("2.9.0+cu128", "12.8")
        assert "hip" not in facts

    def test_files_in_the_working_folder_are_no_modules(
        self, tmp_path: Path, monkeypatch: Any
    ) -> None:
        for name in ("json", "platform", "ast", "torch"):
            write(tmp_path, {f"{name}.py": "raise SystemExit(3)"})
        monkeypatch.chdir(tmp_path)
        assert machine.recognise_software().facts["python"] == platform.python_version()

    def test_a_chatty_site_module_is_no_trouble(self, tmp_path: Path, monkeypatch: Any) -> None:
        write(tmp_path, {"sitecustomize.py": "print('welcome')"})
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert machine.interpreter_versions(sys.executable)["python"] == platform.python_version()

    @pytest.mark.parametrize(
        ("interpreter", "why"),
        [
            ("/nowhere/python", "'/nowhere/python' can't be started: No such file or directory"),
            ("/etc/passwd", "'/etc/passwd' can't be started: Permission denied"),
            (shutil.which("false") or "", "it ended with status 1 and said 'nothing'"),
            (shutil.which("ls") or "", "isn't a Python 3.8 or later"),
        ],
    )
    def test_no_interpreter(self, interpreter: str, why: str) -> None:
        with pytest.raises(MeasurementError, match=r"interpreter '") as caught:
            machine.recognise_software(interpreter)
        assert why in caught.value.message
        assert interpreter in caught.value.message

    def test_an_interpreter_that_hangs(self, tmp_path: Path, monkeypatch: Any) -> None:
        program = tmp_path / "python"
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)
        monkeypatch.setattr(machine, "INTERPRETER_DEADLINE_SECONDS", 0.2)
        with pytest.raises(MeasurementError, match="didn't answer within"):
            machine.recognise_software(str(program))
