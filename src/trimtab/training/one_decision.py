"""One decision of an allocator for a given state of jobs; the same state gives the same answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from trimtab.domain.allocator import Allocation, JobNeed, Speed
from trimtab.domain.job_places import JobAsk, NodeOffer, misfit, places_of
from trimtab.domain.training_jobs import Floats, GpuCluster, Held, Ints, Records, Workload, configs
from trimtab.errors import TraceError, UsageError
from trimtab.traces.read_jobs import JobTable
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
    canonical_allocator,
    find_allocator,
    placement_of,
    restart_cost_of,
)
from trimtab.training.decisions import Decider
from trimtab.training.job_models import JobModel
from trimtab.training.job_states import JobStates
from trimtab.training.shared_gpus import is_second, partners_of
from trimtab.training.training_loop import runs_on
from trimtab.words import counted

FORMAT_VERSION: Final = 1
_STATE = ("attained_gpu_s", "run_s", "restarts")


def decide(
    table: JobTable,
    workload: Workload,
    model: JobModel,
    nodes: Records,
    node_names: tuple[str, ...],
    type_names: tuple[str, ...],
    policy: AllocatorSpec,
    *,
    now_s: float | None = None,
    restart: str = "none",
    down: Collection[str] = (),
    offers: Sequence[NodeOffer] = (),
) -> dict[str, Any]:
    """The policy's allocation for each job now, and its reason, as JSON values.

    Jobs submitted after `now_s` are left out; default: the latest submission. Nodes that are `down` get
    nothing. Raises PolicyError for a policy
    that breaks a rule, UsageError for a state that can't be.
    """
    now_s = float(workload.submit_s.max()) if now_s is None else now_s
    here = np.flatnonzero(workload.submit_s <= now_s)
    held = _held(table, workload, nodes, node_names, here)
    nodes = _without(nodes, node_names, down)
    allocator = find_allocator(policy)
    is_oracle = JobNeed.ORACLE in allocator.needs
    seen_gpus = _seen_gpus(table, workload, held, here)
    truth, speed = model.resumed(workload, _work_left(table), seen_gpus)
    cost = restart_cost_of(restart)
    cost.begin(workload, int(nodes["gpus"].sum()))
    jobs = JobStates(workload).view(here, now_s, truth, cost, is_oracle=is_oracle)
    _set_state(table, jobs, here)
    jobs["profiled_gpus_max"] = seen_gpus[here]
    known = truth.oracle() if is_oracle else speed
    can_run = runs_on(jobs, known, len(type_names))
    places = places_of([workload.asks[i] for i in here], offers) if workload.asks else None
    cluster = GpuCluster(nodes, type_names, held, len(here), can_run=can_run, places=places)
    empty = GpuCluster(nodes, type_names, Held(here[:0], np.zeros((0, len(nodes)), np.int64)), 0)
    decider = Decider.of(allocator, empty, workload.job_ids, placement_of(allocator.placement))
    made = decider.decide(jobs, cluster, now_s, known)
    allocation, given = made.allocation, made.held
    partner = partners_of(allocation, len(here))
    ids = [workload.job_ids[i] for i in here]
    return {
        "format_version": FORMAT_VERSION,
        "policy": canonical_allocator(policy),
        "now_s": now_s,
        "gpus": cluster.n_gpus,
        "gpus_held": int(held.gpus.sum()),
        "gpus_given": int(given.gpus[~is_second(partner)[given.rows]].sum()),
        "jobs": _answers(
            ids,
            jobs,
            cluster,
            given,
            allocation,
            node_names,
            _batches(jobs, allocation, given, known, cluster),
            [workload.asks[i] if workload.asks else JobAsk() for i in here],
        ),
    }


def _without(nodes: Records, node_names: tuple[str, ...], down: Collection[str]) -> Records:
    for name in down:
        if name not in node_names:
            expected = f"one of {', '.join(node_names[:8])}"
            raise UsageError("no such node", field="down", value=name, expected=expected)
    nodes = nodes.copy()
    nodes["up"] &= ~np.isin(node_names, list(down))
    return nodes


def _batches(
    jobs: Records, allocation: Allocation, given: Held, speed: Speed, cluster: GpuCluster
) -> dict[int, dict[str, int]]:
    """Local batch and passes of each job whose batch the allocator, or its agent by the estimate, chooses."""
    if allocation.local_batch is None:
        return {}
    rows = given.rows[np.asarray(allocation.local_batch)[given.rows] != 0]
    gpus = given.gpus[np.isin(given.rows, rows)]
    local = np.asarray(allocation.local_batch, np.float64)[rows]
    chosen = configs(
        gpus.sum(axis=1),
        nodes=(gpus > 0).sum(axis=1),
        type_idx=cluster.by_type(gpus).argmax(axis=1),
        local_batch=local,
    )
    by_agent, passes = speed.batch(jobs[rows], chosen)
    if allocation.accumulation is not None:
        passes = np.where(local > 0, np.asarray(allocation.accumulation)[rows], passes)
    sizes = np.where(local > 0, local, by_agent)
    return {
        int(row): {"local": int(b), "passes": int(a) + 1}
        for row, b, a in zip(rows, sizes, passes, strict=True)
    }


def _work_left(table: JobTable) -> Floats | None:
    return table.jobs["work_left"].to_numpy().astype(np.float64) if "work_left" in table.jobs else None


def _seen_gpus(table: JobTable, workload: Workload, held: Held, here: Any) -> Ints:
    """Most GPUs with which each job has run: as the state says, and what it holds."""
    seen = np.zeros(len(workload), np.int64)
    if "profiled_gpus_max" in table.jobs:
        seen[:] = table.jobs["profiled_gpus_max"].to_numpy()
    holds = here[held.rows]
    seen[holds] = np.maximum(seen[holds], held.gpus.sum(axis=1))
    return seen


def _set_state(table: JobTable, jobs: Records, here: Any) -> None:
    for name in _STATE:
        if name in table.jobs:
            jobs[name] = table.jobs[name].to_numpy()[here]
    jobs["progress_s"] = jobs["run_s"]


def _held(
    table: JobTable, workload: Workload, nodes: Records, node_names: tuple[str, ...], here: Any
) -> Held:
    gpus = np.zeros((len(workload), len(nodes)), np.int64)
    place = {name: j for j, name in enumerate(node_names)}
    column: Any = table.jobs["held"] if "held" in table.jobs else pl.Series([""] * len(workload))
    for i, text in enumerate(column.fill_null("").to_list()):
        for part in filter(None, text.split(";")):
            node, _, count = part.strip().partition(":")
            if node not in place or not count.isdigit():
                raise TraceError(
                    "holds GPUs of no such node",
                    file=str(table.path),
                    field=f"job {workload.job_ids[i]}, held",
                    value=part,
                    expected=f"node:count with one of {', '.join(node_names[:8])}",
                )
            gpus[i, place[node]] += int(count)
    over = np.flatnonzero(gpus.sum(axis=0) > nodes["gpus"])
    for j in over[:1]:
        raise TraceError(
            "jobs hold more GPUs of a node than it has",
            file=str(table.path),
            field=f"held, {node_names[j]}",
            value=int(gpus[:, j].sum()),
            expected=f"at most {nodes['gpus'][j]}",
        )
    return Held.of(gpus[here])


def _answers(
    ids: list[str],
    jobs: Records,
    cluster: GpuCluster,
    given: Held,
    allocation: Allocation,
    node_names: tuple[str, ...],
    batches: dict[int, dict[str, int]],
    asks: Sequence[JobAsk],
) -> list[dict[str, Any]]:
    after = np.zeros((len(ids), len(node_names)), np.int64)
    after[given.rows] = given.gpus
    partner = partners_of(allocation, len(ids))
    answers = []
    for row, job_id in enumerate(ids):
        before, now = cluster.gpus[row], after[row]
        change = "reject" if row in allocation.rejected else _change(before, now)
        answers.append(
            {
                "job_id": job_id,
                "gpus": int(now.sum()),
                "nodes": _named(now, node_names),
                "held": _named(before, node_names),
                "batch": batches.get(row),
                "shares_with": ids[partner[row]] if partner[row] >= 0 else None,
                "change": change,
                "reason": _reason(row, change, jobs, cluster, int(now.sum()), allocation, asks[row]),
            }
        )
    return answers


def _named(gpus: Any, node_names: tuple[str, ...]) -> dict[str, int]:
    return {node_names[j]: int(gpus[j]) for j in np.flatnonzero(gpus)}


def _change(before: Any, now: Any) -> str:
    if not now.any():
        return "stop" if before.any() else "wait"
    if not before.any():
        return "start"
    if (before == now).all():
        return "keep"
    return "move" if before.sum() == now.sum() else "grow" if now.sum() > before.sum() else "shrink"


def _reason(
    row: int, change: str, jobs: Records, cluster: GpuCluster, count: int, allocation: Allocation, ask: JobAsk
) -> str:
    for told in (allocation.rejected, allocation.stopped):
        if row in told:
            return told[row]
    if row in allocation.reasons:
        return allocation.reasons[row]
    asked = int(jobs["gpus_requested"][row])
    least = int(jobs["gpus_min"][row])
    if change == "wait" and cluster.places is not None:
        most = int(cluster.places.most(cluster.capacity)[row])
        if most < least:
            return misfit(ask, least, most)
    if change == "wait" and asked > cluster.n_gpus:
        return f"asks for {counted(asked, 'GPU')}; the cluster has {cluster.n_gpus}"
    if change in {"wait", "stop"}:
        return "other jobs go first"
    return f"{counted(count, 'GPU')}, {asked} asked for"
