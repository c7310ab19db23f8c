"""The host's CPU as a device: its name, instruction set, cores this process may use, memory."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from collectors.cgroups import group_folders
from collectors.processes import read_text
from perfmodel.hardware import clean
from perfmodel.records import Device

_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}
_ARM_VENDORS = {
    0x41: "ARM", 0x42: "Broadcom", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x50: "Ampere", 0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere",
}  # fmt: skip
_ARM_PARTS = {
    (0x41, 0xD08): "Cortex-A72", (0x41, 0xD0C): "Neoverse N1", (0x41, 0xD40): "Neoverse V1",
    (0x41, 0xD49): "Neoverse N2", (0x41, 0xD4F): "Neoverse V2",
}  # fmt: skip

# The levels of the x86-64 psABI by the names Linux gives their flags.
_LEVELS = (
    (2, {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    (3, {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    (4, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)
# Extensions beyond a level that decide how fast a low-precision product is.
_X86_EXTENSIONS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
_ARM_EXTENSIONS = ("sve", "sve2", "bf16", "i8mm")

# Names a hypervisor gives to any processor; the last two have digits, yet name no model.
_GENERIC = re.compile(r"^[^\d]*$|\bqemu\b|\bkvm\b", re.IGNORECASE)
_CLOCK = re.compile(r"@\s*[\d.]+\s*[GM]Hz", re.IGNORECASE)


def describe_processor(root: Path = Path("/")) -> Device:
    """The CPU as Linux describes it under `root`; the same facts in every run on one machine."""
    info = _first_processor(root)
    cpus = allowed_cpus()
    return Device(
        kind="cpu",
        vendor=_vendor(info),
        model=_model(info),
        architecture=_architecture(info),
        memory_bytes=nominal_bytes(memory_bytes(root)),
        units=max(1, int(min(physical_cores(cpus, root), cpu_quota(root)))),
    )


def allowed_cpus() -> frozenset[int]:
    """Logical CPUs the scheduler may run this process on."""
    return frozenset(os.sched_getaffinity(0))


def available_cpus(root: Path = Path("/")) -> int:
    """Logical CPUs this process may keep busy: its affinity, within the cgroup's quota."""
    return max(1, int(min(len(allowed_cpus()), cpu_quota(root))))


def physical_cores(cpus: Collection[int], root: Path = Path("/")) -> int:
    """How many physical cores `cpus` lie on; their number where Linux doesn't say."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package = read_text(str(topology / "physical_package_id")).strip()
        core = read_text(str(topology / "core_id")).strip()
        cores.add((package, core) if package and core else (str(cpu), "logical"))
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs' worth of time the process's cgroups allow; infinity without a limit."""
    return min(
        (_quota(folder, version) for version, folder in group_folders("cpu", str(root))),
        default=math.inf,
    )


def nominal_bytes(reported: int) -> int:
    """A memory's size as it is sold: `reported` rounded up to an eighth of its power of two.

    What is reported changes by kilobytes with each kernel or driver and lies some 0.5 to 5 % under
    the nominal size (23.5 of 24 GiB, 15.6 of 16, 79.6 of 80). The edges below those sizes are 6 to
    9 % down (22, 15, 72), so that a machine stays the same device, and its twin is the same one.
    """
    step = 1 << max(reported.bit_length() - 4, 0)
    return -(-reported // step) * step


def memory_bytes(root: Path = Path("/")) -> int:
    """The machine's memory as Linux reports it (MemTotal), 0 where it doesn't."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read_text(str(root / "proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The tightest memory limit of the process's cgroups, None without one below MemTotal."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    folders = group_folders("memory", str(root))
    limits = [read_text(f"{folder}/{names[version]}").strip() for version, folder in folders]
    tightest = min((int(limit) for limit in limits if limit.isdigit()), default=0)
    return tightest if 0 < tightest < memory_bytes(root) else None


def clock_hertz(root: Path = Path("/")) -> float | None:
    """Mean present clock of the CPUs, None where Linux doesn't say."""
    text = read_text(str(root / "proc/cpuinfo"))
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    return 1e6 * sum(clocks) / len(clocks) if clocks else None


def _first_processor(root: Path) -> Mapping[str, str]:
    """The first block of /proc/cpuinfo, keys in lower case."""
    block = read_text(str(root / "proc/cpuinfo")).split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip().lower(): value.strip() for key, value in pairs}


def _vendor(info: Mapping[str, str]) -> str:
    if "cpu implementer" in info:
        return _ARM_VENDORS.get(_number(info, "cpu implementer"), "ARM")
    vendor = info.get("vendor_id", "")
    return _VENDORS.get(vendor, vendor) or "unknown"


def _model(info: Mapping[str, str]) -> str:
    """The CPU's own name, with what tells two processors apart that are named alike."""
    if "cpu implementer" in info:
        code = (_number(info, "cpu implementer"), _number(info, "cpu part"))
        name = _ARM_PARTS.get(code, f"{_vendor(info)} part {code[1]:#x}")
        return f"{name} r{_number(info, 'cpu variant')}p{_number(info, 'cpu revision')}"
    name = clean(info.get("model name", "")) or platform.machine()
    if not _GENERIC.search(_CLOCK.sub("", name)):
        return name
    signature = ("cpu family", "model", "stepping")
    told = [f"{key.removeprefix('cpu ')} {info[key]}" for key in signature if key in info]
    return f"{name} ({', '.join(told)})" if told else name


def _architecture(info: Mapping[str, str]) -> str:
    machine = platform.machine()
    if "cpu implementer" in info:
        features = set(info.get("features", "").split())
        return "+".join(("aarch64", *(e for e in _ARM_EXTENSIONS if e in features)))
    if "flags" not in info:
        return machine
    flags = set(info["flags"].split())
    level = 1
    for number, needed in _LEVELS:
        if needed - flags:
            break
        level = number
    return "+".join((f"x86-64-v{level}", *(e for e in _X86_EXTENSIONS if e in flags)))


def _quota(folder: str, version: int) -> float:
    if version == 2:
        words = read_text(f"{folder}/cpu.max").split()
    else:
        words = [read_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    # "max" and -1 stand for no limit.
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return math.inf


def _number(info: Mapping[str, str], key: str) -> int:
    try:
        return int(info.get(key, "0"), 0)
    except ValueError:
        return 0
