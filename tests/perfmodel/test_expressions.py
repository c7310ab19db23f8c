"""Expressions: what they compute, and what they refuse."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import ExpressionError
from perfmodel.expressions import Expression

NAMES = ("batch_size", "accumulation", "precision")
VALUES = {"batch_size": 16, "accumulation": 4, "precision": "bf16"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch_size*accumulation==64", True),
        ("batch_size*accumulation == 32", False),
        ("8 <= batch_size < 32", True),
        ("8 <= batch_size < 16", False),
        ("precision == 'bf16' or batch_size < 8", True),
        ("precision in ('fp32', 'fp16')", False),
        ("precision not in ['fp32']", True),
        ("not (batch_size % 8)", True),
        ("batch_size ** 2 // 3", 85),
        ("-batch_size + +1", -15),
        ("max(batch_size, 20) / min(4, accumulation)", 5.0),
        ("ceil(log2(batch_size)) + floor(sqrt(17)) + abs(-1)", 9),
        ("1 if precision == 'fp32' else 2", 2),
        ("accumulation and batch_size > 1", True),
    ],
)
def test_values(text: str, expected: object) -> None:
    assert Expression(text, names=NAMES).evaluate(VALUES) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "batch_size *",
        "__import__('os').system('true')",
        "batch_size.__class__",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "batch_size[0]",
        "f'{batch_size}'",
        "open('x')",
        "max(1, key=2)",
        "batch_size << 3",
        "~batch_size",
        "batch_size is 3",
        "b'x' == 'x'",
        "unknown > 1",
        "x := 1",
        "1j",
        "1" * 501,
        "+".join(["1"] * 200),
        "batch_size\x00",
        "(" * 300 + "1" + ")" * 300,
    ],
)
def test_refused_when_written(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text, names=NAMES)
    assert "allowed" in caught.value.message or "unknown name" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "batch_size ** 65",
        "2 ** (2 ** 10)",
        "9 ** 60 ** 2",
        "1e30 * 10 * 10",
        "(10 ** 20) ** 20",
        "'a' * 1000",
        "'a' + 'b'",
        "batch_size / (accumulation - 4)",
        "precision > 3",
        "log2(0)",
        "sqrt(-1)",
        "(-8) ** 0.5",
        "(1, 2) * 3",
        "max()",
    ],
)
def test_refused_when_evaluated(text: str) -> None:
    expression = Expression(text, names=NAMES)
    with pytest.raises(ExpressionError) as caught:
        expression.evaluate(VALUES)
    assert "batch_size=16" in caught.value.message


@pytest.mark.parametrize("text", ["0", "-1", "batch_size > 1", "'x'", "batch_size - 16"])
def test_number_must_be_positive(text: str) -> None:
    with pytest.raises(ExpressionError, match="positive number"):
        Expression(text, names=NAMES).number(VALUES)


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_our_error(text: str) -> None:
    with suppress(ExpressionError):
        Expression(text, names=NAMES).evaluate(VALUES)


@given(
    st.recursive(
        st.sampled_from(["batch_size", "accumulation", "2", "0.5"]),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda t: f"({t[0]}{t[1]}{t[2]})"
        ),
        max_leaves=8,
    )
)
def test_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {}, dict(VALUES))  # noqa: S307  (our own text, as the reference)
    except ZeroDivisionError:
        return
    assert Expression(text, names=NAMES).evaluate(VALUES) == expected
