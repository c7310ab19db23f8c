"""The three examples as tunable jobs: command, space, constraint, present values."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.jobs.script import ScriptJob

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Example:
    """What a user would type after `tune run` for one of the examples."""

    name: str
    line: str
    vary: tuple[str, ...]
    default: tuple[str, ...]
    samples: str
    require: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the training command."""
        return tuple(shlex.split(self.line))

    def job(self) -> ScriptJob:
        """The checked job, as `tune run` makes it."""
        from tuner.jobs.script import script_job

        return script_job(
            self.command,
            vary=self.vary,
            require=self.require,
            default=self.default,
            samples=self.samples,
        )

    def arguments(self) -> list[str]:
        """The options and the command behind `tune run`."""
        options = {
            "--vary": self.vary,
            "--require": self.require,
            "--default": self.default,
            "--samples": (self.samples,),
        }
        flat = [part for flag, values in options.items() for v in values for part in (flag, v)]
        return [*flat, "--", *self.command]


EXAMPLES = (
    Example(
        name="train_gpt",
        line=(
            "python examples/train_gpt.py --batch-size {batch_size} --accumulation {accumulation} "
            "--precision {precision} --optimizer {optimizer} --steps 1000"
        ),
        vary=(
            "batch_size=1..32:x2",
            "accumulation=1..32:x2",
            "precision=fp32,bf16",
            "optimizer=foreach,fused,loop",
            "threads=1,2",
            "retain_memory=false,true",
        ),
        require=("batch_size*accumulation==32",),
        default=(
            "batch_size=16",
            "accumulation=2",
            "precision=fp32",
            "optimizer=foreach",
            "threads=2",
            "retain_memory=false",
        ),
        samples="batch_size*accumulation",
    ),
    Example(
        name="train_convnet",
        line=(
            "python examples/train_convnet.py --batch-size {batch_size} --workers {workers} "
            "--precision {precision} --memory-format {memory_format} --steps 1000"
        ),
        vary=(
            "batch_size=16..512:x2",
            "workers=0,1,2",
            "precision=fp32,bf16",
            "memory_format=contiguous,channels_last",
            "threads=1,2",
        ),
        default=(
            "batch_size=64",
            "workers=0",
            "precision=fp32",
            "memory_format=contiguous",
            "threads=2",
        ),
        samples="batch_size",
    ),
    Example(
        name="train_dlrm",
        line=(
            "python examples/train_dlrm.py --batch-size {batch_size} --accumulation {accumulation} "
            "--precision {precision} --gradients {gradients} --steps 1000"
        ),
        vary=(
            "batch_size=128..4096:x2",
            "accumulation=1,2,4,8",
            "precision=fp32,bf16",
            "gradients=dense,sparse",
            "threads=1,2",
        ),
        require=("batch_size*accumulation<=4096",),
        default=(
            "batch_size=512",
            "accumulation=1",
            "precision=fp32",
            "gradients=dense",
            "threads=2",
        ),
        samples="batch_size*accumulation",
    ),
)


def settle() -> None:
    """Work in the project's root, with this interpreter found as `python`.

    So the recorded commands are the README's and hold no path of this machine.
    """
    os.chdir(ROOT)
    folder = str(Path(sys.executable).parent)
    if os.environ.get("PATH", "").split(os.pathsep)[0] != folder:
        os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")
