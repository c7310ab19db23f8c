"""What makes two records the same: canonical JSON and content addresses.

A content address is the SHA-256 (hex) of a record's kind and its content: two machines that record
the same thing name it alike, so importing it twice adds nothing. These formats are kept for ever:
another one would split every team's history in two.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from typing import Any

from perfmodel.errors import RecordError

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, ASCII only; NaN and infinity are refused (RecordError)."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{str(value)[:80]!r} can't be written as JSON: {error}") from error


def content_address(kind: str, value: Any) -> str:
    """SHA-256 hex digest (64 characters) of `kind`, a newline and the canonical JSON of `value`."""
    return hashlib.sha256(f"{kind}\n{canonical_json(value)}".encode()).hexdigest()


def observation_address(parts: Iterable[str], facts: Iterable[str], packed: bytes) -> str:
    """SHA-256 hex digest of a line `measurement`, a line for each part and fact, and `packed`.

    `parts` are content addresses and `facts` canonical JSON, so that none holds a newline. Nothing
    shared is hashed again and samples aren't written out as decimals: a measurement's address is
    computed millions of times.
    """
    lines = "\n".join(("measurement", *parts, *facts, ""))
    return hashlib.sha256(lines.encode("ascii") + packed).hexdigest()


def paired(text: str) -> str:
    """`text` with every pair of surrogates as the one character that it means.

    JSON can't tell them apart, and what a process prints may hold either.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def pack_samples(samples: tuple[float, ...]) -> bytes:
    """Samples as float64, little-endian."""
    return struct.pack(f"<{len(samples)}d", *samples)


def unpack_samples(packed: bytes) -> tuple[float, ...]:
    """Inverse of `pack_samples`; RecordError for a torn value."""
    if len(packed) % 8:
        raise RecordError(f"samples of {len(packed)} bytes; allowed: a multiple of 8")
    return struct.unpack(f"<{len(packed) // 8}d", packed)
