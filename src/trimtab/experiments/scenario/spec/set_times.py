"""What happens at set times of a scenario, at another load than its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trimtab.validation.base import Spec

T = TypeVar("T", bound=Spec)
_TIMES = ("at_s", "duration_s")


def stretched(entry: T, factor: float) -> T:
    """The entry with its start and its duration `factor` times as late and as long."""
    told: dict[str, Any] = {name: getattr(entry, name) for name in _TIMES}
    if factor == 1.0 or told["at_s"] is None:
        return entry
    return entry.model_copy(update={name: v * factor for name, v in told.items() if v is not None})


def set_time_notes(entries: Mapping[str, Sequence[Any]]) -> list[str]:
    """A note for readers of curves over load, where any of these entries has a duration of its own."""
    there = [name for name, of in entries.items() if any(entry.duration_s is not None for entry in of)]
    if not there:
        return []
    return [
        f"in the curves over load, {' and '.join(there)} at set times keep their place among the arrivals: "
        "start and duration shrink and stretch with these"
    ]
