"""The common part of scenario files of every kind of work."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pydantic import PrivateAttr

from trimtab.errors import ScenarioError
from trimtab.experiments.provenance import PATH_KEYS
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked

F = TypeVar("F", bound="ScenarioFile")
P = ParamSpec("P")
R = TypeVar("R")


class ScenarioFile(Spec):
    """A scenario file of any kind. Each kind declares these fields in its own order, with own defaults."""

    if TYPE_CHECKING:
        name: str
        description: str
        policies: tuple[str, ...]
        seeds: int | tuple[int, ...]
        sort_by: str

    _file: str = PrivateAttr("")  # as errors name it

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.hash())

    def seed_list(self) -> tuple[int, ...]:
        """The seeds as a list."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def content(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """The values that differ from defaults, as in a file."""
        values = self.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
        return {"kind": kind, **values} if (kind := kind_key(type(self))) else values

    def hash(self) -> str:
        """SHA-256 of the file's values, without comments, formatting, defaults and folders.

        A trace counts by the name of its file, not by its content.
        """
        content = _without_folders(self.content(exclude={"description"}))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def replaced(
        self: F,
        *,
        policies: Sequence[str] | None = None,
        seeds: int | Sequence[int] | None = None,
        **fields: Any,
    ) -> F:
        """The scenario with other values of these fields; None keeps them. Raises ScenarioError."""
        changed: dict[str, Any] = dict(self) | fields
        if policies is not None:
            changed["policies"] = tuple(policies)
        if seeds is not None:
            changed["seeds"] = tuple(seeds) if isinstance(seeds, Iterable) else seeds
        made = checked(lambda: type(self).model_validate(changed), type(self), self.known_as, ScenarioError)
        return made.read_from(self._file)

    @property
    def known_as(self) -> str:
        """The file that it was read from, else its name."""
        return self._file or self.name

    def read_from(self: F, file: str) -> F:
        """This scenario, known by a file."""
        self._file = file
        return self


def names_file(build: Callable[Concatenate[F, P], R]) -> Callable[Concatenate[F, P], R]:
    """A function of a scenario whose ScenarioErrors name its file."""

    @functools.wraps(build)
    def named(scenario: F, /, *args: P.args, **more: P.kwargs) -> R:
        try:
            return build(scenario, *args, **more)
        except ScenarioError as error:
            if error.file:
                raise
            told: dict[str, Any] = {"field": error.field, "value": error.value, "expected": error.expected}
            raise ScenarioError(error.problem, file=scenario.known_as, **told) from error

    return named


def kind_key(model: type[ScenarioFile]) -> str:
    """The value of `kind` in files of this kind; "" for requests, whose files have none."""
    field = model.model_fields.get("kind")
    return "" if field is None else str(field.default)


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            k: Path(v).name if k in PATH_KEYS and isinstance(v, str) else _without_folders(v)
            for k, v in value.items()
        }
    return [_without_folders(v) for v in value] if isinstance(value, list) else value
