"""Conditions on rows of a file, as a user writes them: `status == 200 and model != "test"`.

Names are columns of the file; `backticks` hold names with spaces or dots. A comparison with a number takes
the column as numbers, one with text as text. A row without a value fulfils only `is None`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.validation.names import nearest

_EXPECTED: Final = 'comparisons such as status == 200, model != "test", tokens > 0, joined by and, or, not'
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[pl.Expr, Any], pl.Expr]]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Lt: lambda left, right: left < right,
    ast.LtE: lambda left, right: left <= right,
    ast.Gt: lambda left, right: left > right,
    ast.GtE: lambda left, right: left >= right,
    ast.In: lambda left, right: left.is_in(list(right)),
    ast.NotIn: lambda left, right: ~left.is_in(list(right)),
}


def row_filter(text: str, columns: Collection[str]) -> pl.Expr:
    """The condition on rows of a table with these columns. Raises TraceError."""
    quoted: dict[str, str] = {}

    def name_of(match: re.Match[str]) -> str:
        return quoted.setdefault(match[1], f"_quoted_{len(quoted)}")

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", name_of, text.strip()), mode="eval")
    except SyntaxError as error:
        raise _refused(text, _EXPECTED) from error
    names = {placeholder: name for name, placeholder in quoted.items()}
    return _Condition(text, columns, names).of(tree.body).fill_null(value=False)


def _refused(text: str, expected: str) -> TraceError:
    return TraceError("no condition on rows", field="where", value=text, expected=expected)


class _Condition:
    def __init__(self, text: str, columns: Collection[str], names: Mapping[str, str]) -> None:
        self.text, self.columns, self.names = text, columns, names

    def of(self, node: ast.expr) -> pl.Expr:
        """An expression that is true or false for each row."""
        if isinstance(node, ast.BoolOp):
            parts = [self.of(value) for value in node.values]
            return pl.all_horizontal(parts) if isinstance(node.op, ast.And) else pl.any_horizontal(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.of(node.operand).fill_null(value=False)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        raise _refused(self.text, _EXPECTED)

    def _comparison(self, node: ast.Compare) -> pl.Expr:
        if len(node.ops) != 1 or not isinstance(node.left, ast.Name):
            raise _refused(self.text, _EXPECTED)
        column, op, value = self._column(node.left), node.ops[0], self._value(node.comparators[0])
        if isinstance(op, ast.Is | ast.IsNot) or value is None:
            is_missing = column.is_null()
            return ~is_missing if isinstance(op, ast.IsNot | ast.NotEq) else is_missing
        each = value if isinstance(value, tuple) else (value,)
        if isinstance(op, ast.In | ast.NotIn) != isinstance(value, tuple) or not each:
            raise _refused(self.text, _EXPECTED)
        are_numbers = all(isinstance(one, int | float) for one in each)
        typed = column.cast(pl.Float64, strict=False) if are_numbers else column.cast(pl.String)
        told = tuple(one if are_numbers else str(one) for one in each)
        return _COMPARED[type(op)](typed, told if isinstance(value, tuple) else told[0])

    def _column(self, node: ast.Name) -> pl.Expr:
        name = self.names.get(node.id, node.id)
        if name not in self.columns:
            raise _refused(self.text, f"columns of the file; {name!r} is none: {nearest(name, self.columns)}")
        return pl.col(name)

    def _value(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except ValueError as error:
            raise _refused(self.text, _EXPECTED) from error
        return tuple(value) if isinstance(value, list | tuple | set) else value
