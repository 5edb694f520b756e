"""Problems of a settings file in the user's words: field path, value, and the expected value.

Values of fields whose schema says `writeOnly`, and passwords in URLs, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trimtab.errors import UsageError
from trimtab.validation.names import FieldError, nearest

_SHORT = Repr()
_SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxstring, _SHORT.maxother = 3, 4, 4, 60, 60
_PASSWORD = re.compile(r"//[^/@\s]*@")
_PLAIN = {"a valid tuple": "a list", "a valid dictionary": "a table: key: value"}
_PREFIXES = ("Input should be ", "Value error, ", "Input should have ")


M = TypeVar("M", bound=BaseModel)


def checked(
    make: Callable[[], M],
    model: type[BaseModel],
    file: str,
    kind: type[UsageError],
    further: Callable[[], Iterable[FieldError]] = tuple,
) -> M:
    """The result of `make`; problems that pydantic finds become an error of this kind in the file's terms.

    `further` is asked after an error: for what pydantic checks only when every field by itself is right.
    """
    try:
        return make()
    except ValidationError as error:
        raise _one_error(error, further(), model, file, kind) from error


def _one_error(
    error: ValidationError,
    further: Iterable[FieldError],
    model: type[BaseModel],
    file: str,
    kind: type[UsageError],
) -> UsageError:
    """All that was found, as one error; fields are named as in the file."""
    schema = model.model_json_schema()
    found = error.errors()
    known = {(details["loc"], details["msg"]) for details in found}
    found += [
        field_error.details()
        for field_error in further
        if (field_error.path, field_error.expected) not in known
    ]
    problems = [_problem(details, schema) for details in found]
    if len(problems) == 1:
        return kind(**problems[0], file=file)
    lines = dict.fromkeys(str(kind(**problem)) for problem in problems)
    return kind("\n  ".join([f"{len(lines)} problems", *lines]), file=file)


def _problem(details: ErrorDetails, schema: Mapping[str, Any]) -> dict[str, Any]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    path, here = _located(details["loc"], schema)
    if kind == "extra_forbidden":
        key = details["loc"][-1]
        known = tuple(key for branch in here for key in branch.get("properties", {}))
        return {"problem": "unknown key", "field": field_path((*path, key)), "expected": nearest(key, known)}
    field = field_path(path) or None
    if kind == "missing":
        return {"problem": "missing", "field": field, "expected": "a value"}
    if kind == "union_tag_not_found":
        return {"problem": "missing", "field": field, "expected": f"the key {context['discriminator']}"}
    if kind == "union_tag_invalid":
        inner = f"{field}.{context['discriminator']}".replace("'", "")
        expected = f"one of {context['expected_tags']}"
        return {"problem": "unknown value", "field": inner, "value": context["tag"], "expected": expected}
    is_hidden = isinstance(value, BaseModel) or any(branch.get("writeOnly") for branch in here)
    shown = None if is_hidden else _plain(value)
    return {
        "problem": "cannot be used",
        "field": field,
        "value": shown,
        "expected": _expected(details["msg"]),
    }


class _Short(str):
    """Text that stands for itself in a message."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: object) -> object:
    """Scalars as they are, but for passwords in URLs; anything long cut short."""
    if isinstance(value, str):
        value = _PASSWORD.sub("//…@", value)
    is_scalar = isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 60)
    return value if is_scalar or value is None else _Short(_SHORT.repr(value))


def _expected(message: str) -> str:
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    message = message.split(", unable to parse")[0]
    return _PLAIN.get(message.split(" or instance of ")[0], message)


def field_path(path: Sequence[str | int]) -> str:
    """`cluster.nodes[2].slots`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _located(
    loc: Sequence[str | int], schema: Mapping[str, Any]
) -> tuple[tuple[str | int, ...], list[Mapping[str, Any]]]:
    """Path within the file, and the schemas that may apply at its end.

    Pydantic's location also names the member of a union that was tried: a part that leads nowhere in the
    schema, or one in angle brackets.
    """
    here, path = list(_branches(schema, schema)), []
    for part in loc:
        beyond = [inner for branch in here for inner in _step(branch, part, schema)]
        if beyond and not str(part).startswith("<"):
            here = beyond
            path.append(part)
    return tuple(path), here


def _step(branch: Mapping[str, Any], part: str | int, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, int):
        inner = branch.get("items")
    else:
        others = branch.get("additionalProperties") or next(
            iter(branch.get("patternProperties", {}).values()), None
        )
        inner = branch.get("properties", {}).get(part, others)
    if isinstance(inner, Mapping):
        yield from _branches(inner, root)


def _branches(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The members of a union, references resolved; what is secret as a whole is so in its parts."""
    secret = {"writeOnly": True} if schema.get("writeOnly") else {}
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    members = schema.get("oneOf") or schema.get("anyOf")
    if members is None:
        yield {**schema, **secret}
    else:
        for member in members:
            yield from ({**branch, **secret} for branch in _branches(member, root))
