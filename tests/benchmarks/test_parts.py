"""Parts of the main job's benchmark that take no timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.job import sweep as sweeping
from benchmarks.job.choice import within_target
from benchmarks.job.faults import outcomes
from benchmarks.job.jobs import EXAMPLES, Example
from benchmarks.job.live import half_width
from benchmarks.job.overhead import median_interval
from benchmarks.job.recording import ROUND, SUFFIX, Sweep, load
from benchmarks.job.sweep import measure_sweeps
from benchmarks.job.third_party import SCRIPTS_TABLE, complaints
from benchmarks.report import Options, Report
from collectors.clock import StoppingRule
from perfmodel.errors import RecordError
from perfmodel.history import Study
from perfmodel.records import Configuration, Facts, Measurement


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_each_example_has_a_space_of_a_hundred_with_its_default_inside(example: Example) -> None:
    job = example.job()
    assert len(job.space) >= 100
    assert job.default in job.space
    assert job.assumed == ()
    assert job.objective.name == "samples_per_second"


def test_an_interrupted_sweep_goes_on_where_it_was(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials are looked up in a recorded sweep; the machinery around them is the real one."""
    started: list[Configuration] = []

    def look_up(
        study: Study, example: Example, configuration: Configuration, rule: StoppingRule
    ) -> Measurement:
        started.append(configuration)
        if len(started) == 10:
            raise KeyboardInterrupt
        return sweep.table[0, configuration]

    toy = Example("toy", "python train.py", (), (), "batch_size")
    monkeypatch.setattr(sweeping, "EXAMPLES", (toy,))
    monkeypatch.setattr(sweeping, "measure_once", look_up)
    monkeypatch.setattr(
        sweeping, "begun", lambda example, path: load(path) if path.exists() else empty
    )
    empty = Sweep(sweep.study, sweep.default, ())
    options = Options(rounds=2)
    with pytest.raises(KeyboardInterrupt):
        measure_sweeps(options, Report(), tmp_path)
    with (tmp_path / "toy.journal").open("a") as stream:
        stream.write('{"cut short by a ki')
    measure_sweeps(options, Report(), tmp_path)
    found = load(tmp_path / f"toy{SUFFIX}")
    assert found.rounds == (0, 1)
    size = len(sweep.study.space)
    assert len(found.measurements) == 2 * size
    assert len(started) == 2 * size + 1, "only the interrupted trial was made twice"
    assert not (tmp_path / "toy.journal").exists()
    measure_sweeps(options, Report(), tmp_path)
    assert len(started) == 2 * size + 1, "a complete sweep costs nothing"


def test_a_sweep_of_another_script_is_not_extended(sweeps: Path) -> None:
    gpt = EXAMPLES[0]
    (sweeps / f"toy{SUFFIX}").rename(sweeps / f"{gpt.name}{SUFFIX}")
    with pytest.raises(RecordError, match="recorded with another device"):
        sweeping.begun(gpt, sweeps / f"{gpt.name}{SUFFIX}")


def test_the_medians_interval_is_that_of_order_statistics() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    low, high = median_interval([float(i) for i in range(100)])
    assert (low, high) == (39.0, 60.0)


@pytest.mark.parametrize(
    ("regret", "noise", "met"),
    [(0.02, 0.0, True), (0.04, 0.0, False), (0.04, 0.02, True), (0.08, 0.2, False)],
)
def test_noise_excuses_no_more_than_the_target(regret: float, noise: float, met: bool) -> None:
    assert within_target(regret, noise) is met


def test_the_means_interval_is_students() -> None:
    assert half_width([1.0]) == 0
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)


def test_outcomes_are_read_from_the_test_runner() -> None:
    xml = """<testsuites><testsuite>
      <testcase classname="tests.cli.test_faults" name="a"/>
      <testcase classname="tests.cli.test_faults" name="b"><failure/></testcase>
      <testcase classname="tests.cli.test_faults" name="c"><skipped/></testcase>
    </testsuite></testsuites>"""
    assert list(outcomes(xml).values()) == ["passed", "failed", "skipped"]


def test_a_step_that_is_two_steps_is_found_out(sweep: Sweep) -> None:
    script = next(s for s in SCRIPTS_TABLE if s.name == "two_optimizers")
    base = sweep.measurements[0]

    def measured(seconds: float, calls: int) -> Measurement:
        return Measurement(
            device=base.device,
            software=base.software,
            workload=base.workload,
            configuration=base.configuration,
            measured_at=base.measured_at,
            samples=(seconds,) * 8,
            conditions=Facts({"calls_per_step": calls, ROUND: 0}),
        )

    assert complaints(script, measured(0.045, 4), timed=True) == []
    assert "expected 4" in complaints(script, measured(0.045, 1), timed=True)[0]
    assert "2.25 times" in complaints(script, measured(0.09, 4), timed=True)[0]
    assert "0.50 times" in complaints(script, measured(0.02, 4), timed=False)[0]
