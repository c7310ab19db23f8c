"""Scripts of other frameworks, unmodified, under the real runner."""

from __future__ import annotations

import sys

import pytest

from benchmarks.job.third_party import (
    SCRIPTS_TABLE,
    Script,
    complaints,
    installed,
    measure_script,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("script", SCRIPTS_TABLE, ids=lambda script: script.name)
def test_a_step_is_what_its_author_calls_a_step(script: Script) -> None:
    if not installed(script.requires, sys.executable):
        pytest.skip(f"{script.requires} isn't installed; pip install -e '.[slow]'")
    assert complaints(script, measure_script(script, sys.executable), timed=False) == []
