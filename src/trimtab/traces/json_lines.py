"""Files of one JSON object a line: their keys, and values within objects by their paths."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trimtab.errors import TraceError


def table_at(value: Any, field: str, file: str) -> Mapping[str, Any]:
    """An object; an empty one for null."""
    if value is not None and not isinstance(value, Mapping):
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="an object")
    return value or {}


def tables_at(value: Any, field: str, file: str) -> list[Mapping[str, Any]]:
    """A list of objects; an empty one for null."""
    if value is not None and not isinstance(value, list):
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="a list of objects")
    for k, entry in enumerate(value or ()):
        if not isinstance(entry, Mapping):
            raise TraceError(
                "cannot be used", file=file, field=f"{field}[{k}]", value=entry, expected="an object"
            )
    return value or []


def text_at(value: Any, field: str, file: str, expected: str = "a name") -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TraceError("missing value", file=file, field=field, value=value, expected=expected)
    return value


def names_at(value: Any, field: str, file: str) -> list[str]:
    """A list of names; an empty one for null."""
    is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    if value is not None and not is_list:
        raise TraceError("cannot be used", file=file, field=field, value=value, expected="a list of names")
    return value or []


def amount_at(value: Any, field: str, file: str) -> float:
    """A finite number, at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise TraceError(
            "value out of range", file=file, field=field, value=value, expected="a number, at least 0"
        )
    return float(value)


_NESTED_MAX: Final = 100  # paths into objects that are columns
KEPT_WHOLE: Final = ("resourceSpans",)
"""Keys of lists in objects that are read as they are."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:]')
_PLAIN_KEY: Final = re.compile(r"[\w-]+")


def refuse_whole_json(path: Path, lines: list[str]) -> None:
    """Refuse JSON that is one value over many lines, with the command that makes it one object a line."""
    head = "".join(lines[:2]).replace(" ", "")
    if head.startswith("[{") or lines[0].strip() == "{":
        key = rows_key("\n".join(lines))
        program = "'.[]'" if head.startswith("[") else "." if key in (None, *KEPT_WHOLE) else f"'.{key}[]'"
        expected = f"one object a line, as `jq -c {program} {path.name}` writes it"
        raise TraceError("one JSON value over many lines", file=str(path), expected=expected)


def rows_key(text: str) -> str | None:
    """The first key of a JSON object whose value is a list of objects; `text` may be its beginning alone.

    Only tokens of JSON are looked at: what a string says counts as nothing.
    """
    depth, before = 0, ["", "", ""]
    for token in (match[0] for match in _TOKEN.finditer(text)):
        if depth == 2 and token == "{" and before[1:] == [":", "["]:
            return str(json.loads(before[0]))
        depth += (token in "[{") - (token in "]}")
        before = [*before[1:], token]
    return None


def keys_of(path: Path, lines: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys of the first lines, in order of appearance, and paths of values in objects, as `usage.tokens`.

    A later line may leave some out, or be damaged.
    """
    first = _json_object(path, lines[0], 1)
    keys, nested = dict.fromkeys(first), dict.fromkeys(_paths(first))
    for line in filter(str.strip, lines[1:]):
        try:
            found = _json_object(path, line, 0)
        except TraceError:  # reading tells its line
            continue
        keys |= dict.fromkeys(found)
        nested |= dict.fromkeys(_paths(found))
    return tuple(keys), tuple(path for path in nested if path not in keys)[:_NESTED_MAX]


def _paths(found: Mapping[str, object], before: str = "") -> Iterator[str]:
    """Paths of plain values within the objects of an object."""
    for key, value in found.items():
        path = f"{before}{key}"
        if not _PLAIN_KEY.fullmatch(key):
            continue
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
        elif before and not isinstance(value, list):
            yield path


def _json_object(path: Path, line: str, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise TraceError(
            "no JSON object",
            file=str(path),
            field=f"line {number}",
            value=line[:80],
            expected="one object a line",
        )
    return value
