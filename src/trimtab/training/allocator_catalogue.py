"""The catalogue finds allocators by walking the package `allocators`, and reads the names that users write.

tiresias                              an allocator
elasticflow(admit="one-by-one")       with parameters
path/to/my_allocator.py:MyAllocator   a class in a file, or in a module
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, TypeAlias

from trimtab.domain.allocator import Allocator, JobNeed
from trimtab.engine.policy_errors import line_of
from trimtab.errors import PolicyNotFound, TrimtabError, UsageError
from trimtab.policies.catalogue import Description, described_parameters
from trimtab.training.clocks import CLOCKS, Clock
from trimtab.training.gang_placement import PLACEMENT_RULES, PlacementRule
from trimtab.training.restart_costs import RESTART_COSTS, RestartCost
from trimtab.validation.named_classes import (
    class_at,
    label_of,
    made_of,
    parse_call,
    section,
    values_of,
)

AllocatorSpec: TypeAlias = str | Allocator | type[Allocator]

TRAINING = "training"
_EXPECTED = "name, file.py:Class or module:Class, each with (parameter=value, …) if need be"


def allocator_names() -> list[str]:
    """Names in the catalogue, sorted."""
    return sorted(_catalogue())


def find_allocator(spec: AllocatorSpec) -> Allocator:
    """The allocator. Raises PolicyNotFound for an unknown name, UsageError for other faults."""
    if isinstance(spec, Allocator):
        return spec
    if isinstance(spec, type) and issubclass(spec, Allocator):
        return _made(spec, {}, spec.__name__)
    call = parse_call(spec) if isinstance(spec, str) else None
    if call is None:
        raise UsageError("is no name of an allocator", field="policy", value=spec, expected=_EXPECTED)
    cls = allocator_class(call[0])
    return _made(cls, values_of(cls, *call), spec)


def _made(cls: type[Allocator], values: dict[str, Any], spec: str) -> Allocator:
    """An allocator with these parameters. Raises UsageError for values that its class refuses."""
    try:
        return cls(**values)
    except TrimtabError:
        raise
    except Exception as error:
        line, what = line_of(error), f"cannot be made: {type(error).__name__}: {error}"
        where = f"\n  {line}" if line else ""
        raise UsageError(what + where, field="policy", value=spec) from error


def allocator_class(name: str) -> type[Allocator]:
    """The class of a name, `file.py:Class` or `module:Class`. Raises as `find_allocator` does."""
    if (cls := class_at(name, Allocator) or _catalogue().get(name)) is not None:
        return cls
    problem, expected = "no such allocator", f"one of {', '.join(allocator_names())}"
    if nearest := difflib.get_close_matches(name, allocator_names(), n=3, cutoff=0.4):
        problem += f"; nearest: {', '.join(nearest)}"
        expected = "a name that `trimtab policies --kind training` lists, or file.py:Class"
    raise PolicyNotFound(problem, field="policy", value=name, expected=expected)


def canonical_allocator(spec: AllocatorSpec) -> str:
    """The shortest name of the same allocator, without parameters at their default."""
    made = find_allocator(spec)
    call = parse_call(spec) if isinstance(spec, str) else None
    return label_of(made.name or (call[0] if call else type(made).__name__), made)


def refuse_unmet(allocator: Allocator, provided: frozenset[JobNeed], who: str, instead: str) -> None:
    """Raise UsageError for an allocator with a need that is not met.

    Args:
        allocator: the allocator.
        provided: what it can be told.
        who: they do not tell the rest: "these profiles".
        instead: what else would do: "profiles that have it"; "" = nothing.
    """
    if unmet := allocator.needs - provided:
        needs = ", ".join(f"{need} ({need.meaning})" for need in sorted(unmet))
        less = f"an allocator that needs {', '.join(sorted(provided))} at most"
        raise UsageError(
            f"needs {needs}, which {who} do not have",
            field="policy",
            value=canonical_allocator(allocator),
            expected=f"{less}, or {instead}" if instead else less,
        )


def describe_allocator(name: str) -> Description:
    """The catalogue's entry, of kind "training"."""
    cls = allocator_class(name)
    text = inspect.getdoc(cls) or ""
    title = cls.name or cls.__name__
    return Description(title, TRAINING, cls.idea(), section(text, "Source"), text, described_parameters(cls))


def clock_of(text: str) -> Clock:
    """The clock of a text such as "rounds(period_s=60)"."""
    made: Clock = made_of(text, CLOCKS, "clock", "clock")
    return made


def restart_cost_of(text: str) -> RestartCost:
    """The restart cost of a text such as "flat(seconds_s=30)"."""
    made: RestartCost = made_of(text, RESTART_COSTS, "restart", "restart")
    return made


def placement_of(name: str) -> PlacementRule:
    """The placement rule of this name."""
    if name not in PLACEMENT_RULES:
        expected = f"one of {', '.join(PLACEMENT_RULES)}"
        raise UsageError("no such placement rule", field="placement", value=name, expected=expected)
    return PLACEMENT_RULES[name]


@functools.cache
def _catalogue() -> dict[str, type[Allocator]]:
    package = f"{__package__}.allocators"
    folder = str(Path(__file__).parent / "allocators")
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages([folder], f"{package}.")]
    found = (
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Allocator) and cls.__module__ == module.__name__
    )
    return {cls.name: cls for cls in found if cls.name}
