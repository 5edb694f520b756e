"""Chains: directed acyclic graphs of stages, and the rows of their runs. Pure data.

A chain is stored once, as a template. A run of a chain is a request whose stages are served one by one. A
stage may have several instances in a run: it maps over items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ChainError


class Flow(IntEnum):
    """The instances of a stage that read the outputs of another stage."""

    ALL = 0  # each instance reads the outputs of all instances
    EACH = 1  # instance i reads the output of instance i; both stages have as many


class OnStageFailure(IntEnum):
    """Effect of a stage instance that is not served."""

    FAIL = 0  # the run fails
    SKIP = 1  # it has no output; an instance whose inputs are all missing is skipped too
    DEFAULT = 2  # a default value of size 0 takes the place of its output


STAGE_WORK = np.dtype(
    [
        ("units", "f8"),
        ("estimate_s", "f8"),
        ("rank_s", "f8"),
        ("key", "i8"),
        ("input_tokens", "i4"),
        ("output_tokens", "i4"),
        ("class_idx", "i4"),
        ("model_idx", "i4"),
        ("next_class_idx", "i4"),
    ],
    align=True,
)
"""What WORK (`trimtab.domain.view`) holds of a stage alone; all else is its run's, or comes as it runs."""

HOST_RETRIES = -1  # `max_retries` of a stage that takes the host's bound

STAGE_SPEC = np.dtype(
    [
        ("error_frac", "f8"),  # probability that an attempt ends in an error
        ("failed_max_frac", "f8"),  # of a map's instances; more fail the run
        ("successor_first", "i4"),  # positions in `successors`
        ("successor_end", "i4"),
        ("input_first", "i4"),  # positions in `inputs`
        ("input_end", "i4"),
        ("on_failure", "i4"),  # OnStageFailure
        ("max_retries", "i4"),
        ("stored", "i4"),  # 1 = its output outlives the node that made it
        ("is_map", "i4"),  # 1 = it has an instance for each item: what reads all of them reads a list
    ],
    align=True,
)

EDGE = np.dtype(
    [
        ("frac", "f8"),  # of each output that is read
        ("stage", "i4"),  # position of the other stage in its template
        ("flow", "i4"),  # Flow
    ],
    align=True,
)


def new_stage_work(n: int) -> NDArray[np.void]:
    """STAGE_WORK rows [n], all zero except `model_idx` and `next_class_idx`, which are -1 (none)."""
    work = np.zeros(n, STAGE_WORK)
    work["model_idx"] = work["next_class_idx"] = -1
    return work


@dataclass(frozen=True)
class Templates:
    """All chains of a scenario; their stages one after another."""

    stages: NDArray[np.void]  # STAGE_SPEC [stages of all templates]
    successors: NDArray[np.void]  # EDGE, sorted by stage
    inputs: NDArray[np.void]  # EDGE, sorted by stage
    first: NDArray[np.int32]  # [templates + 1] position of each template's first stage
    stage_names: tuple[str, ...]  # [stages of all templates]
    template_names: tuple[str, ...]  # [templates]


def ranges(first: NDArray[Any], count: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of all these ranges, one range after another."""
    count = count.astype(np.int64)
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


@dataclass(frozen=True)
class Chains:
    """The runs among the requests: request i is a run of template `template_idx[i]`.

    Rows are in the order of runs, then of stages in their template, then of instances. A map over no items
    has one instance, which is not served: what reads all of the map is called with the empty list.
    """

    templates: Templates
    template_idx: NDArray[np.int32]  # [requests]; -1 = a request without stages
    counts: NDArray[np.int32]  # [stages of all runs] instances
    work: NDArray[np.void]  # STAGE_WORK [rows]
    truth: NDArray[np.void]  # TRUTH [rows]
    output_gib: NDArray[np.float64]  # [rows], true size of the output
    is_skipped: NDArray[np.bool_]  # [rows] not served, hidden from policies before the row is ready
    expected_s: NDArray[np.float64] | None = None  # [stages of all runs] declared service; None = of the rows
    expected_gib: NDArray[np.float64] | None = None  # [stages of all runs] declared outputs; None = likewise
    content_idx: NDArray[np.int32] | None = None  # [rows]; equal = the same result again; -1 = none
    empty_rows: NDArray[np.int64] | None = None  # of maps over no items, among those skipped

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        """Whether a row is that of a map over no items, [rows]."""
        empty = np.zeros(len(self.work), np.bool_)
        if self.empty_rows is not None:
            empty[self.empty_rows] = True
        return empty

    @property
    def stage_idx(self) -> NDArray[np.int64]:
        """Stage of each stage of all runs, by its position in `templates.stages`."""
        runs = self.template_idx[self.template_idx >= 0]
        sizes = np.diff(self.templates.first)[runs]
        return ranges(self.templates.first[runs], sizes)


@dataclass(frozen=True)
class StageSpec:
    """One stage of a chain.

    Attributes:
        after: predecessors by name, and how this stage reads their outputs.
        frac: share of each output that this stage reads, by predecessor; 1 where none is given.
        on_failure: effect of an instance that is not served.
        max_retries: lost attempts after which an instance is not served; HOST_RETRIES = the host's bound.
        failed_max_frac: share of a map's instances that may fail under SKIP or DEFAULT.
        error_frac: probability that an attempt ends in an error.
        is_stored: whether the output outlives the node that made it.
        is_map: whether it has an instance for each item of a list, so that its outputs are a list.
    """

    after: Mapping[str, Flow] = field(default_factory=dict)
    frac: Mapping[str, float] = field(default_factory=dict)
    on_failure: OnStageFailure = OnStageFailure.FAIL
    max_retries: int = HOST_RETRIES
    failed_max_frac: float = 1.0
    error_frac: float = 0.0
    is_stored: bool = False
    is_map: bool = False


def templates_of(chains: Mapping[str, Mapping[str, StageSpec]]) -> Templates:
    """Templates of chains by name. Raises ChainError for an edge to nowhere or a cycle, and names it."""
    specs: list[NDArray[np.void]] = []
    successors: list[tuple[float, int, int]] = []
    inputs: list[tuple[float, int, int]] = []
    first, names = [0], []
    for chain, stages in chains.items():
        check_stages(chain, {name: spec.after for name, spec in stages.items()})
        position = {name: k for k, name in enumerate(stages)}
        followers: dict[str, list[tuple[float, int, int]]] = {name: [] for name in stages}
        for name, spec in stages.items():
            for before, flow in spec.after.items():
                followers[before].append((spec.frac.get(before, 1.0), position[name], int(flow)))
        for name, spec in stages.items():
            row = np.zeros(1, STAGE_SPEC)
            row["successor_first"], row["input_first"] = len(successors), len(inputs)
            successors += followers[name]
            inputs += [(spec.frac.get(b, 1.0), position[b], int(flow)) for b, flow in spec.after.items()]
            row["successor_end"], row["input_end"] = len(successors), len(inputs)
            row["on_failure"], row["max_retries"] = int(spec.on_failure), spec.max_retries
            row["failed_max_frac"], row["error_frac"] = spec.failed_max_frac, spec.error_frac
            row["stored"], row["is_map"] = spec.is_stored, spec.is_map
            specs.append(row)
            names.append(name)
        first.append(len(specs))
    return Templates(
        stages=np.concatenate(specs) if specs else np.zeros(0, STAGE_SPEC),
        successors=_edges(successors),
        inputs=_edges(inputs),
        first=np.array(first, np.int32),
        stage_names=tuple(names),
        template_names=tuple(chains),
    )


def _edges(edges: list[tuple[float, int, int]]) -> NDArray[np.void]:
    return np.array(edges, EDGE) if edges else np.zeros(0, EDGE)


def check_stages(chain: str, after: Mapping[str, Mapping[str, Flow]]) -> None:
    """Raise ChainError for a chain without stages, an edge to nowhere, or a cycle."""
    if not after:
        raise ChainError("has no stages", field=chain, expected="at least one")
    for name, predecessors in after.items():
        for before in predecessors:
            if before not in after:
                expected = f"one of {', '.join(after)}"
                raise ChainError(
                    "no such stage", field=f"{chain}.{name}.after", value=before, expected=expected
                )
    cycle = find_cycle({name: tuple(predecessors) for name, predecessors in after.items()})
    if cycle:
        path = " → ".join((*cycle, cycle[0]))
        raise ChainError("a cycle", field=chain, value=path, expected="a graph without cycles")


def find_cycle(after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of one cycle, each before the next; empty if there is none. O(stages + edges)."""
    done: set[str] = set()
    for start in after:
        path: dict[str, None] = {}
        stack = [(start, iter(after[start]))] if start not in done else []
        if stack:
            path[start] = None
        while stack:
            name, rest = stack[-1]
            before = next(rest, None)
            if before is None:
                stack.pop()
                path.pop(name)
                done.add(name)
            elif before in path:
                found = list(path)
                return tuple(reversed(found[found.index(before) :]))
            elif before not in done:
                path[before] = None
                stack.append((before, iter(after[before])))
    return ()
