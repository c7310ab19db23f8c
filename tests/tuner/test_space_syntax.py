"""The space as people write it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import SpaceError, UsageError
from perfmodel.records import Configuration
from tuner.space_syntax import parse_defaults, parse_parameter, parse_space, with_default


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("b=4..64:x2", (4, 8, 16, 32, 64)),
        ("b=4..63:x2", (4, 8, 16, 32)),
        ("b=8..64:+16", (8, 24, 40, 56)),
        ("b=1..4", (1, 2, 3, 4)),
        ("b=3..3", (3,)),
        ("b=-2..2:+2", (-2, 0, 2)),
        ("b=1,2,8", (1, 2, 8)),
        ("b=0.1..0.3:+0.1", (0.1, 0.2, 0.3)),
        ("b=1e-4..1e-2:x10", (1e-4, 1e-3, 1e-2)),
        ("b=2..9:x1.5", (2.0, 3.0, 4.5, 6.75)),
        ("b=true,false", (True, False)),
        ("b=fp32,bf16", ("fp32", "bf16")),
        ("b=,--compile", ("", "--compile")),
        ("b=007,1", ("007", 1)),
        ("b=1.0,2", (1.0, 2)),
        ("b=a=b", ("a=b",)),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    parsed = parse_parameter(text).values
    assert parsed == values
    assert [type(v) for v in parsed] == [type(v) for v in values]


@pytest.mark.parametrize(
    "text",
    [
        "b", "=1", "1b=2", "b c=1", "b=", "b=4..", "b=..4", "b=9..1", "b=1..9:x1", "b=0..9:x2",
        "b=1..9:+0", "b=1..9:-1", "b=a..z", "b=1..1000000000", "b=1e999", "b=1..1e999:x2",
        "b=1..1e300:x1e200x",
        "b=" + "1" * 5000, "b=1,1", "b=1..2..3",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_parameter(text)
    assert caught.value.exit_code == 2


@given(st.integers(1, 1000), st.integers(0, 5000), st.integers(2, 9))
def test_geometric_ranges_stay_inside(start: int, width: int, factor: int) -> None:
    values = parse_parameter(f"b={start}..{start + width}:x{factor}").values
    assert values[0] == start
    assert all(isinstance(v, int) and start <= v <= start + width for v in values)
    assert values[-1] * factor > start + width  # type: ignore[operator]


@given(st.text(max_size=30))
def test_any_text_is_a_parameter_or_our_error(text: str) -> None:
    with suppress(UsageError):
        parse_parameter(f"b={text}")


def test_space_needs_a_parameter_and_a_legal_configuration() -> None:
    with pytest.raises(SpaceError, match="--vary"):
        parse_space([])
    with pytest.raises(SpaceError, match="ruled out"):
        parse_space(["b=1,2"], ["b > 2"])


def test_default_takes_first_values() -> None:
    space, default = with_default(parse_space(["b=4,8", "p=x,y"]), {"b": 8})
    assert default == Configuration(b=8, p="x")
    assert len(space) == 4


def test_default_outside_the_values_joins_the_space() -> None:
    space, default = with_default(parse_space(["b=4..16:x2"]), {"b": 10})
    assert default == Configuration(b=10)
    assert space.parameters[0].values == (4, 8, 10, 16)


def test_default_moves_to_a_legal_configuration() -> None:
    space = parse_space(["b=4,8,16", "a=1,2,4"], ["b*a==16"])
    assert with_default(space, {})[1] == Configuration(b=4, a=4)
    assert with_default(space, {"a": 2})[1] == Configuration(b=8, a=2)
    with pytest.raises(SpaceError, match="breaks"):
        with_default(space, {"a": 1, "b": 4})


def test_default_of_an_unknown_parameter() -> None:
    with pytest.raises(UsageError, match="--vary has: b"):
        with_default(parse_space(["b=1,2"]), {"batch": 1})
    with pytest.raises(UsageError, match="twice"):
        parse_defaults(["b=1", "b=2"])
