"""Declared parameters of policies, allocators and their parts, and the check of what is given.

The annotation of a parameter says what it may be:

    bool, int, float                   a value of this type; a float is finite
    Literal["exact", "up"]             one of these words
    Annotated[int, Range(1, 8)]        a number in this range; the names below are the frequent ones
    Annotated[str, NumberList("/")]    numbers in a text, such as "3600/57600"
    Artifact                           learned weights; as text, the path of their file
    Annotated[Positive, Tunable(0.1, 10.0, "log")]
                                       besides, where `trimtab tune` looks for a better value

Other annotations are not checked. A class of a user's own may have them.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from trimtab.domain.artifact import NONE, SUFFIX, Artifact
from trimtab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number.

    Attributes:
        least: its least value.
        most: its largest value.
        excludes_least: whether `least` itself is too small.
        excludes_most: whether `most` itself is too large.
        may_be_infinite: whether inf, which then means "never" or "no limit", is a value.
    """

    least: float = -math.inf
    most: float = math.inf
    excludes_least: bool = False
    excludes_most: bool = False
    may_be_infinite: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether a number is in it; nan is not."""
        is_large_enough = value > self.least if self.excludes_least else value >= self.least
        is_small_enough = value < self.most if self.excludes_most else value <= self.most
        return is_large_enough and is_small_enough and (self.may_be_infinite or abs(value) < math.inf)

    def text(self, noun: str) -> str:
        """In words, such as "an integer from 1 to 8"."""
        never = ", or inf" if self.may_be_infinite else ""
        if self.least == -math.inf:
            return noun
        if self.most == math.inf:
            end = "" if self.excludes_least else " on"
        else:
            end = f" to {'below ' if self.excludes_most else ''}{self.most:g}"
        return f"{noun} {'above' if self.excludes_least else 'from'} {self.least:g}{end}{never}"


@dataclass(frozen=True, slots=True)
class NumberList:
    """Positive numbers in ascending order in one text."""

    separator: str
    may_be_empty: bool = False

    @property
    def text(self) -> str:
        """In words."""
        empty = ', or ""' if self.may_be_empty else ""
        return f"positive numbers in ascending order with {self.separator} between them{empty}"

    def __contains__(self, value: str) -> bool:
        """Whether a text is such a list."""
        if not value:
            return self.may_be_empty
        try:
            numbers = self.numbers(value)
        except ValueError:
            return False
        is_ascending = all(a < b for a, b in itertools.pairwise(numbers))
        return is_ascending and all(0 < number < math.inf for number in numbers)

    def numbers(self, value: str) -> list[float]:
        """The numbers of a text."""
        return [float(part) for part in value.split(self.separator)] if value else []


@dataclass(frozen=True, slots=True)
class Tunable:
    """Where a search looks for a better value of a number; other values that its `Range` has stay allowed.

    Attributes:
        least: the least value that is tried.
        most: the largest.
        scale: "linear", or "log" for a number of which a multiple matters; then `least` is above 0.
    """

    least: float
    most: float
    scale: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        above = 0.0 if self.scale == "log" else -math.inf
        if not above < self.least < self.most < math.inf:
            expected = f"two finite numbers{', above 0,' if self.scale == 'log' else ''} in ascending order"
            raise UsageError(
                "cannot be searched", field="Tunable", value=(self.least, self.most), expected=expected
            )

    @property
    def text(self) -> str:
        """In words."""
        return f"tuned from {self.least:g} to {self.most:g}{', log scale' if self.scale == 'log' else ''}"

    def at(self, place: float) -> float:
        """The value at a place from 0 to 1."""
        if self.scale == "log":
            return float(self.least * (self.most / self.least) ** place)
        return self.least + (self.most - self.least) * place

    def place(self, value: float) -> float:
        """The place of a value, from 0 to 1; of one outside, the nearer end."""
        inside = min(max(value, self.least), self.most)
        if self.scale == "log":
            return math.log(inside / self.least) / math.log(self.most / self.least)
        return (inside - self.least) / (self.most - self.least)


NonNegative: TypeAlias = Annotated[float, Range(0.0)]
Positive: TypeAlias = Annotated[float, Range(0.0, excludes_least=True)]
OneOrMore: TypeAlias = Annotated[float, Range(1.0)]
Fraction: TypeAlias = Annotated[float, Range(0.0, 1.0)]
Natural: TypeAlias = Annotated[int, Range(0)]
Count: TypeAlias = Annotated[int, Range(1)]


def parameters_of(cls: type) -> list[Field[Any]]:
    """The parameters of a class."""
    return [f for f in fields(cls) if f.init] if is_dataclass(cls) else []


def default_of(parameter: Field[Any]) -> Any:
    """Its default; None = it has none."""
    if parameter.default_factory is not MISSING:
        return parameter.default_factory()
    return None if parameter.default is MISSING else parameter.default


@functools.cache
def kinds_of(cls: type) -> dict[str, Any]:
    """What each parameter of a class may be; of one whose annotations can't be read, nothing is known."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception:  # whatever an annotation of a user's own may raise
        return {}
    return {f.name: hints.get(f.name) for f in parameters_of(cls)}


def is_declared(kind: Any) -> bool:
    """Whether an annotation says which values are right, beyond "any text"."""
    return (
        _base(kind) in (bool, int, float, Artifact) or get_origin(kind) is Literal or _limit(kind) is not None
    )


def kind_text(kind: Any) -> str:
    """An annotation in words."""
    base, limit = _base(kind), _limit(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if base in (int, float):
        return (limit or Range()).text("an integer" if base is int else "a number")
    if base is bool:
        return "true or false"
    if base is Artifact:
        return f"the path of a {SUFFIX} file, or {NONE}"
    return str(limit.text if limit else getattr(base, "__name__", base))


def base_type(kind: Any) -> type | None:
    """The type of a parameter's values: bool, int, float or str; None = unknown."""
    base = str if get_origin(kind) is Literal else _base(kind)
    return base if base in (bool, int, float, str) else None


def declared_search(kind: Any) -> Tunable | None:
    """The `Tunable` of an annotation, if it has one."""
    found = [part for part in get_args(kind)[1:] if isinstance(part, Tunable)]
    return found[0] if found and get_origin(kind) is Annotated else None


def tunable(kind: Any) -> Tunable | None:
    """Where a parameter of this kind is searched: as declared, else its range if both ends are finite."""
    if base_type(kind) not in (int, float):
        return None
    if (declared := declared_search(kind)) is not None:
        return declared
    limit = _limit(kind)
    is_bounded = limit is not None and math.isfinite(limit.most - limit.least)
    return Tunable(limit.least, limit.most) if is_bounded else None


def check_value(kind: Any, value: Any, field: str) -> None:
    """Raise UsageError for a value that a parameter of this kind can't have."""
    base, limit = Artifact if kind is Artifact else base_type(kind), _limit(kind)
    if base is None:
        return
    if not _is_of(base, value):
        raise UsageError("wrong type", field=field, value=value, expected=kind_text(kind))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError("unknown", field=field, value=value, expected=kind_text(kind))
    elif (limit is not None or base is float) and value not in (limit or Range()):
        raise UsageError("out of range", field=field, value=value, expected=kind_text(kind))


def artifacts_of(made: Any) -> list[Artifact]:
    """The learned weights among the parameters of an object, those of none left out."""
    values = (getattr(made, parameter.name) for parameter in parameters_of(type(made)))
    return [value for value in values if isinstance(value, Artifact) and value]


def check_parameters(made: Any, name: str) -> None:
    """Raise UsageError for the first parameter of an object that is not what its class declares."""
    cls: type = type(made)
    for parameter, kind in kinds_of(cls).items():
        check_value(kind, getattr(made, parameter), f"{name}.{parameter}")


def _base(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _limit(kind: Any) -> Any:
    found = [part for part in get_args(kind)[1:] if isinstance(part, Range | NumberList)]
    return found[0] if found and get_origin(kind) is Annotated else None


def _is_of(base: type, value: Any) -> bool:
    if base is bool or isinstance(value, bool):
        return base is bool and isinstance(value, bool)
    kinds: dict[type, type] = {int: Integral, float: Real}  # NumPy's numbers too
    return isinstance(value, kinds.get(base, base))
