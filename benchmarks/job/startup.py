"""How long `tune --help` takes, interleaved with a Python that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.job.jobs import settle
from benchmarks.report import Anchor, Options, Report, Row

TARGET_SECONDS = 0.5
ROUNDS = 15
QUICK_ROUNDS = 5


def measure_startup(options: Options, report: Report) -> None:
    """Median wall seconds; the first round only warms the file cache."""
    settle()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "tune --help": [sys.executable, "-m", "tuner", "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    for number in range(rounds + 1):
        for name, command in commands.items():
            taken = _seconds(command)
            if number:
                seconds[name].append(taken)
    nothing = statistics.median(seconds["python -c pass"])
    own = seconds["tune --help"]
    middle = statistics.median(own)
    report.add(
        Row(
            "startup/help",
            "seconds of `tune --help`, median (interval: fastest and slowest)",
            middle,
            low=min(own),
            high=max(own),
            n=rounds,
            anchor=Anchor("python -c pass", nothing),
            target=TARGET_SECONDS,
            met=middle < TARGET_SECONDS,
        )
    )


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started
