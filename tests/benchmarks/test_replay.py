"""Replayed searches: every approach obeys the same rules, ours finds the best of a small space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import main_job
from benchmarks.job.recording import SUFFIX, Sweep, load, save
from benchmarks.job.replay import APPROACHES, TRIALS, Replayer
from perfmodel.errors import RecordError
from perfmodel.records import Configuration

BEST = Configuration(batch_size=32, threads=2, precision="bf16")


def test_a_sweep_comes_back_as_it_was_saved(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / f"again{SUFFIX}"
    save(sweep, path)
    found = load(path)
    assert found.study == sweep.study
    assert found.default == sweep.default
    assert found.rounds == (0, 1, 2)
    assert [m.configuration for m in found.measurements] == [
        m.configuration for m in sweep.measurements
    ]
    assert found.truth == pytest.approx(sweep.truth, abs=1e-3)


def test_it_knows_its_best_and_its_noise(sweep: Sweep) -> None:
    assert sweep.best == BEST
    assert sweep.rank(BEST) == 1
    assert sweep.regret(BEST) == 0
    assert sweep.regret(sweep.default) > 1
    assert 0.001 < sweep.noise < 0.02
    assert 0 < sweep.tolerance < 0.03


def test_a_round_that_lacks_a_configuration_does_not_count(sweep: Sweep) -> None:
    cut = Sweep(sweep.study, sweep.default, sweep.measurements[:-1])
    assert cut.rounds == (0, 1)


def test_a_second_visit_is_another_measurement(sweep: Sweep) -> None:
    visit = Replayer(sweep, 0)
    first, second = visit(BEST), visit(BEST)
    assert first.samples != second.samples
    assert first.address != second.address
    assert Replayer(sweep, 0)(BEST) == first


@pytest.mark.parametrize("approach", APPROACHES)
def test_each_approach_starts_with_the_default_and_keeps_to_its_trials(
    approach: str, sweep: Sweep
) -> None:
    choice = APPROACHES[approach](sweep, 0)
    assert choice.configuration in sweep.study.space
    if approach == "guided":
        assert sweep.regret(choice.configuration) < 0.03
    else:
        assert choice.starts <= TRIALS
        assert sweep.regret(choice.configuration) <= sweep.regret(sweep.default)


def test_a_foreign_sweep_gets_rows_and_other_files_are_named(
    sweeps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweeps / f"broken{SUFFIX}").write_bytes(b"not gzip")
    assert main_job.main(["--data", str(sweeps), "--only", "choice", "--seeds", "1", "--json"]) == 0
    printed = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(printed.out)}
    assert rows["choice/toy/guided"]["met"] is True
    assert rows["choice/toy/guided"]["anchor"]["published"] is False
    assert rows["choice/toy/inside"]["value"] == 1
    assert {"choice/toy/random", "choice/toy/tpe"} <= set(rows)
    assert rows["choice/unplaced"]["value"] == 1
    assert "broken.json.gz isn't a sweep" in printed.err


def test_a_folder_without_sweeps_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_job.main(["--data", str(tmp_path), "--only", "choice"]) == 0
    assert "--only sweep" in capsys.readouterr().out


def test_another_format_is_refused(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / f"new{SUFFIX}"
    path.write_bytes(gzip.compress(json.dumps({"format": 99}).encode()))
    with pytest.raises(RecordError, match="format 99; allowed: 1"):
        load(path)
