"""Parts of a scenario as a command line or Python code gives them: values, texts, data frames, or paths."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.loader import (
    load_cluster,
    load_scenario,
    parse_cluster,
    resolve_scenario,
)
from trimtab.experiments.scenario.scenario_files import as_path
from trimtab.experiments.scenario.spec.scenario import ClusterPart, Scenario
from trimtab.traces import Trace, read_trace, write_trace
from trimtab.traces.frames import as_frame
from trimtab.traces.source import Progress

ScenarioSource: TypeAlias = Scenario | str | os.PathLike[str] | Mapping[str, Any]
ClusterSource: TypeAlias = ClusterPart | str | os.PathLike[str] | Mapping[str, Any]
TraceSource: TypeAlias = Any
"""A path, a Trace, or a data frame of polars, pandas or Arrow in canonical columns."""


def scenario(given: ScenarioSource) -> Scenario:
    """A scenario: a built-in's name, a file, its YAML text, or its values as a dict.

    Raises ScenarioError that names all wrong fields.
    """
    return load_scenario(given)


def cluster(given: ClusterSource) -> ClusterPart:
    """A cluster: a file, its YAML text, or its values as a dict. Raises ScenarioError."""
    if isinstance(given, ClusterPart):
        return given
    if isinstance(given, Mapping) or (isinstance(given, str) and "\n" in given):
        return parse_cluster(given, "cluster")
    return load_cluster(as_path(given, "cluster"))


def resolved(
    base: ScenarioSource | None,
    *,
    trace: TraceSource | None = None,
    on: ClusterSource | None = None,
    load: float | None = None,
) -> Scenario:
    """A scenario with parts replaced; without one, the trace on the cluster, or the default scenario.

    Raises:
        ScenarioError: a part cannot be read, or the parts do not fit together.
    """
    part = None if on is None else cluster(on)
    chosen = None if base is None else scenario(base)
    return resolve_scenario(
        chosen, trace=None if trace is None else trace_file(trace), cluster=part, load=load
    )


def trace_file(given: TraceSource) -> Path:
    """The file of a trace; one in memory is written to a temporary one, for the processes of this program."""
    if isinstance(given, Trace):
        return _written(given)
    if as_frame(given) is not None:
        return _written(read_trace(given))
    return as_path(given, "trace")


def _written(trace: Trace) -> Path:
    if trace.stages is not None:
        expected = "its path: a trace of runs of chains has no single table"
        raise ScenarioError("cannot be given as a value", field="trace", value=trace.file, expected=expected)
    folder = Path(tempfile.mkdtemp(prefix="trimtab-trace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = write_trace(trace.table, folder / "trace.parquet")
    # Named by its content, so that equal traces give equal scenarios.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return path.rename(folder / f"trace-{digest}.parquet")


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
