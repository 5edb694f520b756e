"""Finds backends by name: the package's own, and those of other packages by entry point."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageBackend

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
