"""Isolation with real processes: what they print, hold and leave behind, and how they end."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors import processes
from collectors.isolate import Ended, IsolatedProcess, classify_failure, peak_resident_bytes
from perfmodel.errors import MeasurementError
from perfmodel.records import FailureReason

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = (
    30.0  # for a loaded machine; a failing test takes this long, a passing one doesn't
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a subreaper, /proc")

# Sleepers of every kind that tends to be left behind; each adds its pid to the file argv[1]. With
# "ignore" they ignore what can be ignored; with "exit" the first process ends by itself.
TREE = """
import os, signal, sys, time
def note():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
def sleeper(*steps):
    if os.fork():
        return
    for step in steps:
        if step == "setsid":
            os.setsid()
        elif os.fork():
            os._exit(0)
    note()
    while True:
        time.sleep(120)
if "ignore" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
sleeper()
sleeper("setsid")
sleeper("setsid", "fork")
sleeper("fork", "setsid", "fork")
note()
while len(open(sys.argv[1]).read().split()) < 5:
    time.sleep(0.005)
if "exit" in sys.argv:
    sys.exit(7)
print("ready", flush=True)
while True:
    time.sleep(120)
"""

# A program that isolates TREE and then waits, as `tune` does.
PARENT = """
import os, sys, time
sys.path.insert(0, {root!r})
from collectors.isolate import IsolatedProcess
with IsolatedProcess.start([sys.executable, "-c", {tree!r}, *sys.argv[1:]], environment={{}}) as p:
    while "ready" not in p.output_tail():
        time.sleep(0.01)
    {before}
    print("ready", flush=True)
    p.wait()
"""


def start(code: str, *arguments: str, **options: object) -> IsolatedProcess:
    options.setdefault("environment", {})
    return IsolatedProcess.start([sys.executable, "-c", code, *arguments], **options)  # type: ignore[arg-type]


def finish(process: IsolatedProcess) -> Ended:
    ended = process.wait(PATIENCE_SECONDS)
    assert ended is not None, "still running"
    return ended


def run(code: str, *arguments: str, **options: object) -> Ended:
    with start(code, *arguments, **options) as process:
        return finish(process)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie waits for a reaper that isn't ours, it runs no more."""

    def state(pid: int) -> str:
        text = processes.read_text(f"/proc/{pid}/stat")
        return text[text.rindex(")") + 2] if text else "Z"

    return [pid for pid in pids if state(pid) not in "ZX"]


def pids_in(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()]


@pytest.fixture
def tree_parent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program that isolates a tree of sleepers; returns once all of them run."""
    started = []

    def begin(*arguments: str, before: str = "pass") -> subprocess.Popen[str]:
        code = PARENT.format(root=str(ROOT), tree=TREE, before=before)
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "pids"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(parent)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert len(alive(pids_in(tmp_path / "pids"))) == 5
        return parent

    yield begin
    for parent in started:
        parent.kill()
        parent.wait()
        if parent.stdout:
            parent.stdout.close()


class TestRunning:
    def test_output_is_merged_in_order_and_the_exit_code_kept(self) -> None:
        code = "import os, sys; [os.write(1 + i % 2, b'%d ' % i) for i in range(6)]; sys.exit(3)"
        ended = run(code)
        assert ended.output == "0 1 2 3 4 5 "
        assert ended.output_bytes == 12
        assert (ended.exit_code, ended.signal, ended.return_code) == (3, None, 3)
        assert not ended.ordered
        assert not ended.succeeded
        assert ended.survivors == ()

    def test_the_environment_given_is_the_whole_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OF_THE_PARENT", "1")
        code = "import os; print(sorted(os.environ.items()))"
        environment = {"A": "b=c\n", "LC_ALL": "C.UTF-8", "É": "ü\udcff"}
        assert run(code, environment=environment).output.strip() == str(sorted(environment.items()))

    def test_stdin_is_empty_and_the_directory_is_the_one_asked_for(self, tmp_path: Path) -> None:
        code = "import os, sys; print(repr(sys.stdin.read()), os.getcwd())"
        assert run(code, directory=tmp_path).output == f"'' {tmp_path.resolve()}\n"

    def test_it_leads_a_session_without_our_descriptors_and_signals(self) -> None:
        code = (
            "import os, signal; print(os.getpid() == os.getsid(0) == os.getpgrp(),"
            "sorted(int(n) for n in os.listdir('/dev/fd') if int(n) > 3),"
            "signal.pthread_sigmask(signal.SIG_BLOCK, []),"
            "signal.getsignal(signal.SIGINT).__name__)"
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})
        try:
            output = run(code).output
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert output == "True [] set() default_int_handler\n"

    def test_the_parent_keeps_its_signal_handlers(self) -> None:
        numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
        before = [signal.getsignal(n) for n in numbers]
        run("pass")
        assert [signal.getsignal(n) for n in numbers] == before

    def test_a_selector_says_when_it_has_ended(self) -> None:
        with (
            start("import time; print('x' * 300_000); time.sleep(0.2)") as process,
            selectors.DefaultSelector() as selector,
        ):
            assert process.poll() is None
            selector.register(process, selectors.EVENT_READ)
            while process.poll() is None:
                assert selector.select(PATIENCE_SECONDS)
            selector.unregister(process)
        assert finish(process).output_bytes == 300_001

    def test_several_at_once_from_several_threads(self) -> None:
        codes: dict[int, int | None] = {}

        def one(number: int) -> None:
            codes[number] = run(f"import sys; sys.exit({number})").exit_code

        threads = [threading.Thread(target=one, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == {number: number for number in range(5)}

    def test_the_warden_imports_the_standard_library_only(self) -> None:
        code = (
            f"import sys; sys.path.append({str(ROOT)!r}); from collectors.warden import main;"
            "print(*sorted(m for m in sys.modules"
            " if m.split('.')[0] not in sys.stdlib_module_names))"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "__main__ collectors collectors.processes collectors.warden\n"


class TestCannotStart:
    @pytest.mark.parametrize(
        ("name", "content", "mode", "said"),
        [
            ("no-such-program", None, 0, r"'no-such-program' not found in PATH=/nowhere"),
            ("./missing", None, 0, r"'./missing' not found$"),
            ("./plain", "echo", 0o644, r"'./plain' isn't executable .*chmod"),
            ("./headless", "echo", 0o755, r"'./headless' is no program and has no #! line"),
            ("./orphan", "#!/no/such/python\n", 0o755, r"'./orphan': the interpreter .*first line"),
            ("./", None, 0, r"'./' is a directory"),
        ],
    )
    def test_the_command_is_named(
        self, tmp_path: Path, name: str, content: str | None, mode: int, said: str
    ) -> None:
        if content is not None:
            (tmp_path / name).write_text(content)
            (tmp_path / name).chmod(mode)
        with pytest.raises(MeasurementError, match=said):
            IsolatedProcess.start([name], environment={"PATH": "/nowhere"}, directory=tmp_path)

    def test_the_directory_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MeasurementError, match=r"directory '.*/gone': No such file"):
            start("pass", directory=tmp_path / "gone")

    @pytest.mark.parametrize("command", [[], [""]])
    def test_an_empty_command(self, command: list[str]) -> None:
        with pytest.raises(MeasurementError, match="the command is empty"):
            IsolatedProcess.start(command, environment={})

    def test_too_long_and_malformed_arguments(self) -> None:
        with pytest.raises(MeasurementError, match="too long for the system"):
            start("pass", "x" * 3_000_000)
        with pytest.raises(MeasurementError, match="null byte"):
            start("pass", "a\0b")

    def test_no_interpreter_for_the_warden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(MeasurementError, match="/nowhere/python"):
            IsolatedProcess.start(["true"], environment={})


@linux
class TestNothingIsLeft:
    def test_after_a_normal_exit(self, tmp_path: Path) -> None:
        ended = run(TREE, str(tmp_path / "pids"), "exit")
        assert ended.exit_code == 7
        assert not ended.ordered
        assert alive(pids_in(tmp_path / "pids")) == []

    @pytest.mark.parametrize(("mode", "number"), [("", signal.SIGTERM), ("ignore", signal.SIGKILL)])
    def test_after_end(self, tmp_path: Path, mode: str, number: int) -> None:
        with start(TREE, str(tmp_path / "pids"), mode) as process:
            assert eventually(lambda: "ready" in process.output_tail())
            ended = process.end(grace_seconds=0.2)
        assert alive(pids_in(tmp_path / "pids")) == []
        assert (ended.ordered, ended.signal, ended.out_of_memory) == (True, number, False)
        assert process.end() is ended

    def test_after_end_of_a_stopped_process(self) -> None:
        with start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as process:
            assert process.end(grace_seconds=5).signal == signal.SIGTERM

    def test_a_sigterm_handler_has_the_grace_to_clean_up(self, tmp_path: Path) -> None:
        code = (
            "import pathlib, signal, sys, time\n"
            "def clean(*_): print('cleaned'); sys.exit(5)\n"
            "signal.signal(signal.SIGTERM, clean); print('ready', flush=True); time.sleep(120)"
        )
        with start(code) as process:
            assert eventually(lambda: "ready" in process.output_tail())
            ended = process.end(grace_seconds=PATIENCE_SECONDS)
        assert (ended.output, ended.exit_code, ended.ordered) == ("ready\ncleaned\n", 5, True)

    @pytest.mark.parametrize("mode", ["", "ignore"])
    def test_after_kill_9_of_the_parent(
        self, tmp_path: Path, tree_parent: Callable[..., subprocess.Popen[str]], mode: str
    ) -> None:
        tree_parent(mode).kill()
        assert eventually(lambda: alive(pids_in(tmp_path / "pids")) == [])

    def test_after_kill_9_of_a_parent_whose_fork_holds_the_socket_open(
        self, tmp_path: Path, tree_parent: Callable[..., subprocess.Popen[str]]
    ) -> None:
        forked = tmp_path / "forked"
        before = f"pid = os.fork() or time.sleep(120); open({str(forked)!r}, 'w').write(str(pid))"
        tree_parent(before=before).kill()
        try:
            assert eventually(lambda: alive(pids_in(tmp_path / "pids")) == [])
            assert len(alive(pids_in(forked))) == 1
        finally:
            os.kill(pids_in(forked)[0], signal.SIGKILL)

    def test_after_ctrl_c(
        self, tmp_path: Path, tree_parent: Callable[..., subprocess.Popen[str]]
    ) -> None:
        parent = tree_parent()
        os.killpg(parent.pid, signal.SIGINT)  # what the terminal does
        assert parent.wait(PATIENCE_SECONDS) != 0
        assert alive(pids_in(tmp_path / "pids")) == []

    def test_after_sigterm_to_the_warden(self, tmp_path: Path) -> None:
        with start(TREE, str(tmp_path / "pids")) as process:
            assert eventually(lambda: "ready" in process.output_tail())
            os.kill(process._warden.pid, signal.SIGTERM)
            finish(process)
            assert alive(pids_in(tmp_path / "pids")) == []

    def test_of_its_session_after_kill_9_of_the_warden(self) -> None:
        code = "import os, time; print(os.fork(), flush=True); time.sleep(120)"
        with start(code) as process:
            assert eventually(lambda: process.output_tail().count("\n") == 2)
            pids = [process.pid, *map(int, process.output_tail().split())]
            os.kill(process._warden.pid, signal.SIGKILL)
            ended = finish(process)
        assert eventually(lambda: alive([pid for pid in pids if pid]) == [])
        assert "was killed" in classify_failure(ended).detail

    def test_when_the_object_is_dropped(self) -> None:
        process = start("import time; time.sleep(120)")
        pid, warden = process.pid, process._warden
        del process
        assert warden.wait(PATIENCE_SECONDS) == 0
        assert alive([pid]) == []

    def test_when_only_the_last_descendant_remembers_the_output(self) -> None:
        """A stray that keeps the pipe open doesn't keep the trial open."""
        code = "import os, time; os.fork() or (os.setsid(), time.sleep(120)); print('done')"
        assert run(code).output == "done\n"

    @pytest.mark.slow
    def test_of_what_forks_faster_than_a_scan(self, tmp_path: Path) -> None:
        comet = (
            "import os, sys, time\n"
            "end = time.monotonic() + 60  # so that a failing test doesn't leave it for ever\n"
            "os.setsid() if os.fork() == 0 else None\n"
            "print('ready', flush=True)\n"
            "while time.monotonic() < end:\n"
            "    if os.fork(): os._exit(0)\n"
        )
        stem = (
            "import subprocess, sys, time; [subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
        )
        with start(f"{stem} for _ in range(3)]; time.sleep(120)", comet) as process:
            assert eventually(lambda: process.output_tail().count("ready") == 6)
            ended = process.end(grace_seconds=0)
        assert ended.survivors == ()

    @pytest.mark.slow
    def test_after_kill_9_of_the_parent_at_any_moment(self, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        code = PARENT.format(root=str(ROOT), tree=TREE, before="pass")
        for round_number in range(20):
            parent = subprocess.Popen(
                [sys.executable, "-c", code, str(pids)], stdout=subprocess.DEVNULL
            )
            time.sleep(0.02 * round_number)
            parent.kill()
            parent.wait()
        left = str(pids).encode()
        assert eventually(lambda: not any(left in command for command in command_lines()))


def command_lines() -> list[bytes]:
    found = []
    for pid in processes.process_table():
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return found


class TestOutput:
    def test_100_mb_are_drained_counted_and_not_kept(self) -> None:
        code = (
            "import os\nfor i in range(1600): os.write(1, b'%07d\\n' % i * 8192)\n"
            "os.write(2, 'the end é\\n'.encode())\nimport time; time.sleep(120)"
        )
        with start(code) as process:
            # Nobody reads here: the trial must not depend on the parent's pace.
            assert eventually(lambda: process.output_tail().endswith("the end é\n"))
            if sys.platform.startswith("linux"):
                (warden_peak,) = peak_resident_bytes([process._warden.pid]).values()
                assert warden_peak < 40 * 2**20
            ended = process.end()
        assert ended.output_bytes == 1600 * 65536 + 11
        assert len(ended.output.encode()) == 65536
        assert set(ended.output.split("\n")[1:-2]) == {"0001599"}

    def test_a_tail_cut_inside_a_character_and_bytes_that_are_no_text(self) -> None:
        ended = run("import os; os.write(1, 'é'.encode() * 40_000 + b'\\xff\\0z')")
        assert ended.output.strip("é") == "\ufffd\0z"
        assert ended.output_bytes == 80_003

    def test_output_of_a_process_that_closes_it(self) -> None:
        code = "import os, time; print('a', flush=True); os.closerange(1, 3); time.sleep(0.1)"
        assert run(code).output == "a\n"


class TestFailures:
    @pytest.mark.parametrize(
        ("code", "reason", "said"),
        [
            ("import os; os.kill(os.getpid(), 11)", FailureReason.CRASH, "segmentation fault"),
            ("import os; os.abort()", FailureReason.CRASH, r"aborted \(SIGABRT\)"),
            ("import os; os.kill(os.getpid(), 9)", FailureReason.OUT_OF_MEMORY, "SIGKILL"),
            ("import os; os.kill(os.getpid(), 40)", FailureReason.CRASH, "ended by signal 40"),
            ("raise MemoryError", FailureReason.OUT_OF_MEMORY, "^MemoryError$"),
            ("bytearray(1 << 60)", FailureReason.OUT_OF_MEMORY, "^MemoryError$"),
            ("raise ValueError('no 7')", FailureReason.CRASH, "^ValueError: no 7$"),
            ("import nope", FailureReason.CRASH, "^ModuleNotFoundError: No module named 'nope'$"),
            ("print('so'); exit(4)", FailureReason.CRASH, "^exit code 4: so$"),
            ("exit(4)", FailureReason.CRASH, "^exit code 4, nothing printed$"),
            ("pass", FailureReason.NO_STEPS, "exit code 0"),
        ],
    )
    def test_how_it_died(self, code: str, reason: FailureReason, said: str) -> None:
        ended = run(code)
        failure = classify_failure(ended)
        assert failure.reason == reason
        assert failure.exit_code == ended.return_code
        assert re.search(said, failure.detail)

    def test_a_hang_is_a_timeout(self) -> None:
        with start("import time; print('waiting', flush=True); time.sleep(120)") as process:
            assert process.wait(0.1) is None
            failure = classify_failure(process.end(), deadline_seconds=0.1)
        assert failure.reason == FailureReason.TIMEOUT
        assert failure.detail == "still running after the deadline of 0.1 s"


HOLD = """
import os, sys, time
held = bytearray(int(sys.argv[1]) << 20)
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        if sys.argv[3] == "own":
            held = bytearray(int(sys.argv[1]) << 20)
            held[::4096] = bytes([1]) * len(held[::4096])
        break
print("ready", flush=True)
time.sleep(float(sys.argv[4]))
"""


@linux
class TestMemory:
    def test_peaks_of_processes_that_run_and_that_ended(self) -> None:
        code = "b = bytearray(b'x') * (80 << 20); del b; print('ready', flush=True); import time;"
        with start(f"{code} time.sleep(120)") as process:
            assert eventually(lambda: "ready" in process.output_tail())
            peaks = peak_resident_bytes([process.pid, 2**22 + 1])
            memory = process.memory(proportional=True)
        assert list(peaks) == [process.pid]
        assert peaks[process.pid] > 80 << 20
        assert list(memory.peak_resident_bytes) == [process.pid]
        assert 0 < memory.resident_bytes < 80 << 20
        assert memory.proportional_bytes is not None
        assert 0 < memory.proportional_bytes <= memory.resident_bytes * 1.1
        largest = run("b = bytearray(b'x') * (80 << 20)").largest_resident_bytes
        assert largest is not None
        assert 80 << 20 < largest < 160 << 20

    def test_a_tree_over_the_limit_is_killed(self) -> None:
        with start(HOLD, "60", "2", "own", "1000", memory_limit_bytes=120 << 20) as process:
            ended = finish(process)
        assert ended.out_of_memory
        assert not ended.ordered
        failure = classify_failure(ended)
        assert failure.reason == FailureReason.OUT_OF_MEMORY
        assert "over the limit of 120 MiB" in failure.detail

    def test_pages_shared_by_workers_count_once(self) -> None:
        code = HOLD.replace("bytearray(int(sys.argv[1]) << 20)", "b'x' * (int(sys.argv[1]) << 20)")
        ended = run(code, "60", "4", "shared", "0.5", memory_limit_bytes=150 << 20)
        assert ended.succeeded

    def test_the_kernel_prefers_the_trial_and_writes_no_core(self) -> None:
        code = (
            "import resource; print(open('/proc/self/oom_score_adj').read().strip(),"
            "resource.getrlimit(resource.RLIMIT_CORE)[0])"
        )
        score, core = run(code).output.split()
        assert int(score) >= 500
        assert core == "0"


@linux
@pytest.mark.slow
def test_a_kill_by_the_kernel_is_seen() -> None:
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
        f"import os, sys; {enter}; sys.path.insert(0, {str(ROOT)!r})\n"
        "from collectors.isolate import *\n"
        "hog = 'b = [bytearray(b\"x\") * (1 << 20) for _ in range(500)]'\n"
        "with IsolatedProcess.start([sys.executable, '-c', hog], environment={}) as p:\n"
        "    print(classify_failure(p.wait(60)).detail)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert "kernel's OOM killer: the memory of its control group" in done.stdout, done.stderr
