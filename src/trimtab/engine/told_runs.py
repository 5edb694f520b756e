"""What a planner is told of runs of chains: what their dispatcher knows, and nothing that is still to come.

A stage is known once an instance of it is ready. Of one that is not known there is one instance of the
declared service, and nothing is told of whether it will be skipped. Outputs have their size once they are
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import ranges
from trimtab.domain.planning import INSTANCE, RUN_STAGE, RUNS, Runs
from trimtab.domain.requests import Requests, Status
from trimtab.engine.layout import NO_OUTPUT, PART_SPEC, PRESENT, rows_with_runs
from trimtab.engine.state import REQUEST, State


class _Source(NamedTuple):
    """The arrays of a `State` that tell of runs."""

    work: NDArray[np.void]
    requests: NDArray[np.void]
    runs: NDArray[np.void]
    groups: NDArray[np.void]
    stages: NDArray[np.void]


def taken(records: NDArray[np.void], at: Any) -> NDArray[np.void]:
    """These records. NumPy copies blocks without fields much faster."""
    found: NDArray[np.void] = records.view(f"V{records.itemsize}")[at].view(records.dtype)
    return found


def runs_of(state: State, rows: NDArray[np.int64]) -> Runs:
    """The runs and requests in these rows of a state."""
    told, at = _told(_Source(*(getattr(state, name) for name in _Source._fields)), rows)
    made_at = told.instances["node_idx"]
    is_there = (made_at >= 0) & (state.stages["epoch"][at] == state.hidden["epoch"][made_at])
    told.instances["is_kept"] = is_there
    hidden = np.repeat(told.stages["known"] == 0, told.stages["count"])
    _hide(told.rows, hidden, np.repeat(told.stages["expected_s"], told.stages["count"]), state)
    return told._replace(copies=_copies(state, told, at))


def declared_runs(requests: Requests, n_nodes: int) -> Runs:
    """The first runs of another workload, as if they were over. Their serials are negative."""
    laid = rows_with_runs(requests, n_nodes, splits=False)
    finished = np.zeros(len(laid.requests.work), REQUEST)
    finished["node_idx"], finished["status"] = -1, int(Status.FINISHED)
    groups, stages = laid.groups.copy(), laid.stages.copy()
    groups["known"], stages["output"] = 1, PRESENT
    source = _Source(laid.requests.work, finished, laid.runs, groups, stages)
    told, _ = _told(source, np.arange(min(RUNS, len(requests))))
    told.work["serial"] = -1 - np.arange(len(told.work))
    return told


def joined(parts: Sequence[Runs]) -> Runs:
    """Several Runs as one, in this order."""
    first_stage, first_row = [np.zeros(1, np.int64)], []
    n_stages = n_rows = 0
    for part in parts:
        first_stage.append(part.first_stage[1:] + n_stages)
        first_row.append(part.stages["first_row"] + n_rows)
        n_stages, n_rows = n_stages + len(part.stages), n_rows + len(part.rows)
    n_before = np.cumsum([0, *(len(part.rows) for part in parts)])
    copies = [part.copies + np.array([n, 0]) for part, n in zip(parts, n_before[:-1], strict=True)]
    stages = np.concatenate([part.stages for part in parts])
    stages["first_row"] = np.concatenate(first_row)
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("work", "status", "node_idx", "path_s", "rows", "instances")
    }
    return Runs(
        first_stage=np.concatenate(first_stage), stages=stages, copies=np.concatenate(copies), **columns
    )


def last_of(told: Runs, count: int) -> Runs:
    """The last so many runs, which are over, so that no copies of their outputs count."""
    k = max(0, len(told.work) - count)
    stage, row = told.first_stage[k], first_rows(told)[k]
    stages = told.stages[stage:].copy()
    stages["first_row"] -= row
    of_runs = {name: getattr(told, name)[k:] for name in ("work", "status", "node_idx", "path_s")}
    return Runs(
        first_stage=told.first_stage[k:] - stage,
        stages=stages,
        rows=told.rows[row:],
        instances=told.instances[row:],
        copies=told.copies[:0],
        **of_runs,
    )


def first_rows(told: Runs) -> NDArray[np.int64]:
    """The first row of each run, and the number of rows, [runs + 1]."""
    firsts: NDArray[np.int64] = np.append(told.stages["first_row"], len(told.rows))[told.first_stage]
    return firsts


def _told(source: _Source, rows: NDArray[np.int64]) -> tuple[Runs, NDArray[np.int64]]:
    """The runs, with the rows of the source that instances are in. What is not known is not hidden yet."""
    runs, status = source.runs[rows], source.requests["status"][rows]
    has_stages = runs["n_groups"] > 0
    has_stages[has_stages] = source.groups["spec"][runs["group"][has_stages]] != PART_SPEC
    n_stages = np.where(has_stages, runs["n_groups"], 0)
    groups = source.groups[ranges(runs["group"], n_stages)]
    stages = np.zeros(len(groups), RUN_STAGE)
    for name in ("expected_s", "output_gib", "known", "failed"):
        stages[name] = groups[name]
    stages["spec_idx"], stages["count"] = groups["spec"], np.where(groups["known"] == 1, groups["count"], 1)
    ends = np.cumsum(stages["count"])
    stages["first_row"] = ends - stages["count"]
    at = ranges(groups["row"], stages["count"])
    declared_gib = np.repeat(stages["output_gib"], stages["count"])
    instances, output = np.zeros(len(at), INSTANCE), source.stages["output"][at]
    instances["output"] = output
    instances["output_gib"] = np.where(output == PRESENT, source.stages["output_gib"][at], declared_gib)
    for name in ("node_idx", "status"):
        instances[name] = source.requests[name][at]
    for name in ("skipped", "answered"):
        instances[name] = np.where(output != NO_OUTPUT, source.stages[name][at], 0)
    told = Runs(
        work=taken(source.work, rows),
        status=status,
        node_idx=np.where(has_stages, -1, source.requests["node_idx"][rows]).astype(np.int32),
        path_s=runs["path_s"],
        first_stage=np.concatenate([np.zeros(1, np.int64), np.cumsum(n_stages)]),
        stages=stages,
        rows=taken(source.work, at),
        instances=instances,
        copies=np.zeros((0, 2), np.int64),
    )
    return told, at


def _hide(work: NDArray[np.void], hidden: NDArray[np.bool_], expected_s: Any, state: State) -> None:
    """Rows of stages that are not known take the declared service of the whole stage."""
    c, service_s = work["class_idx"][hidden], expected_s[hidden]
    unit_s = state.unit_s[c]
    with np.errstate(divide="ignore", invalid="ignore"):
        units = (service_s[:, None] - state.fixed_s[c]) / unit_s
    units[~np.isfinite(units)] = 0.0
    work["units"][hidden] = np.maximum(units.max(axis=1, initial=0.0), 0.0)
    for name in ("estimate_s", "rank_s", "cost"):
        work[name][hidden] = service_s
    work["model_idx"][hidden] = -1
    for name in ("input_tokens", "output_tokens"):
        work[name][hidden] = 0


def _copies(state: State, told: Runs, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where else outputs of runs that are not over lie."""
    rows = np.flatnonzero(np.repeat(told.status < int(Status.FINISHED), np.diff(first_rows(told))))
    k = state.stages["copies"][at[rows]]
    found = []
    while (has := k >= 0).any():
        rows, k = rows[has], k[has]
        copy = state.copies[k]
        held = copy["epoch"] == state.hidden["epoch"][copy["node_idx"]]
        found.append(np.stack([rows[held], copy["node_idx"][held]], axis=1))
        k = copy["next"]
    return np.concatenate(found) if found else np.zeros((0, 2), np.int64)
