"""Parts of a scenario that a command line or a call replaces, for every kind of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from trimtab.experiments.scenario.spec.scenario import ClusterPart, Scenario
from trimtab.traces.source import Progress

ReadingBar: TypeAlias = Callable[[str], AbstractContextManager[Progress]]
"""Shows how far a file is read, under this title."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts; None = the scenario's own."""

    trace: Path | None = None
    cluster: ClusterPart | Path | None = None
    profiles: Path | None = None
    limit: int | None = None  # items kept of the trace
    load: float | None = None
    policies: Sequence[str] | None = None
    seeds: int | Sequence[int] | None = None
    change: Callable[[Scenario], Scenario] | None = None  # of requests: rows of the trace, what if
    given: Mapping[str, str] = field(default_factory=dict)  # part that is given → what the user calls it
