"""Finds backends by name: the package's own, and those of other packages by entry point."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import entry_points
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageBackend, StageNode

GROUP: Final = "trimtab.backends"  # of entry points
_OWN: Final = {
    "in-process": "trimtab.clusters.in_process:InProcess",
    "processes": "trimtab.clusters.processes:Processes",
    "ray": "trimtab.clusters.ray.ray_backend:Ray",
}


def names() -> list[str]:
    """The names of all backends."""
    return sorted({*_OWN, *(point.name for point in entry_points(group=GROUP))})


def backend(spec: str, **options: Any) -> StageBackend:
    """The backend of this name; NAME://REST is an address for the one of that name.

    Raises UsageError for an unknown name, MissingExtra if it needs what is not installed.
    """
    name, is_address, _ = spec.partition("://")
    made: StageBackend = _class_of(name)(**({"address": spec} if is_address else {}), **options)
    return made


def _class_of(name: str) -> Any:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    for point in entry_points(group=GROUP, name=name):
        return point.load()
    expected = f"one of {', '.join(names())}, or ray://HOST:PORT"
    raise UsageError("no such backend", field="on", value=name, expected=expected)


EXPECTED: Final = "a number, or LEAST..MOST such as 1..4"


def worker_counts(text: str) -> tuple[int, int]:
    """The least and the most workers; (0, 0) = one for each core. Raises ValueError with what is expected."""
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    least = int(found[1]) if found else 0
    most = int(found[2] or least) if found else 0
    if not found or most < least or (found[2] and least == 0):
        raise ValueError(EXPECTED)
    return least, most


def pool_of(text: str) -> dict[str, list[StageNode]]:
    """One node of so many workers, as an option of backends. For one for each core: no option."""
    least, most = worker_counts(text)
    return {"nodes": [StageNode("local", slots=most, slots_min=least)]} if most else {}
