"""What is wrong with a scenario, in the user's words: field path, value, and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trimtab.domain.errors import ScenarioError
from trimtab.experiments.spec.references import nearest

_SHORT = Repr()
_SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxstring, _SHORT.maxother = 3, 4, 4, 60, 60
_PREFIXES = ("Input should be ", "Value error, ", "Input should have ")


M = TypeVar("M", bound=BaseModel)


def checked(make: Callable[[], M], model: type[BaseModel], file: str) -> M:
    """What `make` returns; what pydantic finds wrong becomes a ScenarioError in the terms of the file."""
    try:
        return make()
    except ValidationError as error:
        raise scenario_error(error, model, file) from error


def scenario_error(error: ValidationError, model: type[BaseModel], file: str) -> ScenarioError:
    """All that pydantic found, as one error; fields are named as in the file."""
    schema = model.model_json_schema()
    problems = [_problem(details, schema) for details in error.errors()]
    if len(problems) == 1:
        return ScenarioError(**problems[0], file=file)
    lines = dict.fromkeys(str(ScenarioError(**problem)) for problem in problems)
    return ScenarioError("\n  ".join([f"{len(lines)} problems", *lines]), file=file)


def _problem(details: ErrorDetails, schema: Mapping[str, Any]) -> dict[str, Any]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    path, known = _located(details["loc"], schema)
    if kind == "extra_forbidden":
        key = details["loc"][-1]
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
    problem, shown = "cannot be used", None if isinstance(value, BaseModel) else _plain(value)
    return {"problem": problem, "field": field, "value": shown, "expected": _expected(details["msg"])}


class _Short(str):
    """Text that stands for itself in a message."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: object) -> object:
    """Scalars as they are; anything long cut short."""
    is_scalar = isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 60)
    return value if is_scalar or value is None else _Short(_SHORT.repr(value))


def _expected(message: str) -> str:
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message.split(", unable to parse")[0]


def field_path(path: Sequence[str | int]) -> str:
    """`cluster.nodes[2].slots`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _located(
    loc: Sequence[str | int], schema: Mapping[str, Any]
) -> tuple[tuple[str | int, ...], tuple[str, ...]]:
    """Path within the file, and the keys known at its end.

    Pydantic's location also names the member of a union that was tried: a part that leads nowhere in the
    schema, or one in angle brackets.
    """
    here, path = list(_branches(schema, schema)), []
    for part in loc:
        beyond = [inner for branch in here for inner in _step(branch, part, schema)]
        if beyond and not str(part).startswith("<"):
            here = beyond
            path.append(part)
    return tuple(path), tuple(key for branch in here for key in branch.get("properties", {}))


def _step(branch: Mapping[str, Any], part: str | int, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, int):
        inner = branch.get("items")
    else:
        inner = branch.get("properties", {}).get(part, branch.get("additionalProperties"))
    if isinstance(inner, Mapping):
        yield from _branches(inner, root)


def _branches(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The members of a union, references resolved."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    members = schema.get("oneOf") or schema.get("anyOf")
    if members is None:
        yield schema
    else:
        for member in members:
            yield from _branches(member, root)
