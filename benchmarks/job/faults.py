"""Bad input and faults: the cases of tests/cli, run as they stand, counted and named."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.job.jobs import ROOT, settle
from benchmarks.report import Options, Report, Row

FILES = ("tests/cli/test_bad_input.py", "tests/cli/test_faults.py")
TARGET = 30


def measure_faults(options: Options, report: Report) -> None:
    """How many kinds end with the clear line, exit code and empty process table they must have."""
    settle()
    metric = "kinds of bad input and faults that end as they must (high: kinds tried)"
    found = {} if importlib.util.find_spec("pytest") is None else run_cases()
    if not found:
        report.note("faults: not run; they need the tests and `pip install -e '.[test]'`")
        report.add(Row("faults/handled", metric, None, target=TARGET, met=False))
        return
    handled = [name for name, outcome in found.items() if outcome == "passed"]
    for name, outcome in found.items():
        if outcome != "passed":
            report.note(f"faults: {name} {outcome}")
    report.add(
        Row(
            "faults/handled",
            metric,
            len(handled),
            high=len(found),
            n=len(found),
            target=TARGET,
            met=len(handled) >= TARGET and "failed" not in found.values(),
        )
    )


def run_cases() -> Mapping[str, str]:
    """Each case's name and outcome: passed, failed or skipped; empty if none could be run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, f"--junit-xml={path}", *FILES], cwd=ROOT, stdout=sys.stderr, check=False
        )
        return outcomes(path.read_text()) if path.exists() else {}


def outcomes(xml: str) -> dict[str, str]:
    """The outcomes in a JUnit report that pytest wrote."""
    found = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        children = {child.tag for child in case}
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        outcome = "failed" if children & {"failure", "error"} else "passed"
        found[name] = "skipped" if "skipped" in children else outcome
    return found
