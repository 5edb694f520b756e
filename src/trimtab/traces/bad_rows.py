"""Rows that cannot be used as they are: what becomes of them, counted, with the first lines of each.

Conditions on rows of a file, as a user writes them: `status == 200 and model != "test"`.

Names are columns of the file; `backticks` hold names with spaces or dots. A comparison with a number takes
the column as numbers, one with text as text. A row without a value fulfils only `is None`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

from trimtab.errors import TraceError
from trimtab.validation.names import nearest

OnBadRow = Literal["error", "drop", "fill"]
Action = Literal["dropped", "filled"]

NAMED: Final = 3  # first lines of a reason


@dataclass(frozen=True, slots=True)
class Repair:
    """The treatment of bad rows of one reason: `places` are the first of them, `example` the first value."""

    action: Action
    reason: str
    rows: int
    places: tuple[str, ...]
    example: str | None

    def in_words(self) -> str:
        """One line for people."""
        value = "" if self.example is None else f" ({self.example!r})"
        more = ", …" if self.rows > len(self.places) else ""
        unit = "row" if self.rows == 1 else "rows"
        return f"{self.action} {self.rows:,} {unit}: {self.reason}{value}, {', '.join(self.places)}{more}"


@dataclass(slots=True)
class _Count:
    rows: int = 0
    places: list[str] = field(default_factory=list)
    example: str | None = None


class Repairs:
    """Collects repairs while a file is read; `place` tells where a row stands."""

    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._counts: dict[tuple[Action, str], _Count] = {}

    def add(self, action: Action, reason: str, row_idxs: pl.Series, example: object = None) -> None:
        """Count rows, given by their positions in the file."""
        if not len(row_idxs):
            return
        count = self._counts.setdefault((action, reason), _Count())
        if not count.rows and example is not None:
            count.example = str(example)[:60]
        count.rows += len(row_idxs)
        missing = NAMED - len(count.places)
        count.places += [self._place(row) for row in row_idxs.head(missing)] if missing > 0 else []

    def all(self) -> tuple[Repair, ...]:
        """In the order in which they were found."""
        return tuple(
            Repair(action, reason, count.rows, tuple(count.places), count.example)
            for (action, reason), count in self._counts.items()
        )


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
