"""One shape for every figure: rows with interval, anchor and target, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Anchor:
    """A rival's figure: measured in the same run, or `published` by its makers."""

    name: str
    value: float
    published: bool = False


@dataclass(frozen=True)
class Row:
    """One figure. `name` is a path, its first part the section: `choice/train_gpt/guided`.

    `value` is None where it couldn't be measured (a note says why). `met` is None where there is
    no target, and False for a value that is missing although there is one.
    """

    name: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 1
    anchor: Anchor | None = None
    target: float | None = None
    met: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as DESIGN's object; NaN and infinity become null."""
        return {key: _finite(value) for key, value in asdict(self).items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class Report:
    """Rows in the order they were found, and notes: what was skipped or can't be placed, and why.

    Whoever `listen`s hears of each at once: a benchmark may take an hour.
    """

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    listen: Callable[[str], None] = lambda line: None

    def add(self, row: Row) -> None:
        """One more figure."""
        self.rows.append(row)
        self.listen(f"{row.name}: {row.metric} {number(row.value)}")

    def note(self, text: str) -> None:
        """Something the reader of the table must know."""
        self.notes.append(text)
        self.listen(text)

    def progress(self, text: str) -> None:
        """Something only who waits wants to know."""
        self.listen(text)


@dataclass(frozen=True)
class Options:
    """The flags that every benchmark has. `only` are names of rows or of what they begin with."""

    data: Path | None = None
    train_data: Path | None = None
    only: tuple[str, ...] = ()
    seeds: int = 10
    quick: bool = False
    json: bool = False
    rounds: int = 3

    def wants(self, name: str) -> bool:
        """Whether the row `name`, or any row below it, is asked for."""
        parts = name.split("/")
        for asked in self.only:
            given = asked.strip("/").split("/")
            shared = min(len(parts), len(given))
            if parts[:shared] == given[:shared]:
                return True
        return not self.only


Section = Callable[[Options, Report], None]
"""Measures something and adds its rows."""


def parse_options(name: str, text: str, argv: Sequence[str] | None = None) -> Options:
    """The command line of `python -m benchmarks.NAME`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=text)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        help="folder of recorded timings, also ones this benchmark has never seen",
    )
    add("--train-data", type=Path, help="folder of recorded timings that models may learn from")
    add("--only", default="", metavar="ROW,...", help="only rows that begin with one of these")
    add("--seeds", type=int, default=10, help="seeds of every random search (default: 10)")
    add("--rounds", type=int, default=3, help="interleaved rounds of a sweep (default: 3)")
    add("--quick", action="store_true", help="what is recorded already and short measurements")
    add("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args(argv)
    if given.seeds < 1 or given.rounds < 1:
        parser.error("--seeds and --rounds; allowed: 1 or more")
    for folder in (given.data, given.train_data):
        if folder is not None and not folder.is_dir():
            parser.error(f"folder {folder} doesn't exist; give one that holds recorded timings")
    only = tuple(part for part in given.only.split(",") if part)
    return Options(**{**vars(given), "only": only})


def run(
    name: str, text: str, sections: Mapping[str, Section], argv: Sequence[str] | None = None
) -> int:
    """Run the sections that are asked for, print what they found; 0 whenever that worked."""
    options = parse_options(name, text, argv)
    unknown = [part for part in options.only if part.split("/")[0] not in sections]
    if unknown:
        sys.stderr.write(f"--only {unknown[0]!r}; allowed to begin with: {', '.join(sections)}\n")
        return 2
    report = Report(listen=lambda line: print(line, file=sys.stderr, flush=True))
    for section, measure in sections.items():
        if options.wants(section):
            try:
                measure(options, report)
            except Exception as error:  # the other sections still have something to say
                report.note(f"{section}: {type(error).__name__}: {error}")
                report.add(Row(section, "carried through", 0.0, target=1.0, met=False))
    report.rows = [row for row in report.rows if options.wants(row.name)]
    if options.json:
        print(json.dumps([row.to_json() for row in report.rows], indent=2))
    else:
        print(table(report))
    return 0


def number(value: float | None) -> str:
    """Four significant digits; a dash for nothing."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


HEADINGS = ("name", "metric", "value", "low", "high", "n", "anchor", "target", "met")


def table(report: Report) -> str:
    """The rows as a Markdown table, then the notes."""
    lines = [HEADINGS, *(_cells(row) for row in report.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    lines.insert(1, tuple("-" * width for width in widths))
    text = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([*text, *(f"\nnote: {note}" for note in report.notes)])


def _cells(row: Row) -> tuple[str, ...]:
    anchor = ""
    if row.anchor is not None:
        mark = " (published)" if row.anchor.published else ""
        anchor = f"{row.anchor.name} {number(row.anchor.value)}{mark}"
    met = {None: "", True: "yes", False: "NO"}[row.met]
    target = "" if row.target is None else number(row.target)
    figures = (number(row.value), number(row.low), number(row.high), str(row.n))
    return (row.name, row.metric, *figures, anchor, target, met)
