"""What a user reads: headline, table and JSON of outcomes of every sort."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from perfmodel.history import Launch, Study
from perfmodel.records import Configuration, Failure, FailureReason, Measurement, Prediction
from tuner.finals import Gain
from tuner.objective import Objective, objective_for
from tuner.report.document import launch_document, outcome_document
from tuner.report.table import headline, launch_lines, launches_table, trials_table
from tuner.study import Outcome

Scripts = Callable[..., Any]


@pytest.fixture
def made(script: Scripts) -> tuple[Outcome, Objective]:
    """An outcome with a default, a winner twice as fast, and a failure."""
    recorded = script(3)
    space = recorded.space
    objective = objective_for(space, samples="batch_size*accumulation")
    default, winner, failing = space.configurations[:3]
    times = {default: 0.4, winner: 0.2}
    runs = [replace(recorded.measure(c), samples=(s, s * 1.01, s * 0.99)) for c, s in times.items()]
    failure = Failure(FailureReason.OUT_OF_MEMORY, "too much")
    runs.append(replace(runs[0], configuration=failing, samples=(), failure=failure))
    first = runs[0]
    outcome = Outcome(
        study=Study(
            first.device, first.software, first.workload, space, "samples_per_second",
            objective.samples,
        ),
        default=default,
        winner=winner,
        gains=(Gain(winner, 1.0, 0.9, 1.1, 3),),
        compared=True,
        measurements=tuple(runs),
        measured_now=3,
        stopped="enough",
        already_known=False,
        predicted=Prediction(0.21, 0.19, 0.23),
        expected=Prediction(0.2, 0.19, 0.21, extrapolating=True, calibrated=False),
    )  # fmt: skip
    return outcome, objective


def told(outcome: Outcome, objective: Objective, **how: Any) -> str:
    how = {"assumed": (), "default_given": True, **how}
    return "\n".join(headline(outcome, objective, **how))


def test_headline_of_a_gain(made: tuple[Outcome, Objective]) -> None:
    text = told(*made, assumed=("threads",))
    assert "gain: +100.0 % (95 % interval +90.0 % … +110.0 %, 3 interleaved rounds)" in text
    assert "assumed, because no --default names it: threads" in text
    assert "unseen: 210 ms/step (90 % interval 190 ms … 230 ms); measured: 200 ms/step" in text


def test_no_headline_gain_without_a_default(made: tuple[Outcome, Objective]) -> None:
    text = told(*made, default_given=False)
    assert text.startswith("assumed default: ")
    assert "+100" not in text
    assert "no --default says what you run today" in text


def test_the_default_stays_for_a_stated_reason(made: tuple[Outcome, Objective]) -> None:
    outcome, objective = made
    stays = replace(outcome, winner=outcome.default)
    assert "nothing beat it by more than the noise" in told(stays, objective)
    assert "nothing else could be compared" in told(replace(stays, gains=()), objective)


def test_a_default_that_fails_has_no_gain(made: tuple[Outcome, Objective]) -> None:
    outcome, objective = made
    failing = replace(outcome, default=outcome.study.space.configurations[2], compared=False)
    text = told(failing, objective)
    assert "did not run" in text
    assert "gain: unknown, since the default doesn't run" in text
    apart = replace(outcome, compared=False)
    assert "was not part of the finals" in told(apart, objective)


def test_the_table_has_every_configuration(made: tuple[Outcome, Objective]) -> None:
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(trials_table(*made))
    lines = [x.strip() for x in console.export_text().splitlines() if x.strip()]
    assert len(lines) == 2 + 3
    assert lines[2].endswith("default, ok")
    assert lines[3].endswith("winner, ok")
    assert lines[4].endswith("out_of_memory: too much")
    assert "1.0%" in lines[2], "the spread is shown"


def test_the_document_is_json_without_nan(made: tuple[Outcome, Objective]) -> None:
    outcome, objective = made
    unsure = replace(outcome, gains=(Gain(outcome.winner, 1.0, -1.0, float("inf"), 1),))
    document = json.loads(
        json.dumps(outcome_document(unsure, objective, assumed=()), allow_nan=False)
    )
    assert document["gains"][0]["high"] is None
    assert [t["failure"] is None for t in document["trials"]] == [True, True, False]
    assert document["trials"][2]["seconds"] is None


def test_launches(made: tuple[Outcome, Objective]) -> None:
    outcome, objective = made
    achieved: Measurement = outcome.measurements[1]
    launch = Launch(
        outcome.study, outcome.winner, ("python", "x.py"), "2026-01-02T03:04:05+00:00", 61.0, 3,
        outcome.expected, achieved,
    )  # fmt: skip
    lines = launch_lines(launch, objective)
    assert "reached 200 ms/step" in lines[0]
    assert "extrapolating, uncalibrated device" in lines[0]
    assert lines[1] == "it ran 61 s and ended with exit code 3"
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(launches_table([launch, replace(launch, achieved=None)], [objective] * 2))
    assert "2026-01-02 03:04:05" in console.export_text()
    assert launch_document(launch, objective)["achieved"]["seconds"] == achieved.seconds
    none = launch_lines(replace(launch, achieved=None, predicted=None), objective)
    assert none[0] == "the run made no step that could be timed"
    assert Configuration(launch.configuration) == outcome.winner
