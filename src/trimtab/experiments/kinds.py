"""The kinds of work that scenarios are of: requests, training jobs, both on shared nodes, autoscaled pools.

A scenario file is read once, its `kind` is found here once, and all that commands do with it then goes
through the `ScenarioKind`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, cast

from trimtab.errors import TraceError, UsageError
from trimtab.experiments.autoscaling.autoscaling_scenario import AUTOSCALED
from trimtab.experiments.colocation.shared_scenario import SHARED_NODES
from trimtab.experiments.compare.kind import I, Kind, R, S
from trimtab.experiments.scenario.loader import REQUESTS
from trimtab.experiments.scenario.scenario_files import (
    GivenScenario,
    ScenarioFiles,
    builtin_text,
    read_scenario,
)
from trimtab.experiments.scenario.scenario_parts import Parts, ReadingBar
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
from trimtab.experiments.training.training_scenario import TRAINING_JOBS
from trimtab.traces.read_jobs import holds_jobs


class ScenarioKind(Kind[S, I, R], Protocol[S, I, R]):
    """A kind of work whose settings are scenario files."""

    title: ClassVar[str]  # in messages
    untaken: ClassVar[Mapping[str, str]]
    """Part that it does not take → what to use instead.

    Parts are trace, cluster, profiles, rows, columns, limit and what_if.
    """

    def with_parts(self, base: S | None, parts: Parts) -> S:
        """The scenario with these parts, which make one without a base. Raises UsageError."""

    def read_ahead(self, settings: S, bar: ReadingBar) -> list[str]:
        """Read what is large and keep it for the runs; notes about it."""

    def amounts(self, inputs: I) -> Mapping[str, int]:
        """The parts of inputs: name → number."""


AnyScenarioKind: TypeAlias = ScenarioKind[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class _Registered:
    files: ScenarioFiles[Any]
    kind_at: str  # module:name, loaded when it is used: some import all allocators
    has_trace: Callable[[Path], bool]  # whether a trace without a scenario is of this kind

    @property
    def kind(self) -> AnyScenarioKind:
        module, _, name = self.kind_at.partition(":")
        return cast("AnyScenarioKind", getattr(importlib.import_module(module), name))


def _holds_jobs(trace: Path) -> bool:
    try:
        return trace.is_file() and holds_jobs(trace)
    except TraceError:
        return False


_KINDS: Final = (
    _Registered(
        REQUESTS, "trimtab.experiments.serving.serving_kind:SERVING", lambda trace: not _holds_jobs(trace)
    ),
    _Registered(TRAINING_JOBS, "trimtab.experiments.training.training_kind:TRAINING_KIND", _holds_jobs),
    _Registered(SHARED_NODES, "trimtab.experiments.colocation.shared_kind:SHARED_KIND", lambda trace: False),
    _Registered(
        AUTOSCALED, "trimtab.experiments.autoscaling.autoscaling_kind:AUTOSCALING_KIND", lambda trace: False
    ),
)
SCENARIO_FILES: Final = tuple(each.files for each in _KINDS)

if TYPE_CHECKING:  # each is what the registry says it is
    from trimtab.experiments.autoscaling.autoscaling_kind import AUTOSCALING_KIND
    from trimtab.experiments.colocation.shared_kind import SHARED_KIND
    from trimtab.experiments.serving.serving_kind import SERVING
    from trimtab.experiments.training.training_kind import TRAINING_KIND

    _CHECKED: tuple[AnyScenarioKind, ...] = (SERVING, TRAINING_KIND, SHARED_KIND, AUTOSCALING_KIND)


def load_any(given: GivenScenario, file: str = "scenario") -> ScenarioFile:
    """A scenario of any kind; see `read_scenario`. Raises ScenarioError."""
    return read_scenario(given, SCENARIO_FILES, file)


def kind_of(scenario: ScenarioFile) -> AnyScenarioKind:
    """The kind of work that a scenario is of."""
    return next(each.kind for each in _KINDS if isinstance(scenario, each.files.model))


def resolve(given: GivenScenario | None, parts: Parts) -> tuple[AnyScenarioKind, ScenarioFile]:
    """The kind and the scenario of a command line or a call, with parts replaced.

    Without a scenario, the trace says which kind it is. Raises UsageError, also for a part that the kind does
    not take.
    """
    base = None if given is None else load_any(given)
    if base is not None:
        kind = kind_of(base)
    else:
        kind = next(each.kind for each in _KINDS if parts.trace is None or each.has_trace(parts.trace))
    for part, named in parts.given.items():
        if part in kind.untaken:
            raise UsageError(f"does not apply to {kind.title}", field=named, expected=kind.untaken[part])
    return kind, kind.with_parts(base, parts)


def all_builtins() -> dict[str, ScenarioFile]:
    """Name → built-in scenario, of all kinds."""
    return {name: files.load(name) for files in SCENARIO_FILES for name in files.builtins()}


def any_builtin_text(name: str) -> str:
    """The text of a built-in scenario of any kind. Raises ScenarioError if none has this name."""
    return builtin_text(name, SCENARIO_FILES)
