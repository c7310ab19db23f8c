"""Run by the user's interpreter: times matrix products and copies with its torch, one JSON a line.

Started as `python calibration_child.py JSON` with {"tasks": [...], "seconds": per task}; a task is
{"operator": "matmul" | "copy", "dtype": ..., "device": "cpu" | "cuda", "threads": number}. It says
{"ready": torch's version} when torch is imported, {"begun": i} before the i-th task, then
{"done": i, "parameters": shapes, "samples": seconds per call} or {"failed": i, "reason": ...,
"detail": ...}. Needs the standard library of Python 3.8, and torch 1.13 or later.
"""

from __future__ import annotations

import sys

# First of all: no module beside this file may stand in for one of Python's or torch's.
sys.path[:] = [folder for folder in sys.path if folder not in ("", __file__.rpartition("/")[0])]

import json  # noqa: E402
import time  # noqa: E402
from typing import Any, Callable  # noqa: E402, UP035 (Python 3.8)

MIN_SAMPLES = 5
MAX_SAMPLES = 100
# A sample shorter than this tells more about the clock and the launch of a call than its speed.
SAMPLE_SECONDS = {"cpu": 0.005, "cuda": 0.02}
# The smallest matrix whose product lasts this long is large enough to reach the sustained speed.
CALL_SECONDS = {"cpu": 0.02, "cuda": 0.002}
EDGES = (512, 1024, 2048, 4096, 8192, 16384)
# A copy must not fit into any cache, nor take more of the memory than others can spare.
COPY_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
MEMORY_SHARE = 8

TORCH_DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def say(message: dict[str, Any]) -> None:
    """A line of its own to the parent, whatever torch or a site module may have begun to print."""
    sys.stdout.write("\n" + json.dumps(message) + "\n")
    sys.stdout.flush()


def timed(call: Callable[[], object], wait: Callable[[], object], calls: int) -> float:
    """Seconds per call of `calls` calls in a row, the device's work included."""
    wait()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - started) / calls


def sample(call: Callable[[], object], wait: Callable[[], object], **limits: float) -> list[float]:
    """Warm up, then sample until `seconds` are used; each sample lasts `sample_seconds` or more."""
    timed(call, wait, 1)
    calls = max(1, int(limits["sample_seconds"] / max(timed(call, wait, 1), 1e-7)) + 1)
    timed(call, wait, calls)
    until = time.perf_counter() + limits["seconds"]
    samples: list[float] = []
    while len(samples) < MAX_SAMPLES:
        samples.append(timed(call, wait, calls))
        now = time.perf_counter()
        # One sample must do where a single call outlasts everything (bf16 without hardware for it).
        if now > until + limits["seconds"] or (now > until and len(samples) >= MIN_SAMPLES):
            break
    return samples


def matmul(torch: Any, task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Time a square matrix product just large enough."""
    kind = task["device"]
    dtype = getattr(torch, TORCH_DTYPES[task["dtype"]])
    torch.backends.cuda.matmul.allow_tf32 = task["dtype"] == "tf32"
    wait = torch.cuda.synchronize if kind == "cuda" else int
    until = time.perf_counter() + seconds / 2
    for edge in EDGES:
        left = torch.randn(edge, edge, device=kind).to(dtype)
        right = torch.randn(edge, edge, device=kind).to(dtype)
        out = torch.empty(edge, edge, device=kind, dtype=dtype)

        def call(left: Any = left, right: Any = right, out: Any = out) -> object:
            return torch.mm(left, right, out=out)

        # The first call of a size may load its kernel; another process may hold one up.
        took = min(timed(call, wait, 1) for _ in range(3))
        # The next size takes eight times as long.
        if took >= CALL_SECONDS[kind] or time.perf_counter() + 16 * took > until:
            break
    samples = sample(call, wait, seconds=seconds, sample_seconds=SAMPLE_SECONDS[kind])
    shape = {"m": edge, "n": edge, "k": edge, "dtype": task["dtype"]}
    return {"parameters": shape, "samples": samples}


def copy(torch: Any, task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Time a copy of a block of memory that no cache holds."""
    kind = task["device"]
    wait = torch.cuda.synchronize if kind == "cuda" else int
    free = torch.cuda.mem_get_info()[0] if kind == "cuda" else available_bytes()
    block = min(COPY_BYTES[kind], free // MEMORY_SHARE)
    # A round number of elements, so that another day's calibration times the same workload.
    elements = 1 << max(10, (block // 4).bit_length() - 1)
    source = torch.ones(elements, device=kind)
    target = torch.empty_like(source)
    samples = sample(
        lambda: target.copy_(source), wait, seconds=seconds, sample_seconds=SAMPLE_SECONDS[kind]
    )
    return {"parameters": {"elements": elements, "dtype": "fp32"}, "samples": samples}


def available_bytes() -> int:
    """Host memory that can be had without swapping; 1 GiB where Linux doesn't say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 (no pathlib needed)
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 30


def reason_of(error: BaseException) -> str:
    """The parent's name for what went wrong."""
    text = f"{type(error).__name__} {error}".lower()
    return "out_of_memory" if isinstance(error, MemoryError) or "memory" in text else "crash"


def perform(torch: Any, task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One task; RuntimeError where this torch has no such device."""
    if task["device"] == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
    torch.set_num_threads(task["threads"])
    operators = {"matmul": matmul, "copy": copy}
    with torch.no_grad():
        return operators[task["operator"]](torch, task, seconds)


def main() -> None:
    """Perform every task; what one raises is told and the next one begun."""
    order = json.loads(sys.argv[1])
    import torch

    say({"ready": str(torch.__version__)})
    for index, task in enumerate(order["tasks"]):
        say({"begun": index})
        try:
            say({"done": index, **perform(torch, task, order["seconds"])})
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            detail = f"{type(error).__name__}: {lines[0]}"[:300]
            say({"failed": index, "reason": reason_of(error), "detail": detail})


if __name__ == "__main__":
    main()
