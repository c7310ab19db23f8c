"""Isolation with real processes: what they see and print, and how they end."""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from collectors.isolate import IsolatedProcess, classify_failure
from collectors.processes import peak_resident_bytes
from perfmodel.errors import MeasurementError
from perfmodel.records import FailureReason


class TestRunning:
    def test_output_is_merged_in_order_and_the_exit_code_kept(self, isolated: Any) -> None:
        code = "import os, sys; [os.write(1 + i % 2, b'%d ' % i) for i in range(6)]; sys.exit(3)"
        ended = isolated.run(code)
        assert ended.output == "0 1 2 3 4 5 "
        assert ended.output_bytes == 12
        assert (ended.exit_code, ended.signal, ended.return_code) == (3, None, 3)
        assert not ended.ordered
        assert not ended.succeeded
        assert ended.survivors == ()

    def test_the_environment_given_is_the_whole_environment(
        self, isolated: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OF_THE_PARENT", "1")
        code = "import os; print(sorted(os.environ.items()))"
        environment = {"A": "b=c\n", "LC_ALL": "C.UTF-8", "É": "ü\udcff"}
        assert isolated.run(code, environment=environment).output.strip() == str(
            sorted(environment.items())
        )

    def test_stdin_is_empty_and_the_directory_is_the_one_asked_for(
        self, isolated: Any, tmp_path: Path
    ) -> None:
        code = "import os, sys; print(repr(sys.stdin.read()), os.getcwd())"
        assert isolated.run(code, directory=tmp_path).output == f"'' {tmp_path.resolve()}\n"

    def test_it_leads_a_session_without_our_descriptors_and_signals(self, isolated: Any) -> None:
        code = (
            "import os, signal; print(os.getpid() == os.getsid(0) == os.getpgrp(),"
            "sorted(int(n) for n in os.listdir('/dev/fd') if int(n) > 3),"
            "signal.pthread_sigmask(signal.SIG_BLOCK, []),"
            "signal.getsignal(signal.SIGINT).__name__)"
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})
        try:
            output = isolated.run(code).output
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert output == "True [] set() default_int_handler\n"

    def test_the_parent_keeps_its_signal_handlers(self, isolated: Any) -> None:
        numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
        before = [signal.getsignal(n) for n in numbers]
        isolated.run("pass")
        assert [signal.getsignal(n) for n in numbers] == before

    def test_a_selector_says_when_it_has_ended(self, isolated: Any) -> None:
        with (
            isolated.start("import time; print('x' * 300_000); time.sleep(0.2)") as process,
            selectors.DefaultSelector() as selector,
        ):
            assert process.poll() is None
            selector.register(process, selectors.EVENT_READ)
            while process.poll() is None:
                assert selector.select(isolated.patience_seconds)
            selector.unregister(process)
        assert isolated.finish(process).output_bytes == 300_001

    def test_several_at_once_from_several_threads(self, isolated: Any) -> None:
        codes: dict[int, int | None] = {}

        def one(number: int) -> None:
            codes[number] = isolated.run(f"import sys; sys.exit({number})").exit_code

        threads = [threading.Thread(target=one, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == {number: number for number in range(5)}

    def test_more_than_a_thousand_files_open(self, isolated: Any) -> None:
        """select() would take no descriptor above 1023."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if before[1] != resource.RLIM_INFINITY and before[1] < 1200:
            pytest.skip("this machine allows fewer open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 1200), before[1]))
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
        try:
            with isolated.start("import time; time.sleep(120)") as process:
                assert process.fileno() > 1023
                assert process.end(grace_seconds=5).signal == signal.SIGTERM
        finally:
            for number in opened:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_the_warden_imports_the_standard_library_only(self, isolated: Any) -> None:
        code = (
            f"import sys; sys.path.append({str(isolated.root)!r})\n"
            "from collectors.warden import main\n"
            "print(*sorted(m for m in sys.modules"
            " if m.split('.')[0] not in sys.stdlib_module_names))"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        )
        assert (
            done.stdout
            == "__main__ collectors collectors.cgroups collectors.processes collectors.warden\n"
        )


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

    def test_the_directory_is_named(self, isolated: Any, tmp_path: Path) -> None:
        with pytest.raises(MeasurementError, match=r"directory '.*/gone': No such file"):
            isolated.start("pass", directory=tmp_path / "gone")

    def test_a_working_directory_that_is_gone(
        self, isolated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(MeasurementError, match="working directory is gone"):
            isolated.start("pass")

    @pytest.mark.parametrize("command", [[], [""]])
    def test_an_empty_command(self, command: list[str]) -> None:
        with pytest.raises(MeasurementError, match="the command is empty"):
            IsolatedProcess.start(command, environment={})

    def test_too_long_and_malformed_arguments(self, isolated: Any) -> None:
        with pytest.raises(MeasurementError, match="too long for the system"):
            isolated.start("pass", "x" * 3_000_000)
        with pytest.raises(MeasurementError, match="null byte"):
            isolated.start("pass", "a\0b")

    def test_no_interpreter_for_the_warden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(MeasurementError, match="/nowhere/python"):
            IsolatedProcess.start(["true"], environment={})


class TestOutput:
    def test_100_mb_are_drained_counted_and_not_kept(self, isolated: Any, tmp_path: Path) -> None:
        code = (
            "import os\nfor i in range(1600): os.write(1, b'%07d\\n' % i * 8192)\n"
            "os.write(2, 'the end é\\n'.encode())\n"
            "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(120)"
        )
        with isolated.start(code, str(tmp_path / "written")) as process:
            # Nobody reads here: the trial must not depend on the parent's pace.
            assert isolated.eventually((tmp_path / "written").exists)
            (warden_peak,) = peak_resident_bytes([process._warden.pid]).values()
            assert warden_peak < 40 * 2**20
            ended = process.end()
        assert ended.output_bytes == 1600 * 65536 + 11
        assert len(ended.output.encode()) == 65536
        assert set(ended.output.split("\n")[1:-2]) == {"0001599"}

    def test_a_tail_cut_inside_a_character_and_bytes_that_are_no_text(self, isolated: Any) -> None:
        ended = isolated.run("import os; os.write(1, 'é'.encode() * 40_000 + b'\\xff\\0z')")
        assert ended.output.strip("é") == "\ufffd\0z"
        assert ended.output_bytes == 80_003

    def test_output_of_a_process_that_closes_it(self, isolated: Any) -> None:
        code = "import os, time; print('a', flush=True); os.closerange(1, 3); time.sleep(0.1)"
        assert isolated.run(code).output == "a\n"


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
    def test_how_it_died(self, isolated: Any, code: str, reason: FailureReason, said: str) -> None:
        ended = isolated.run(code)
        failure = classify_failure(ended)
        assert failure.reason == reason
        assert failure.exit_code == ended.return_code
        assert re.search(said, failure.detail)

    def test_a_hang_is_a_timeout(self, isolated: Any) -> None:
        with isolated.start(
            "import time; print('waiting', flush=True); time.sleep(120)"
        ) as process:
            assert process.wait(0.1) is None
            failure = classify_failure(process.end(), deadline_seconds=0.1)
        assert failure.reason == FailureReason.TIMEOUT
        assert failure.detail == "still running after the deadline of 0.1 s"
