"""Arithmetic over named values, on Python's `ast` with a whitelist of nodes; never `eval`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from perfmodel.errors import ExpressionError
from perfmodel.records import Value

MAX_LENGTH = 500
MAX_NODES = 200
MAX_EXPONENT = 64
MAX_MAGNITUDE = 1e30

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "sqrt": math.sqrt,
}
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.IfExp,
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Load, ast.And, ast.Or,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
ALLOWED = (
    "allowed: numbers, strings, the parameters' names, + - * / // % **, comparisons, in, and, or, "
    f"not, a if b else c, {', '.join(sorted(_FUNCTIONS))}"
)


class Expression:
    """A checked expression such as `batch_size * accumulation == 64`.

    `names` are the names it may use. ExpressionError when it is malformed, longer than MAX_LENGTH
    characters or MAX_NODES nodes, or uses anything outside the whitelist.
    """

    def __init__(self, text: str, *, names: Collection[str]) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(
                f"expression of {len(text)} characters; allowed: up to {MAX_LENGTH}"
            )
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"expression {text!r} can't be parsed; {ALLOWED}") from error
        nodes = list(ast.walk(tree))
        if len(nodes) > MAX_NODES:
            raise ExpressionError(
                f"expression {text!r} has {len(nodes)} parts; allowed: {MAX_NODES}"
            )
        for node in nodes:
            self._check(node, names)
        self._tree = tree.body
        self.names = frozenset(
            n.id for n in nodes if isinstance(n, ast.Name) and n.id not in _FUNCTIONS
        )

    def _check(self, node: ast.AST, names: Collection[str]) -> None:
        if not isinstance(node, _NODES):
            raise ExpressionError(f"{type(node).__name__} in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.BinOp) and type(node.op) not in _BINARY:
            raise ExpressionError(f"operator in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.UnaryOp) and type(node.op) not in _UNARY:
            raise ExpressionError(f"operator in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.Compare) and any(type(o) not in _COMPARE for o in node.ops):
            raise ExpressionError(f"comparison in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
            raise ExpressionError(f"{node.value!r} in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.Call) and (
            not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords
        ):
            raise ExpressionError(f"call in expression {self.text!r}; {ALLOWED}")
        if isinstance(node, ast.Name) and node.id not in names and node.id not in _FUNCTIONS:
            known = ", ".join(sorted(names)) or "none"
            raise ExpressionError(
                f"unknown name {node.id!r} in expression {self.text!r}; parameters: {known}"
            )

    def evaluate(self, values: Mapping[str, Value]) -> Any:
        """The expression's value; ExpressionError on a type mismatch, overflow or division by 0."""
        try:
            return self._evaluate(self._tree, values)
        except (TypeError, ValueError, ArithmeticError, KeyError, RecursionError) as error:
            at = " ".join(f"{k}={v!r}" for k, v in values.items())
            raise ExpressionError(
                f"expression {self.text!r} fails at {at}: {type(error).__name__}: {error}"
            ) from error

    def number(self, values: Mapping[str, Value]) -> float:
        """Like `evaluate`, for a positive finite number; ExpressionError for anything else."""
        result = self.evaluate(values)
        if (
            isinstance(result, bool)
            or not isinstance(result, int | float)
            or not (0 < result < math.inf)
        ):
            raise ExpressionError(
                f"expression {self.text!r} gives {result!r}; allowed: a positive number"
            )
        return float(result)

    def _evaluate(self, node: ast.expr, values: Mapping[str, Value]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._evaluate(left, values), self._evaluate(right, values))
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._evaluate(operand, values))
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*(self._evaluate(a, values) for a in args))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return tuple(self._evaluate(e, values) for e in elements)
            case _:
                return self._logic(node, values)

    def _logic(self, node: ast.expr, values: Mapping[str, Value]) -> Any:
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._evaluate(p, values) for p in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(self._evaluate(p, values) for p in parts)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._evaluate(body if self._evaluate(test, values) else orelse, values)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                current = self._evaluate(left, values)
                for op, right in zip(ops, rights, strict=True):
                    following = self._evaluate(right, values)
                    if not _COMPARE[type(op)](current, following):
                        return False
                    current = following
                return True
            case _:
                raise TypeError(f"{type(node).__name__} has no value")

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        for side in (left, right):
            if isinstance(side, str | tuple):
                raise TypeError(f"no arithmetic on {side!r}")
            if abs(side) > MAX_MAGNITUDE:
                raise OverflowError(f"{side:.3g} is beyond {MAX_MAGNITUDE:g}")
        if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
            raise OverflowError(f"exponent {right} is beyond {MAX_EXPONENT}")
        result = _BINARY[type(op)](left, right)
        if isinstance(result, complex):
            raise ValueError("the result is a complex number")
        if abs(result) > MAX_MAGNITUDE:
            raise OverflowError(f"the result is beyond {MAX_MAGNITUDE:g}")
        return result
