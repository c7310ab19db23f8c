"""Progress on standard error: a bar on a terminal, plain lines elsewhere, nothing when silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

from perfmodel.records import Configuration, Measurement
from tuner.objective import Objective
from tuner.quantities import seconds_text
from tuner.study import Limits, failure_text


class _Left(ProgressColumn):
    """The time left, told anew whenever the bar is drawn."""

    def __init__(self, tell: Callable[[], str]) -> None:
        super().__init__()
        self._tell = tell

    def render(self, task: Task) -> Text:
        """The column's text."""
        return Text(self._tell())


class ProgressReport:
    """The observer of a study; a context manager that owns the bar."""

    def __init__(self, objective: Objective, limits: Limits, console: Console) -> None:
        self._objective = objective
        self._limits = limits
        self._console = console
        self._start = time.monotonic()
        self._best = ""
        self._bar = Progress(
            TextColumn("trial"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            _Left(self._left),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=limits.trials)

    def __enter__(self) -> ProgressReport:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def _left(self) -> str:
        left = self._limits.seconds - (time.monotonic() - self._start)
        return f"{seconds_text(max(left, 0.0))} left" if left >= 1 else "budget used"

    def started(self, number: int, configuration: Configuration, purpose: str) -> None:
        """Show what is being measured."""
        self._bar.update(
            self._task,
            description=f"{purpose} {configuration}  {self._best}",
            total=max(self._limits.trials, number),
        )

    def ended(self, number: int, measurement: Measurement, best: Configuration | None) -> None:
        """One line per trial."""
        value = self._objective.value(measurement)
        if measurement.ok:
            result = f"{self._objective.text(value)} ± {measurement.spread / 2:.1%}"
        else:
            result = failure_text(measurement)
        if best == measurement.configuration and measurement.ok:
            self._best = f"best {self._objective.text(value)}"
        purpose = measurement.conditions.get("purpose", "trial")
        self._console.print(
            f"{purpose} {number}: {measurement.configuration}: {result}  [{self._left()}]",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        self._bar.update(self._task, completed=number)

    def note(self, text: str) -> None:
        """A line of its own."""
        self._console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
