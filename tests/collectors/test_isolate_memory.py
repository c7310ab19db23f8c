"""The host memory of isolated processes: what is seen of it, its limit, the kernel's kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors import processes
from collectors.isolate import classify_failure
from collectors.processes import peak_resident_bytes
from perfmodel.records import FailureReason

HOLD = """
import os, sys, time
held = bytearray(int(sys.argv[1]) << 20)
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        if sys.argv[3] == "own":
            held = bytearray(int(sys.argv[1]) << 20)
            held[::4096] = bytes([1]) * len(held[::4096])
        break
time.sleep(float(sys.argv[4]))
"""


class TestMemory:
    def test_peaks_of_processes_that_run_and_that_ended(
        self, isolated: Any, tmp_path: Path
    ) -> None:
        code = (
            "import pathlib, sys, time; b = bytearray(b'x') * (80 << 20); del b;"
            "pathlib.Path(sys.argv[1]).touch(); time.sleep(120)"
        )
        with isolated.start(code, str(tmp_path / "ready")) as process:
            assert isolated.eventually((tmp_path / "ready").exists)
            peaks = peak_resident_bytes([process.pid, 2**22 + 1])
            resident = processes.resident_bytes([process.pid])
            proportional = processes.proportional_bytes([process.pid])
        assert list(peaks) == [process.pid]
        assert peaks[process.pid] > 80 << 20
        assert 0 < resident < 80 << 20
        assert 0 < proportional <= resident * 1.1
        largest = isolated.run("b = bytearray(b'x') * (80 << 20)").largest_resident_bytes
        assert largest is not None
        assert 80 << 20 < largest < 160 << 20

    def test_a_tree_over_the_limit_is_killed(self, isolated: Any) -> None:
        with isolated.start(
            HOLD, "60", "2", "own", "1000", memory_limit_bytes=120 << 20
        ) as process:
            ended = isolated.finish(process)
        assert ended.out_of_memory
        assert not ended.ordered
        failure = classify_failure(ended)
        assert failure.reason == FailureReason.OUT_OF_MEMORY
        assert "over the limit of 120 MiB" in failure.detail

    def test_pages_shared_by_workers_count_once(self, isolated: Any) -> None:
        code = HOLD.replace("bytearray(int(sys.argv[1]) << 20)", "b'x' * (int(sys.argv[1]) << 20)")
        ended = isolated.run(code, "60", "4", "shared", "0.5", memory_limit_bytes=150 << 20)
        assert ended.succeeded

    def test_the_kernel_prefers_the_trial_and_writes_no_core(self, isolated: Any) -> None:
        code = (
            "import resource; print(open('/proc/self/oom_score_adj').read().strip(),"
            "resource.getrlimit(resource.RLIMIT_CORE)[0])"
        )
        score, core = isolated.run(code).output.split()
        assert int(score) >= 500
        assert core == "0"


@pytest.mark.slow
def test_a_kill_by_the_kernel_is_seen(isolated: Any) -> None:
    """In a control group of our own, where this machine lets us make one."""
    groups = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    limits = ["memory.limit_in_bytes", "memory.max"]
    for root, limit in zip(groups, limits, strict=True):
        group = root / f"perfmodel-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(60 << 20))
            break
        except OSError:
            if group.exists():
                group.rmdir()
    else:
        pytest.skip("can't make a memory control group here")
    enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    code = (
        f"import os, sys; {enter}; sys.path.insert(0, {str(isolated.root)!r})\n"
        "from collectors.isolate import *\n"
        "hog = 'b = [bytearray(b\"x\") * (1 << 20) for _ in range(500)]'\n"
        "with IsolatedProcess.start([sys.executable, '-c', hog], environment={}) as p:\n"
        "    print(classify_failure(p.wait(60)).detail)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        isolated.eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert "kernel's OOM killer: the memory of its control group" in done.stdout, done.stderr
