"""Durations and sizes, in and out."""

import pytest

from perfmodel.errors import UsageError
from tuner.quantities import bytes_text, number_text, parse_bytes, parse_seconds, seconds_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5m", 90),
        ("500ms", 0.5),
        ("1d", 86400),
    ],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5x", "m", "5m!", "1e3", "nan"])
def test_bad_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("8GiB", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1.5g", 3 * 2**29),
        ("2 KB", 2000),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "5 parsecs", "GiB", "0.1"])
def test_bad_bytes(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_bytes(text)


def test_for_people() -> None:
    assert [seconds_text(s) for s in (2.5e-5, 0.01234, 4.561, 125, 7265)] == [
        "25 µs", "12.3 ms", "4.56 s", "2m05s", "2h01m05s",
    ]  # fmt: skip
    assert [number_text(x) for x in (0.12346, 12.346, 1234.6, 123456)] == [
        "0.1235", "12.35", "1,235", "123,500",
    ]  # fmt: skip
    assert [bytes_text(b) for b in (512, 2**20, 1.5 * 2**30, 2**42)] == [
        "512 B", "1 MiB", "1.5 GiB", "4 TiB",
    ]  # fmt: skip
