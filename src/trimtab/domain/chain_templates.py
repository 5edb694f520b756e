"""Makes templates of chains from the stages that a user names, and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import EDGE, HOST_RETRIES, STAGE_SPEC, Flow, OnStageFailure, Templates
from trimtab.errors import ChainError


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
