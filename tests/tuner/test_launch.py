"""The launch: exit codes, signals, the terminal, the environment, and what the run reached."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.script.command import ScriptCommand, script_workload
from perfmodel.history import Study
from perfmodel.records import Configuration, Device, Software
from perfmodel.space import Parameter, Space
from tuner.launch import Chosen, launch_run

STEADY = Path(__file__).parent.parent / "scripts" / "steady.py"

DRIVER = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_launch import launched
result = launched(json.loads(sys.argv[1]))
print("exit", result.exit_code, flush=True)
sys.exit(result.exit_code)
"""


def chosen(command: ScriptCommand, **values: int) -> Chosen:
    space = Space(tuple(Parameter(n, (v,)) for n, v in values.items()) or (Parameter("x", (1,)),))
    study = Study(
        Device("cpu", "any", "any", "any", 1, 1),
        Software(),
        script_workload(command),
        space,
        "step_seconds",
        "",
    )
    return Chosen(study, Configuration(values))


def launched(argv: list[str], **values: int):  # type: ignore[no-untyped-def]
    command = ScriptCommand(tuple(argv))
    return launch_run(command, chosen(command, **values))


def driver(argv: list[str]) -> list[str]:
    import json

    code = DRIVER.format(tests=str(Path(__file__).parent))
    return [sys.executable, "-c", code, json.dumps(argv)]


def test_what_it_reached_is_recorded() -> None:
    """10 ms of sleep a step and more for the work around it."""
    done = launched([sys.executable, str(STEADY), "--batch-size", "{b}", "--steps", "120"], b=6)
    assert done.exit_code == 0
    assert done.achieved is not None
    assert len(done.achieved.samples) >= 50
    assert done.achieved.seconds > 0.010
    assert done.achieved.memory.resident_bytes
    assert done.achieved.conditions["purpose"] == "launch"
    assert done.command[-3] == "6"


@pytest.mark.parametrize(
    ("code", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_exit_code_as_a_shell_tells_it(code: str, status: int) -> None:
    done = launched(["sh", "-c", code])
    assert done.exit_code == status
    assert done.achieved is None


def test_a_launch_gets_nothing_of_a_trial() -> None:
    code = (
        "import os, sys; e = os.environ; "
        "sys.exit(any(k.startswith('TUNE_') for k in e) or 'MASTER_PORT' in e or 'WANDB_MODE' in e "
        "or e.get('OMP_NUM_THREADS') != '1')"
    )
    assert launched([sys.executable, "-c", code], threads=1).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded_once(number: signal.Signals) -> None:
    script = (
        "import signal, sys, time\n"
        "count = []\n"
        f"signal.signal({number}, lambda *a: count.append(1))\n"
        "print('ready', flush=True)\n"
        "time.sleep(1.0)\n"
        "time.sleep(0.5)\n"
        "sys.exit(40 + len(count))\n"
    )
    with subprocess.Popen(
        driver([sys.executable, "-c", script]), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "exit 41\n"
    assert process.returncode == 41


def test_the_terminal_is_the_runs_own() -> None:
    """On a terminal: the run reads it, Ctrl-C ends the run alone, and we report its end."""
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *a: sys.exit(7))\n"
        "print('got', input(), flush=True)\n"
        "time.sleep(60)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, driver([sys.executable, "-c", script]))
    os.write(terminal, b"hello\n")
    output = _read_until(terminal, b"got hello")
    os.write(terminal, b"\x03")
    output += _read_until(terminal, b"exit 7")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, output


def test_ctrl_z_stops_us_with_the_run_and_both_go_on() -> None:
    script = "import time\nprint('ready', flush=True)\ntime.sleep(2)\nprint('woke', flush=True)\n"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, driver([sys.executable, "-c", script]))
    _read_until(terminal, b"ready")
    os.write(terminal, b"\x1a")
    waited, status = os.waitpid(pid, os.WUNTRACED)
    assert waited == pid
    assert os.WIFSTOPPED(status)
    os.kill(pid, signal.SIGCONT)
    _read_until(terminal, b"exit 0")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _read_until(terminal: int, wanted: bytes) -> bytes:
    output, deadline = b"", time.monotonic() + 60
    while wanted not in output and time.monotonic() < deadline:
        try:
            output += os.read(terminal, 1024)
        except OSError:
            break
    assert wanted in output, output
    return output
