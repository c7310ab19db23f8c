"""Durations and sizes as people write them: `90s`, `5m`, `1h30m`, `8GiB`, `500MB`."""

from __future__ import annotations

import re

from perfmodel.errors import UsageError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1h30m` → seconds; UsageError unless positive."""
    compact = text.strip().lower().replace(" ", "")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise UsageError(f"duration {text!r}; allowed: 90s, 5m, 1h30m")
    seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"duration {text!r}; allowed: more than 0")
    return seconds


def parse_bytes(text: str) -> int:
    """`8GiB`, `500MB`, `2g` → bytes (KiB, k are 1024; KB is 1000); UsageError unless positive."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise UsageError(f"size {text!r}; allowed: 8GiB, 500MB")
    size = int(float(match[1]) * _BYTES[match[2]])
    if size <= 0:
        raise UsageError(f"size {text!r}; allowed: more than 0")
    return size


def seconds_text(seconds: float) -> str:
    """A duration for people, three significant digits: `850 µs`, `12.3 ms`, `4.56 s`, `2m05s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def number_text(value: float) -> str:
    """A rate for people, four significant digits: `0.1235`, `12.35`, `1,235`, `123,500`."""
    return f"{float(f'{value:.4g}'):,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def bytes_text(size: float) -> str:
    """A size for people: `512 B`, `1.50 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
