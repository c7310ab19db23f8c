"""Which failure an end is, from the texts that real programs leave."""

from __future__ import annotations

import signal

import pytest

from collectors.ended import Ended, classify_failure, last_lines
from perfmodel.records import FailureReason

OOM, CRASH = FailureReason.OUT_OF_MEMORY, FailureReason.CRASH
COMPILE_ERROR, TIMEOUT = FailureReason.COMPILE_ERROR, FailureReason.TIMEOUT

CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\n'
TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 5, in <module>
[rank1]: KeyError: 'labels'
E1201 15:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2025-12-01_15:00:00
  exitcode  : 1 (pid: 4243)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("output", "reason", "detail"),
    [
        (TRACEBACK + CUDA + "\n", OOM, CUDA),
        (TRACEBACK + f"[rank0]: {CUDA}\nmore\n", OOM, CUDA),
        (TRACEBACK + "torch.cuda.OutOfMemoryError: HIP out of memory.", OOM, None),
        (TRACEBACK + "RuntimeError: CUDA error: out of memory", OOM, None),
        (TRACEBACK + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when", OOM, None),
        (TRACEBACK + "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPU"
         "Allocator: can't allocate memory: you tried to allocate 4 bytes.", OOM, None),
        (TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB", OOM,
         "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB"),
        (TRACEBACK + "OSError: [Errno 12] Cannot allocate memory", OOM, None),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n", OOM, None),
        (TRACEBACK + "MemoryError\n\nDuring handling of the above exception, another exception "
         "occurred:\n\n" + TRACEBACK + "RuntimeError: training failed\n", OOM, "MemoryError"),
        (TRACEBACK + "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ", OOM,
         "one of its processes was killed with SIGKILL by none of ours: inferred to be out of "
         "memory"),
        (TRACEBACK + "torch._inductor.exc.InductorError: CppCompileError: C++ compile error",
         COMPILE_ERROR, None),
        (TRACEBACK + "triton.compiler.errors.CompilationError: at 3:4:", COMPILE_ERROR, None),
        (TORCHRUN, CRASH, "KeyError: 'labels'"),
        (TORCHRUN.replace("  exitcode  : 1", "  exitcode  : -9"), OOM, None),
        (TORCHRUN.replace("Root", "[1]:\n  exitcode  : -9 (pid: 7)\nRoot"), CRASH,
         "KeyError: 'labels'"),
        ("hint: smaller batches if you run out of memory\n" + TRACEBACK + "ValueError: 3", CRASH,
         "ValueError: 3"),
        (TRACEBACK + "mine.errors.BadConfigError: no such key", CRASH,
         "mine.errors.BadConfigError: no such key"),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n", CRASH,
         "exit code 1: train.py: error: unrecognized arguments: --x"),
        ("\x1b[31mbad\x1b[0m\n\n", CRASH, "exit code 1: bad"),
        (TRACEBACK + f"ValueError: {'x' * 400}", CRASH, f"ValueError: {'x' * 287}…"),
    ],
)  # fmt: skip
def test_what_was_printed(output: str, reason: FailureReason, detail: str | None) -> None:
    failure = classify_failure(Ended(exit_code=1, output=output))
    assert failure.reason == reason
    assert failure.exit_code == 1
    if detail is not None:
        assert failure.detail == detail
    assert "\n" not in failure.detail
    assert len(failure.detail) <= 300


@pytest.mark.parametrize(
    ("ended", "reason", "said"),
    [
        (Ended(signal=signal.SIGKILL), OOM, "inferred"),
        (Ended(exit_code=137), OOM, "inferred"),
        (Ended(signal=signal.SIGKILL, machine_oom_kills=2), OOM, "the machine's memory ran out"),
        (Ended(exit_code=1, group_oom_kills=1), CRASH, "exit code 1"),
        (Ended(exit_code=1, group_oom_kills=1, output=TRACEBACK + "ValueError: 3"), CRASH,
         "ValueError: 3"),
        (Ended(signal=signal.SIGKILL, group_oom_kills=1), OOM, "its control group ran out"),
        (Ended(exit_code=1, group_oom_kills=1, output="worker killed by signal: Killed. \n"), OOM,
         "one of its processes was killed by the kernel's OOM killer"),
        (Ended(exit_code=1, machine_oom_kills=1), CRASH, "exit code 1"),
        (Ended(signal=15, ordered=True, group_oom_kills=1), TIMEOUT, "meanwhile the kernel's OOM"),
        (Ended(signal=15, ordered=True, group_oom_kills=1, output="killed by signal: Killed\n"),
         OOM, "its control group ran out"),
        (Ended(signal=9, ordered=True, machine_oom_kills=1), TIMEOUT, "deadline of 60 s"),
        (Ended(signal=9, over_limit_bytes=3 << 30, memory_limit_bytes=2 << 30), OOM,
         "its processes held 3.00 GiB of memory, over the limit of 2.00 GiB"),
        (Ended(signal=15, ordered=True, output=TRACEBACK + CUDA), OOM, "CUDA out of memory"),
        (Ended(signal=15, ordered=True, output="out of memory: halving batch\n"), TIMEOUT,
         "60 s"),
        (Ended(exit_code=139), CRASH, r"segmentation fault (SIGSEGV)"),
        (Ended(signal=6, output="terminate called\nRuntimeError: NCCL error\n"), CRASH,
         "aborted (SIGABRT): RuntimeError: NCCL error"),
        (Ended(lost="the watcher was killed"), CRASH, "the watcher was killed"),
    ],
)  # fmt: skip
def test_how_it_ended(ended: Ended, reason: FailureReason, said: str) -> None:
    deadline = 60.0 if ended.ordered else None
    failure = classify_failure(ended, deadline_seconds=deadline)
    assert failure.reason == reason
    assert said in failure.detail
    assert failure.exit_code == ended.return_code


def test_out_of_memory_in_the_log_of_a_success_is_no_failure() -> None:
    ended = Ended(exit_code=0, output=f"caught {CUDA}, halving the batch\n", group_oom_kills=1)
    assert ended.succeeded
    assert not ended.out_of_memory
    assert classify_failure(ended).reason == FailureReason.NO_STEPS


def test_last_lines_are_what_a_terminal_shows() -> None:
    bar = "\r".join(f"{n:3}%|{'█' * n}" for n in range(4))
    text = f"one\n\n\x1b[1mtwo\x1b[0m\x07\n{bar}\r\n\x1b]0;title\x07three\n"
    assert last_lines(text, 3) == "two\n  3%|███\nthree"
    assert last_lines(text) == "one\ntwo\n  3%|███\nthree"
    assert last_lines("") == ""
    assert last_lines("\n".join(map(str, range(99)))).split("\n") == [str(n) for n in range(79, 99)]


def test_a_launchers_report_hides_no_cause() -> None:
    """torchrun ends with a page about itself; the reason is what the script said before it."""
    output = (
        "python: can't open file 'nofile.py': [Errno 2] No such file or directory\n"
        "E1201 16:20:46.790000 1956 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
        "(exitcode: 2) local_rank: 0 (pid: 1964) of binary: python\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================\nnofile.py FAILED\n============================\n"
    )
    failure = classify_failure(Ended(exit_code=1, output=output))
    assert failure.detail.endswith("[Errno 2] No such file or directory")
    assert failure.output.count("\n") == 0
