"""Inputs of runs in files: JSON Lines, text with one value a line, or tables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.chains.graph import Chain
from trimtab.chains.inputs import checked_input
from trimtab.errors import UsageError

if TYPE_CHECKING:
    import polars as pl


@dataclass
class InputFile:
    """The contents of a file: values, the line of each, and the problems of other lines.

    Of a table lines are rows, and `rows` has all columns of those with a value.
    """

    values: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[UsageError] = field(default_factory=list)
    rows: pl.DataFrame | None = None
    unit: str = "line"


def read_inputs(path: Path, chain: Chain, block_rows: int = 0) -> InputFile:
    """The inputs in a file. Raises UsageError if it cannot be read; a broken line is a problem of its own.

    Args:
        block_rows: of a table, the rows of a block that is one input; 0 = each row is one.
    """
    from trimtab.chains.data_tables import is_table  # loads a library of tables

    if is_table(path):
        return _read_rows(path, chain, block_rows)
    if block_rows:
        expected = "a table: .parquet, .arrow or .csv"
        raise UsageError("has no blocks of rows", file=str(path), field="--block-rows", expected=expected)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"cannot be read: {reason}", file=str(path), expected="JSON Lines") from error
    found = InputFile()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = line if path.suffix == ".txt" else json.loads(line)
            checked_input(chain, value, "input")
        except json.JSONDecodeError as error:
            where = f"line {number}, column {error.colno}"
            found.problems.append(UsageError(f"not JSON: {error.msg}", file=str(path), field=where))
        except UsageError as error:
            found.problems.append(_in_line(error, path, f"line {number}"))
        else:
            found.values.append(value)
            found.lines.append(number)
    return found


def _read_rows(path: Path, chain: Chain, block_rows: int) -> InputFile:
    from trimtab.chains.data_tables import TableInputs, is_csv, read_table, with_numbers

    table = read_table(path, chain)
    found = InputFile(unit="block" if block_rows else "row")
    try:
        inputs = list(TableInputs([table], chain, block_rows))
        if is_csv(path) and not block_rows:
            inputs = [with_numbers(row, chain) for row in inputs]
    except UsageError as error:
        raise UsageError(
            error.problem, file=str(path), field=error.field, value=error.value, expected=error.expected
        ) from None
    for number, value in enumerate(inputs, 1):
        try:
            checked_input(chain, value, "input")
        except UsageError as error:
            found.problems.append(_in_line(error, path, f"{found.unit} {number}"))
        else:
            found.values.append(value)
            found.lines.append(number)
    if not block_rows:
        found.rows = table[[number - 1 for number in found.lines]]
    return found


def _in_line(error: UsageError, path: Path, where: str) -> UsageError:
    return UsageError(
        error.problem,
        file=str(path),
        field=f"{where}{_part(error.field)}",
        value=error.value,
        expected=error.expected,
    )


def _part(field: str | None) -> str:
    """The part of an input that an error names, behind its line."""
    name = (field or "").removeprefix("input").lstrip(".")
    return f", {name}" if name else ""
