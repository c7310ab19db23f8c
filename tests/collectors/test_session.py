"""From events to one answer: ranks, optimizers that come late, budgets and calls without order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from collectors.clock import StoppingRule
from collectors.script.events import (
    Armed,
    Bye,
    Calls,
    Captured,
    Failed,
    Hello,
    Known,
    Listener,
    Note,
)
from collectors.script.session import StepStream

RULE = StoppingRule(min_samples=5, min_seconds=0.0, max_seconds=60.0)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


def hello(connection: int, rank: str = "") -> Hello:
    return Hello(connection, 100 + connection, "3.11", "python", rank, rank, "", "python x.py")


def step(connection: int, seconds: float, *, optimizer: int = 0, rank: int = 0, world: int = 1,
         reserved: int | None = None) -> Calls:  # fmt: skip
    return Calls(connection, rank, world, None, reserved, None, ((optimizer, seconds),))


def test_the_slowest_rank_counts(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0, "0"), hello(1, "1")])
    stream.feed(step(0, 0.1 * i, rank=0, world=2, reserved=7) for i in range(10))
    assert not stream.done
    stream.feed(step(1, 0.3 * i, rank=1, world=2, reserved=9) for i in range(10))
    assert stream.done
    observed = stream.observed()
    assert observed is not None
    assert (observed.rank, observed.ranks) == (1, 2)
    assert observed.samples[0] == pytest.approx(0.3)
    assert observed.reserved_bytes == 9
    assert stream.pids == [100, 101]


def test_an_optimizer_that_was_not_called_yet_keeps_it_open(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), Armed(0, "2.0", "hook"), Known(0, 2)])
    calls = ([0] * 30 + [1]) * 10
    for i, optimizer in enumerate(calls):
        stream.feed([step(0, 0.1 * i, optimizer=optimizer)])
        if i < 200:
            assert not stream.done
    assert stream.done
    observed = stream.observed()
    assert observed is not None
    assert observed.calls_per_step == 31
    assert observed.samples[0] == pytest.approx(3.1)


def test_an_optimizer_that_is_never_called_is_waited_for_in_vain(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), Known(0, 2)])
    stream.feed(step(0, 0.1 * i) for i in range(200))
    assert stream.done
    observed = stream.observed()
    assert observed is not None
    assert observed.samples[0] == pytest.approx(0.1)


def test_a_process_that_went_before_its_time_was_known_is_no_end(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), *(step(0, 0.1 * i) for i in range(5)), Bye(0)])
    assert not stream.done
    stream.finish("ended")
    observed = stream.observed()
    assert observed is not None
    assert (observed.reason, len(observed.samples)) == ("ended", 4)


def test_two_steps_are_too_few(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), step(0, 0.0), step(0, 0.1), step(0, 0.2)])
    stream.finish("ended")
    assert stream.observed() is None
    assert stream.call_counts == {0: 3}


def test_calls_without_order_are_hopeless_after_twice_the_budget(listener: Listener) -> None:
    generator = random.Random(2)
    stream = StepStream(listener, RULE)
    stream.feed([hello(0)])
    for i in range(400):
        stream.feed([step(0, 0.5 * i, optimizer=generator.randrange(3))])
    assert stream.hopeless
    assert not stream.done
    assert stream.observed() is None


def test_a_compilation_before_the_period_is_known_uses_no_budget(listener: Listener) -> None:
    stream = StepStream(listener, StoppingRule(min_samples=5, min_seconds=0.0, max_seconds=10.0))
    stream.feed([hello(0), Known(0, 2)])
    now = 0.0
    for i in range(60):
        now += 12.0 if i == 1 else 0.1
        stream.feed([step(0, now, optimizer=int(i % 6 == 5))])
    assert stream.done
    observed = stream.observed()
    assert observed is not None
    assert (observed.calls_per_step, observed.reason) == (6, "precise")


def test_the_override_needs_no_order(listener: Listener) -> None:
    generator = random.Random(2)
    stream = StepStream(listener, RULE, step_optimizer=1)
    stream.feed([hello(0)])
    for i in range(400):
        stream.feed([step(0, 0.5 * i, optimizer=generator.randrange(3))])
    assert stream.done


def test_the_interpreter_that_steps_is_told(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([Hello(0, 7, "3.9.1", "/launcher/python", "", "", "", "torchrun x.py")])
    stream.feed([Hello(1, 8, "3.12.4", "/venv/bin/python3", "", "", "", "python x.py")])
    stream.feed([Armed(1, "2.9.0+cu128", "hook")])
    assert stream.stepping_interpreter is None
    stream.feed(step(1, 0.1 * i, reserved=5) for i in range(10))
    assert stream.stepping_interpreter == "/venv/bin/python3"
    observed = stream.observed()
    assert observed is not None
    assert (observed.python, observed.executable) == ("3.12.4", "python3")
    assert (observed.torch, observed.cuda_used) == ("2.9.0+cu128", True)


def test_a_process_that_is_gone_has_no_pid(listener: Listener) -> None:
    """Its number may be another process's by now."""
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), hello(1), step(0, 0.1), step(1, 0.1), Bye(0)])
    assert stream.pids == [101]


def test_steps_before_the_capture_of_a_graph_are_no_measurement(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), *(step(0, 0.1 * i) for i in range(5)), Captured(0)])
    assert "CUDA graph" in stream.blind
    stream.finish("ended")
    assert stream.observed() is None


def test_steps_go_on_after_a_capture(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), step(0, 0.0), Captured(0), *(step(0, 0.1 * i) for i in range(1, 10))])
    assert stream.blind == ""
    assert stream.done


def test_a_probe_that_failed_says_why(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), *(step(0, 0.1 * i) for i in range(5)), Failed(0, "KeyError: 1"), Bye(0)])
    assert "KeyError: 1" in stream.blind
    assert stream.notes == ["the probe failed: KeyError: 1"]
    stream.finish("ended")
    assert stream.observed() is not None


def test_notes_are_kept_once(listener: Listener) -> None:
    stream = StepStream(listener, RULE)
    stream.feed([hello(0), Note(0, "a"), Note(1, "a")])
    assert stream.notes == ["a"]
    assert stream.heard
    assert stream.torch_version == ""
