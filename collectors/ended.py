"""How an isolated process ended, and which failure that is."""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, replace

from perfmodel.records import Failure, FailureReason

_DETAIL_CHARACTERS = 300
_LINES_SEARCHED = 400  # a deep chain of tracebacks, each rank's included

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# "ValueError: text", "torch.OutOfMemoryError: text", "[rank0]: KeyError: 'x'", "MemoryError".
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]:\s?|\S+ \d+:\s?)?"
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Failed|Fault|Exit|Unsupported|Interrupt)"
    r"|StopIteration|[A-Z]\w+Resources)(?::\s.*)?)$"
)
_LAUNCHER_ERRORS = ("ChildFailedError", "SignalException", "ProcessRaisedException")

_OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|\bout of memory\b|(?<![\w.])_?(?:Array)?MemoryError\b"
    r"|numpy\S*_ArrayMemoryError|DefaultCPUAllocator|(?:can'?t|[Cc]annot) allocate memory"
    r"|std::bad_alloc|(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|insufficient shared memory|RESOURCE_EXHAUSTED"
)
_COMPILE_ERROR = re.compile(
    r"torch\._(?:dynamo|inductor)\.exc\.|\bBackendCompilerFailed\b|\bInductorError\b"
    r"|\bCppCompileError\b|\bCUDACompileError\b|\bCompilationError\b|triton\.compiler\.errors\."
    r"|\bOutOfResources\b"
)
# torchrun kills its healthy ranks after a failure too: only the root cause tells.
# What torchrun says after a worker has failed: the script's own words come before it.
_LAUNCHER_REPORT = re.compile(
    r"^.*torch/distributed/elastic/multiprocessing/api\.py:\d+\] "
    r"(?:failed \(exitcode|Sending process)",
    re.MULTILINE,
)
_CHILD_KILLED = re.compile(
    r"Root Cause[^\n]*\n(?:[^\n]*\n){0,6}?\s*exitcode\s*:\s*-9\b|killed by signal: Killed"
    r"|terminated with signal SIGKILL|died with <Signals\.SIGKILL"
)

_SIGNAL_WORDS = {
    signals.SIGSEGV: "segmentation fault",
    signals.SIGBUS: "bus error (often a full /dev/shm)",
    signals.SIGABRT: "aborted",
    signals.SIGFPE: "arithmetic fault",
    signals.SIGILL: "illegal instruction (built for another processor?)",
}


@dataclass(frozen=True)
class Ended:
    """How an isolated process ended; by now every process it had started is gone.

    Exactly one of `exit_code` and `signal` is set, except when the process could not be observed to
    its end (`lost` says why), where both are None. `ordered` means that `IsolatedProcess.end` ended
    it, so its exit code and signal say nothing about the script.
    """

    exit_code: int | None = None
    signal: int | None = None
    ordered: bool = False
    output: str = ""
    """The last 64 KiB of what it printed, stdout and stderr merged in the order of writing."""
    output_bytes: int = 0
    """How much it printed in all."""
    largest_resident_bytes: int | None = None
    """Peak resident set of the largest process among the command and what it waited for."""
    memory_limit_bytes: int | None = None
    over_limit_bytes: int | None = None
    """What the trial's processes held when they were killed for passing the limit."""
    group_oom_kills: int | None = None
    """Kills by the kernel's OOM killer in this control group meanwhile; None if unreadable."""
    machine_oom_kills: int | None = None
    """The same for the whole machine, other people's processes included."""
    survivors: tuple[int, ...] = ()
    """Processes that could not be killed (another user's, or stuck in the kernel)."""
    lost: str = ""

    @property
    def return_code(self) -> int | None:
        """The exit code, or minus the signal, as in `subprocess`."""
        return -self.signal if self.signal is not None else self.exit_code

    @property
    def succeeded(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.ordered and self.over_limit_bytes is None

    @property
    def effective_signal(self) -> int | None:
        """The signal that ended it, also where a shell in between reports 128 + signal."""
        if self.signal is None and self.exit_code is not None and 128 < self.exit_code < 160:
            return self.exit_code - 128
        return self.signal

    @property
    def last_words(self) -> str:
        """The last 20 lines it printed, without a launcher's report about itself."""
        return last_lines(_own_words(self.output))

    @property
    def out_of_memory(self) -> bool:
        """Whether host memory ended it: our limit, the kernel's OOM killer, or inferred."""
        return bool(self.memory_detail)

    @property
    def memory_detail(self) -> str:
        """Why this counts as out of (host) memory, in words; "" if it doesn't."""
        if self.over_limit_bytes is not None:
            return (
                f"its processes held {_size(self.over_limit_bytes)} of memory, over the limit of "
                f"{_size(self.memory_limit_bytes or 0)}"
            )
        # A kill that the kernel counted may have been another process of the control group.
        killed = self.effective_signal == signals.SIGKILL and not self.ordered
        if self.succeeded or not (killed or _CHILD_KILLED.search(self.output)):
            return ""
        who = "killed" if killed else "one of its processes was killed"
        if self.group_oom_kills:
            return f"{who} by the kernel's OOM killer: the memory of its control group ran out"
        if self.ordered:
            return ""
        if self.machine_oom_kills:
            return f"{who} by the kernel's OOM killer: the machine's memory ran out"
        return f"{who} with SIGKILL by none of ours: inferred to be out of memory"


def _own_words(output: str) -> str:
    """The output without the report of a launcher at its end, unless there is nothing else."""
    report = _LAUNCHER_REPORT.search(output)
    own = output[: report.start()] if report else output
    return own if own.strip() else output


def last_lines(text: str, count: int = 20) -> str:
    """The last `count` lines that aren't empty, as a terminal would show them, without colours."""
    lines: list[str] = []
    for raw in reversed(text.split("\n")):
        line = _visible(raw)
        if line.strip():
            lines.append(line)
        if len(lines) == count:
            break
    return "\n".join(reversed(lines))


def classify_failure(ended: Ended, *, deadline_seconds: float | None = None) -> Failure:
    """Which failure this end is.

    `deadline_seconds` is given by who ended the process for being late. Out of memory comes first:
    a launcher may well hang after one of its ranks was killed for memory.
    """
    failure = _classified(ended, deadline_seconds)
    return replace(failure, output=ended.last_words)


def _classified(ended: Ended, deadline_seconds: float | None) -> Failure:
    code = ended.return_code
    if ended.out_of_memory:
        return Failure(FailureReason.OUT_OF_MEMORY, ended.memory_detail, code)
    exceptions, lines = _exceptions_and_lines(ended.output)
    # Where an exception tells the cause, other lines (a log, a hint) don't. Neither do they where
    # the process was ended on order: it had gone on after them.
    told = ended.ordered or (exceptions and ended.effective_signal is None)
    elsewhere = [] if told else lines
    if not ended.succeeded and (line := _find(_OUT_OF_MEMORY, exceptions, elsewhere)):
        return Failure(FailureReason.OUT_OF_MEMORY, _short(line), code)
    if deadline_seconds is not None:
        detail = f"still running after the deadline of {deadline_seconds:g} s"
        if ended.group_oom_kills:
            detail += "; meanwhile the kernel's OOM killer killed a process of its control group"
        return Failure(FailureReason.TIMEOUT, detail, code)
    if ended.succeeded:
        detail = "ended by itself with exit code 0, without what was waited for"
        return Failure(FailureReason.NO_STEPS, detail, code)
    if line := _find(_COMPILE_ERROR, exceptions, []):
        return Failure(FailureReason.COMPILE_ERROR, _short(line), code)
    return Failure(FailureReason.CRASH, _crash_detail(ended, exceptions), code)


def _crash_detail(ended: Ended, exceptions: list[str]) -> str:
    if ended.lost:
        return ended.lost
    number = ended.effective_signal
    if number is not None and not ended.ordered:
        try:
            name = signals.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        words = _SIGNAL_WORDS.get(signals.Signals(number)) if name.startswith("SIG") else None
        cause = f": {_short(exceptions[-1])}" if exceptions else ""
        return f"{words} ({name}){cause}" if words else f"ended by {name}{cause}"
    if exceptions:
        own = [line for line in exceptions if not any(name in line for name in _LAUNCHER_ERRORS)]
        return _short((own or exceptions)[-1])
    own_lines = ended.last_words.splitlines()
    how = "ended on order" if ended.ordered else f"exit code {ended.exit_code}"
    return f"{how}: {_short(own_lines[-1])}" if own_lines else f"{how}, nothing printed"


def _exceptions_and_lines(output: str) -> tuple[list[str], list[str]]:
    """The lines that name an exception, and all lines, of the end of the output."""
    lines = last_lines(output, _LINES_SEARCHED).split("\n") if output else []
    lines = [line for line in lines if line.strip()]
    found = (_EXCEPTION.match(line.rstrip()) for line in lines)
    return [match.group(1) for match in found if match], lines


def _find(pattern: re.Pattern[str], first: list[str], then: list[str]) -> str:
    """The last line that matches: among the exceptions if any does, else among all lines."""
    for lines in (first, then):
        for line in reversed(lines):
            if pattern.search(line):
                return line
    return ""


def _visible(line: str) -> str:
    """A line without escape sequences, and what is left of it after its carriage returns."""
    parts = [part for part in _ESCAPES.sub("", line).split("\r") if part.strip()]
    return _CONTROLS.sub("", parts[-1]) if parts else ""


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _DETAIL_CHARACTERS else text[: _DETAIL_CHARACTERS - 1] + "…"


def _size(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
