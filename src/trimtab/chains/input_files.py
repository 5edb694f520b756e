"""Inputs of runs in files: JSON Lines, or text with one value a line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.chains.graph import Chain
from trimtab.chains.inputs import checked_input
from trimtab.errors import UsageError


@dataclass
class InputFile:
    """The contents of a file: values, the line of each, and the problems of other lines."""

    values: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[UsageError] = field(default_factory=list)


def read_inputs(path: Path, chain: Chain) -> InputFile:
    """The inputs in a file. Raises UsageError if it cannot be read; a broken line is a problem of its own."""
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
            found.problems.append(
                UsageError(
                    error.problem,
                    file=str(path),
                    field=f"line {number}{_part(error.field)}",
                    value=error.value,
                    expected=error.expected,
                )
            )
        else:
            found.values.append(value)
            found.lines.append(number)
    return found


def _part(field: str | None) -> str:
    """The part of an input that an error names, behind its line."""
    name = (field or "").removeprefix("input").lstrip(".")
    return f", {name}" if name else ""
