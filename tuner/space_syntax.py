"""The space as written on a command line: `batch_size=4..64:x2`, `precision=fp32,bf16`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfmodel.errors import SpaceError, UsageError
from perfmodel.records import Configuration, Value
from perfmodel.space import Parameter, Space

MAX_VALUE_LENGTH = 1_000

MAX_VALUES = 10_000
"""Most values that one range may expand to."""

VALUES_HELP = "4..64:x2 (times 2), 8..64:+8 (plus 8), 1..4, a list 1,2,8, true,false, or words"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::([x+])({_NUMBER}))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_value(text: str) -> Value:
    """One value: true/false, an integer, a float, else the text itself."""
    text = text.strip()
    if len(text) > MAX_VALUE_LENGTH:
        raise UsageError(f"value of {len(text)} characters; allowed: {MAX_VALUE_LENGTH}")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.match(r"[+-]?0\d", text):  # 007 is a name, not a number
        return text
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if not re.fullmatch(_NUMBER, text):
        return text
    if not math.isfinite(float(text)):
        raise UsageError(f"value {text!r}; allowed: numbers up to 1e308")
    return float(text)


def parse_assignment(text: str, *, option: str) -> tuple[str, str]:
    """Split `NAME=TEXT`; UsageError naming `option` unless NAME is an identifier."""
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"{option} {text!r}; allowed: NAME=..., NAME of letters, digits and _")
    return name, rest


def parse_parameter(text: str) -> Parameter:
    """`NAME=VALUES` → Parameter; SpaceError on an empty or endless range."""
    name, values = parse_assignment(text, option="--vary")
    if values == "":
        raise SpaceError(f"--vary {text!r} has no values; allowed: {VALUES_HELP}")
    match = _RANGE.fullmatch(values.replace(" ", ""))
    if match is None:
        if ".." in values:
            raise SpaceError(f"--vary {text!r}: not a range; allowed: {VALUES_HELP}")
        return Parameter(name, tuple(parse_value(v) for v in values.split(",")))
    first, last, how, step = match.groups()
    return Parameter(name, _expand(text, first, last, how or "+", step or "1"))


def _expand(text: str, first: str, last: str, how: str, step: str) -> tuple[Value, ...]:
    whole = all(re.fullmatch(r"[+-]?\d+", part) for part in (first, last, step))
    start, end, by = float(first), float(last), float(step)
    if not all(math.isfinite(x) for x in (start, end, by)):
        raise SpaceError(f"--vary {text!r}; allowed: numbers up to 1e308")
    if how == "x" and (by <= 1 or start <= 0):
        raise SpaceError(f"--vary {text!r}: x needs a factor above 1 and a start above 0")
    if how == "+" and by <= 0:
        raise SpaceError(f"--vary {text!r}: + needs a step above 0")
    values: list[Value] = []
    # The tolerance keeps 0.1..0.3:+0.1 from losing its end to rounding.
    limit = end + abs(end) * 1e-9
    for i in range(MAX_VALUES + 1):
        try:
            current = start * by**i if how == "x" else start + by * i
        except OverflowError:
            break
        if current > limit:
            break
        values.append(round(current) if whole else float(f"{current:.12g}"))
    if not values:
        raise SpaceError(f"--vary {text!r}: the range is empty; {first} is above {last}")
    if len(values) > MAX_VALUES:
        raise SpaceError(f"--vary {text!r}: more than {MAX_VALUES:,} values")
    return tuple(values)


def parse_space(vary: Sequence[str], require: Sequence[str] = ()) -> Space:
    """The `--vary` and `--require` options → a Space with at least one legal configuration."""
    if not vary:
        raise SpaceError("the space is empty: give at least one --vary NAME=VALUES")
    space = Space(tuple(parse_parameter(text) for text in vary), tuple(require))
    space.configurations  # noqa: B018  (raises SpaceError when the constraints contradict)
    return space


def with_default(space: Space, given: dict[str, Value]) -> tuple[Space, Configuration]:
    """The default configuration: `given` values, else each parameter's first.

    A given value that isn't among its parameter's values is added to the space: people want to
    compare with what they run today. UsageError for an unknown name; SpaceError when the default
    breaks a constraint. Where nothing is given and the first values break a constraint, the first
    legal configuration is the default.
    """
    for name in given:
        if name not in space.names:
            raise UsageError(
                f"--default {name}: no such parameter; --vary has: {', '.join(space.names)}"
            )
    parameters = tuple(
        _with_value(p, given[p.name]) if p.name in given else p for p in space.parameters
    )
    widened = Space(parameters, space.constraints)
    first = {p.name: given.get(p.name, p.values[0]) for p in parameters}
    if Configuration(first) in widened:
        return widened, Configuration(first)
    for configuration in widened:
        if all(_same(configuration[name], value) for name, value in given.items()):
            return widened, configuration
    raise SpaceError(
        f"the default {Configuration(given)} breaks {' or '.join(map(repr, space.constraints))}; "
        "give a --default that is legal, or loosen the --require"
    )


def _with_value(parameter: Parameter, value: Value) -> Parameter:
    if any(_same(value, v) for v in parameter.values):
        return parameter
    values = (*parameter.values, value)
    widened = Parameter(parameter.name, values)
    return Parameter(parameter.name, tuple(sorted(values))) if widened.numeric else widened


def _same(left: Value, right: Value) -> bool:
    return type(left) is type(right) and left == right


def parse_defaults(texts: Sequence[str]) -> dict[str, Value]:
    """The `--default NAME=VALUE` options; UsageError when a name is given twice."""
    given: dict[str, Value] = {}
    for text in texts:
        name, value = parse_assignment(text, option="--default")
        if name in given:
            raise UsageError(f"--default {name} is given twice")
        given[name] = parse_value(value)
    return given
