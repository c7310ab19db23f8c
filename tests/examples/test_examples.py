"""The examples train: started as a user would, for a few steps each."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("train_gpt", "train_convnet", "train_dlrm")

VARIANTS = [
    ("train_gpt", "--batch-size 2 --accumulation 2 --precision bf16 --optimizer fused"),
    ("train_gpt", "--batch-size 3 --checkpointing on --optimizer loop"),
    ("train_convnet", "--batch-size 16 --workers 2 --precision bf16 --memory-format channels_last"),
    ("train_dlrm", "--batch-size 64 --accumulation 2 --precision bf16 --gradients sparse"),
]


def train(script: str, *flags: str) -> str:
    """What the script prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{script}.py"), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed: str) -> list[float]:
    """The losses in the order they were printed."""
    return [float(text) for text in re.findall(r"loss ([\d.]+)", printed)]


@pytest.mark.parametrize(
    ("script", "flags", "fraction"),
    [
        ("train_gpt", "--batch-size 8 --steps 40", 0.75),
        ("train_convnet", "--batch-size 32 --steps 40", 0.5),
        ("train_dlrm", "--batch-size 128 --steps 60 --rows 200 --learning-rate 0.1", 0.95),
    ],
)
def test_the_loss_falls(script: str, flags: str, fraction: float) -> None:
    found = losses(train(script, *flags.split(), "--log-every", "20"))
    assert found[-1] < fraction * found[0], found


@pytest.mark.parametrize(("script", "flags"), VARIANTS)
def test_each_flag_works(script: str, flags: str) -> None:
    found = losses(train(script, *flags.split(), "--steps", "3", "--log-every", "1"))
    assert len(found) == 3


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_gpt", "train_convnet"])
def test_compiled(script: str) -> None:
    flags = "--batch-size 4 --steps 3 --log-every 1 --compile"
    assert len(losses(train(script, *flags.split()))) == 3


@pytest.mark.parametrize("script", SCRIPTS)
def test_none_imports_anything_of_ours(script: str) -> None:
    tree = ast.parse((EXAMPLES / f"{script}.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
        if name
    }
    assert not imported & {"perfmodel", "tuner", "collectors", "db"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_readme_shows_each_with_flags_that_exist(script: str) -> None:
    text = (EXAMPLES / "README.md").read_text()
    used = {
        flag
        for block in re.findall(rf"{script}\.py((?:[^`]|`(?!``))*?)```", text)
        for flag in re.findall(r"(--[a-z][a-z-]+)", block.split("tune run")[0])
    }
    assert used, f"README.md shows no command of {script}.py"
    offered = set(re.findall(r"(--[a-z][a-z-]+)", (EXAMPLES / f"{script}.py").read_text()))
    assert used <= offered
