"""What the probe does to an interpreter it gets into: it says hello and leaves no trace."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from collectors.script.events import (
    INJECT_FOLDER,
    Armed,
    Bye,
    Calls,
    Event,
    Hello,
    Listener,
    decode,
    probe_environment,
)
from perfmodel.errors import MeasurementError

LOOK = """
import json, os, sys
print(json.dumps({
    "path": sys.path, "argv": sys.argv,
    "site": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "inherited": os.environ["PYTHONPATH"],
}))
"""


def look(
    listener: Listener, *arguments: str, environment: dict[str, str] | None = None
) -> tuple[dict[str, object], list[Event], str]:
    """What an interpreter sees of itself under the probe, what the probe said, and stderr."""
    base = {**os.environ, **(environment or {})}
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=probe_environment(base, listener.path, {}),
        capture_output=True,
        text=True,
        check=True,
    )
    events = [event for _ in range(3) for event in listener.poll(0.2)]
    return json.loads(ended.stdout), events, ended.stderr


def plainly(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    """The same without the probe."""
    base = {**os.environ, "PYTHONPATH": "", **(environment or {})}
    ended = subprocess.run(
        [sys.executable, *arguments], env=base, capture_output=True, text=True, check=True
    )
    seen: dict[str, object] = json.loads(ended.stdout)
    return seen


@pytest.mark.parametrize("file", sorted(INJECT_FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_the_syntax_is_that_of_python_3_8(file: Path) -> None:
    ast.parse(file.read_text(), feature_version=(3, 8))


def test_an_interpreter_says_hello_and_sees_nothing_of_the_probe(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    with Listener() as listener:
        seen, events, stderr = look(
            listener, str(script), "a", "--b", environment={"PYTHONPATH": "", "RANK": "3"}
        )
    without = plainly(str(script), "a", "--b")
    assert seen["inherited"] == str(INJECT_FOLDER)
    assert {**seen, "inherited": ""} == without
    assert stderr == ""
    hello, bye = events
    assert isinstance(hello, Hello)
    assert isinstance(bye, Bye)
    assert (hello.rank, hello.executable) == ("3", sys.executable)
    assert hello.command_line.endswith(f"{script} a --b")


def test_another_sitecustomize_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.argv0_seen = True\n")
    with Listener() as listener:
        seen, events, stderr = look(listener, "-c", LOOK, environment={"PYTHONPATH": str(tmp_path)})
    assert seen["site"] == str(tmp_path / "sitecustomize.py")
    assert str(tmp_path) in str(seen["path"])
    assert isinstance(events[0], Hello)
    assert stderr == ""


def test_an_error_in_another_sitecustomize_is_shown_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    with Listener() as listener:
        _, _, stderr = look(listener, "-c", LOOK, environment={"PYTHONPATH": str(tmp_path)})
    assert "Error in sitecustomize" in stderr
    assert "ZeroDivisionError" in stderr


def test_without_a_listener_nothing_happens(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "print('fine')"],
        env=probe_environment(os.environ, tmp_path / "gone", {"threads": 1}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("fine\n", "")


CLOSED = """
import os, sys
os.closerange(3, 64)                      # a daemon's habit
taken = [open(sys.argv[1], "w") for _ in range(8)]
probe = sys.modules["_perfmodel_probe"]
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "Connection":
        thing.send("N", "hello?")
        print(thing.closed)
"""


def test_a_file_under_the_socket_s_number_is_not_written_to(tmp_path: Path) -> None:
    with Listener() as listener:
        ended = subprocess.run(
            [sys.executable, "-c", CLOSED, str(tmp_path / "file")],
            env=probe_environment(os.environ, listener.path, {}),
            capture_output=True,
            text=True,
            check=True,
        )
    assert ended.stdout == "True\n"
    assert (tmp_path / "file").read_text() == ""


SILENCED = """
import gc, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
(connection,) = [o for o in gc.get_objects() if type(o).__name__ == "Connection"]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    connection.send("N", "still there?")
print(connection.closed, connection.socket)
"""


def test_a_closed_listener_silences_it_even_where_sigpipe_kills() -> None:
    with Listener() as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", SILENCED],
            env=probe_environment(os.environ, listener.path, {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    output, _ = process.communicate("go\n")
    assert (process.returncode, output) == (0, "True None\n")


def test_a_full_queue_keeps_the_message_for_later(tmp_path: Path) -> None:
    fill = (
        "import gc\n"
        "(c,) = [o for o in gc.get_objects() if type(o).__name__ == 'Connection']\n"
        "print([c.send('N', i) for i in range(5000)].index(False) > 10, c.closed)\n"
    )
    with Listener() as listener:
        ended = subprocess.run(
            [sys.executable, "-c", fill],
            env=probe_environment(os.environ, listener.path, {}),
            capture_output=True,
            text=True,
            check=True,
        )
    assert ended.stdout == "True False\n"


@pytest.mark.parametrize(
    "message",
    [b"", b"X", b"H", b"H\tx", b"C\t0\t1", b"C\t0\t1\t-1\t-1\t-1\tx", b"\xff\xfe\t", b"O\t"],
)
def test_messages_that_are_none_of_ours_are_ignored(message: bytes) -> None:
    assert decode(0, message) is None


def test_calls_are_decoded() -> None:
    event = decode(7, b"C\t1\t2\t100\t200\t-1\t0:,1:12.5")
    assert event == Calls(7, 1, 2, 100, 200, None, ((0, None), (1, 12.5)))


def test_the_listener_leaves_no_file_behind() -> None:
    with Listener() as listener:
        assert listener.path.exists()
    assert not listener.path.parent.exists()


def test_a_listener_without_a_descriptor_left_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    before = set(Path("/tmp").glob("perfmodel-*"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(MeasurementError, match=r"no socket can be made at /tmp/perfmodel-"):
            Listener()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(Path("/tmp").glob("perfmodel-*")) <= before


def test_a_torch_imported_before_the_probe_is_watched_all_the_same(tmp_path: Path) -> None:
    """As a .pth file does, which runs before sitecustomize."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys, torch\nsys.path.insert(0, {str(INJECT_FOLDER)!r})\n"
        "import _perfmodel_probe\n_perfmodel_probe.start(os.environ)\n"
    )
    code = "print([sorted(f.watched) for f in sys.meta_path if type(f).__name__ == '_Finder'])"
    with Listener() as listener:
        environment = probe_environment(os.environ, listener.path, {})
        ended = subprocess.run(
            [sys.executable, "-c", f"import sys; {code}"],
            env={**environment, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        events = [event for _ in range(3) for event in listener.poll(0.2)]
    assert ended.stdout == "[['torch._dynamo']]\n"
    assert [type(event) for event in events] == [Hello, Armed, Bye]


def interpreters() -> list[str]:
    return os.environ.get("PERFMODEL_TEST_PYTHONS", "").split()


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", interpreters())
def test_other_interpreters(interpreter: str, tmp_path: Path) -> None:
    """PERFMODEL_TEST_PYTHONS lists interpreters, old ones and such without torch included."""
    script = tmp_path / "look.py"
    script.write_text("import sys; sys.stdout.write(repr([p for p in sys.path if 'inject' in p]))")
    with Listener() as listener:
        ended = subprocess.run(
            [interpreter, str(script)],
            env=probe_environment(os.environ, listener.path, {}),
            capture_output=True,
            text=True,
            check=True,
        )
    assert (ended.stdout, ended.stderr) == ("[]", "")
