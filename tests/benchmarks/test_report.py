"""The shape of every figure, and the flags that every benchmark has."""

from __future__ import annotations

import json
import math
import re

import pytest

from benchmarks import report
from benchmarks.report import Anchor, Options, Report, Row

ROW = Row(
    "speed/one", "seconds", 0.25, low=0.2, high=0.3, n=5,
    anchor=Anchor("rival", 0.5, published=True), target=0.3, met=True,
)  # fmt: skip


def _sections() -> dict[str, report.Section]:
    def speed(options: Options, found: Report) -> None:
        found.add(ROW)
        found.add(Row("speed/two", "seconds", None, target=1, met=False))
        found.note("speed/two: skipped")

    def other(options: Options, found: Report) -> None:
        found.add(Row("other/x", "regret", math.nan, n=options.seeds))

    return {"speed": speed, "other": other}


def test_rows_have_the_fields_that_every_benchmark_shares() -> None:
    assert ROW.to_json() == {
        "name": "speed/one",
        "metric": "seconds",
        "value": 0.25,
        "low": 0.2,
        "high": 0.3,
        "n": 5,
        "anchor": {"name": "rival", "value": 0.5, "published": True},
        "target": 0.3,
        "met": True,
    }


def test_json_is_the_list_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.run("toy", "A toy.", _sections(), ["--json", "--seeds", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["speed/one", "speed/two", "other/x"]
    assert rows[2]["value"] is None
    assert rows[2]["n"] == 3


def test_the_table_shows_anchor_target_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.run("toy", "A toy.", _sections(), []) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("|")[1].strip() == "name"
    assert "rival 0.5 (published)" in lines[2]
    assert lines[2].split("|")[-2].strip() == "yes"
    assert lines[3].split("|")[-2].strip() == "NO"
    assert lines[-1] == "note: speed/two: skipped"


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("speed", ["speed/one", "speed/two"]),
        ("speed/two", ["speed/two"]),
        ("speed/one,other", ["speed/one", "other/x"]),
    ],
)
def test_only_selects_by_the_beginning_of_a_name(
    only: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.run("toy", "A toy.", _sections(), ["--json", "--only", only]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == names


def test_an_unknown_row_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.run("toy", "A toy.", _sections(), ["--only", "sped"]) == 2
    assert "'sped'; allowed to begin with: speed, other" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--data", "/nowhere/at/all"]])
def test_a_wrong_flag_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        report.run("toy", "A toy.", _sections(), wrong)
    assert refused.value.code == 2


def test_a_section_that_cannot_run_is_a_note_beside_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(options: Options, found: Report) -> None:
        raise FileNotFoundError("x.json.gz")

    assert report.run("toy", "A toy.", {"broken": broken, **_sections()}, []) == 0
    printed = capsys.readouterr().out
    assert "note: broken: FileNotFoundError: x.json.gz" in printed
    assert re.search(r"broken +\| carried through +\| 0 .*NO", printed)
    assert "other/x" in printed
