"""Nothing that an isolated command has started outlives it, its end, or the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors import isolate, processes
from collectors.isolate import classify_failure

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
while True:
    time.sleep(120)
"""

# A program that isolates TREE and then waits, as `tune` does.
PARENT = """
import os, sys, time
sys.path.insert(0, {root!r})
from collectors.isolate import IsolatedProcess
with IsolatedProcess.start([sys.executable, "-c", {tree!r}, *sys.argv[1:]], environment={{}}) as p:
    while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).read().split()) < 5:
        time.sleep(0.01)
    {before}
    print("ready", flush=True)
    p.wait()
"""


@pytest.fixture
def tree_parent(isolated: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program that isolates a tree of sleepers; returns once all of them run."""
    started = []

    def begin(*arguments: str, before: str = "pass") -> subprocess.Popen[str]:
        code = PARENT.format(root=str(isolated.root), tree=TREE, before=before)
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "pids"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(parent)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert len(isolated.alive(isolated.pids_in(tmp_path / "pids"))) == 5
        return parent

    yield begin
    for parent in started:
        parent.kill()
        parent.wait()
        if parent.stdout:
            parent.stdout.close()


class TestNothingIsLeft:
    def test_after_a_normal_exit(self, isolated: Any, tmp_path: Path) -> None:
        ended = isolated.run(TREE, str(tmp_path / "pids"), "exit")
        assert ended.exit_code == 7
        assert not ended.ordered
        assert isolated.alive(isolated.pids_in(tmp_path / "pids")) == []

    @pytest.mark.parametrize(("mode", "number"), [("", signal.SIGTERM), ("ignore", signal.SIGKILL)])
    def test_after_end(self, isolated: Any, tmp_path: Path, mode: str, number: int) -> None:
        with isolated.start(TREE, str(tmp_path / "pids"), mode) as process:
            assert isolated.eventually(lambda: len(isolated.pids_in(tmp_path / "pids")) == 5)
            ended = process.end(grace_seconds=0.2)
        assert isolated.alive(isolated.pids_in(tmp_path / "pids")) == []
        assert (ended.ordered, ended.signal, ended.out_of_memory) == (True, number, False)
        assert process.end() is ended

    def test_after_end_of_a_stopped_process(self, isolated: Any) -> None:
        with isolated.start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as process:
            assert process.end(grace_seconds=5).signal == signal.SIGTERM

    def test_a_sigterm_handler_has_the_grace_to_clean_up(
        self, isolated: Any, tmp_path: Path
    ) -> None:
        code = (
            "import pathlib, signal, sys, time\n"
            "def clean(*_): print('cleaned'); sys.exit(5)\n"
            "signal.signal(signal.SIGTERM, clean)\n"
            "pathlib.Path(sys.argv[1]).touch(); time.sleep(120)"
        )
        with isolated.start(code, str(tmp_path / "ready")) as process:
            assert isolated.eventually((tmp_path / "ready").exists)
            ended = process.end(grace_seconds=isolated.patience_seconds)
        assert (ended.output, ended.exit_code, ended.ordered) == ("cleaned\n", 5, True)

    @pytest.mark.parametrize("mode", ["", "ignore"])
    def test_after_kill_9_of_the_parent(
        self,
        isolated: Any,
        tmp_path: Path,
        tree_parent: Callable[..., subprocess.Popen[str]],
        mode: str,
    ) -> None:
        tree_parent(mode).kill()
        assert isolated.eventually(
            lambda: isolated.alive(isolated.pids_in(tmp_path / "pids")) == []
        )

    def test_after_kill_9_of_a_parent_whose_fork_holds_the_socket_open(
        self, isolated: Any, tmp_path: Path, tree_parent: Callable[..., subprocess.Popen[str]]
    ) -> None:
        forked = tmp_path / "forked"
        before = f"pid = os.fork() or time.sleep(120); open({str(forked)!r}, 'w').write(str(pid))"
        tree_parent(before=before).kill()
        try:
            assert isolated.eventually(
                lambda: isolated.alive(isolated.pids_in(tmp_path / "pids")) == []
            )
            assert len(isolated.alive(isolated.pids_in(forked))) == 1
        finally:
            os.kill(isolated.pids_in(forked)[0], signal.SIGKILL)

    def test_after_ctrl_c(
        self, isolated: Any, tmp_path: Path, tree_parent: Callable[..., subprocess.Popen[str]]
    ) -> None:
        parent = tree_parent()
        os.killpg(parent.pid, signal.SIGINT)  # what the terminal does
        assert parent.wait(isolated.patience_seconds) != 0
        assert isolated.alive(isolated.pids_in(tmp_path / "pids")) == []

    def test_after_sigterm_to_the_warden(self, isolated: Any, tmp_path: Path) -> None:
        with isolated.start(TREE, str(tmp_path / "pids")) as process:
            assert isolated.eventually(lambda: len(isolated.pids_in(tmp_path / "pids")) == 5)
            os.kill(process._warden.pid, signal.SIGTERM)
            isolated.finish(process)
            assert isolated.alive(isolated.pids_in(tmp_path / "pids")) == []

    def test_of_its_session_after_kill_9_of_the_warden(self, isolated: Any, tmp_path: Path) -> None:
        code = (
            "import os, sys, time; os.fork(); file = open(sys.argv[1], 'a')\n"
            "file.write(f'{os.getpid()}\\n'); file.close(); time.sleep(120)"
        )
        with isolated.start(code, str(tmp_path / "pids")) as process:
            assert isolated.eventually(lambda: len(isolated.pids_in(tmp_path / "pids")) == 2)
            pids = isolated.pids_in(tmp_path / "pids")
            assert process.pid in pids
            os.kill(process._warden.pid, signal.SIGKILL)
            ended = isolated.finish(process)
        assert isolated.eventually(lambda: isolated.alive(pids) == [])
        assert "was killed" in classify_failure(ended).detail

    def test_when_starting_is_interrupted(
        self, isolated: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the command nor a zombie of the process between."""
        wardens = []
        start_warden = isolate._start_warden

        def remembered() -> Any:
            wardens.append(start_warden())
            return wardens[-1]

        def interrupted(*arguments: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(isolate, "_start_warden", remembered)
        monkeypatch.setattr(isolate.IsolatedProcess, "_receive_until", interrupted)
        with pytest.raises(KeyboardInterrupt):
            isolated.start("import time; time.sleep(120)")
        ((warden, _),) = wardens
        assert warden.returncode is not None

    def test_when_the_object_is_dropped(self, isolated: Any) -> None:
        process = isolated.start("import time; time.sleep(120)")
        pid, warden = process.pid, process._warden
        del process
        assert warden.wait(isolated.patience_seconds) == 0
        assert isolated.alive([pid]) == []

    def test_when_only_the_last_descendant_remembers_the_output(self, isolated: Any) -> None:
        """A stray that keeps the pipe open doesn't keep the trial open."""
        code = "import os, time; os.fork() or (os.setsid(), time.sleep(120)); print('done')"
        assert isolated.run(code).output == "done\n"

    @pytest.mark.slow
    def test_of_what_forks_faster_than_a_scan(self, isolated: Any, tmp_path: Path) -> None:
        comet = (
            "import os, sys, time\n"
            "end = time.monotonic() + 60  # so that a failing test doesn't leave it for ever\n"
            "os.setsid() if os.fork() == 0 else None\n"
            "open(sys.argv[1], 'a').write('1\\n')\n"
            "while time.monotonic() < end:\n"
            "    if os.fork(): os._exit(0)\n"
        )
        stem = (
            "import subprocess, sys, time;"
            "[subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]) for _ in range(3)];"
            "time.sleep(120)"
        )
        ready = tmp_path / "ready"
        with isolated.start(stem, comet, str(ready)) as process:
            assert isolated.eventually(lambda: len(isolated.pids_in(ready)) == 6)
            ended = process.end(grace_seconds=0)
        assert ended.survivors == ()

    @pytest.mark.slow
    def test_after_kill_9_of_the_parent_at_any_moment(self, isolated: Any, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        code = PARENT.format(root=str(isolated.root), tree=TREE, before="pass")
        for round_number in range(20):
            parent = subprocess.Popen(
                [sys.executable, "-c", code, str(pids)], stdout=subprocess.DEVNULL
            )
            time.sleep(0.02 * round_number)
            parent.kill()
            parent.wait()
        left = str(pids).encode()
        assert isolated.eventually(lambda: not any(left in command for command in command_lines()))


def command_lines() -> list[bytes]:
    found = []
    for pid in processes.process_table():
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return found
