"""Warnings and notes for readers of the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.needs import Degraded, Need
from trimtab.engine.driver import PlanningLog
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.node_services import ModelService, SharedService, TableService
from trimtab.experiments.scenario.spec.workload import TraceSpec
from trimtab.experiments.scenario.trace_rows import unserved_rows
from trimtab.metrics import RANKED_FROM
from trimtab.traces.gateway_recording import is_recording

if TYPE_CHECKING:
    from trimtab.experiments.compare import PolicyResult

MOST_NAMED = 5  # requests that a note names


def unfit_note(count: int, first: Sequence[int], of: str = "") -> str:
    """Note on requests that no node can serve; names the `first` of them, which belong to `of`."""
    named = ", ".join([*map(str, first[:MOST_NAMED]), *(["…"] if count > len(first[:MOST_NAMED]) else [])])
    what = "1 request fits no node and was" if count == 1 else f"{count:,} requests fit no node and were"
    return f"{what} rejected ({of}{named})"


def unserved_note(requests: int, by_outcome: Mapping[str, int]) -> str:
    """Note on recorded requests that ended unserved: their service times are estimates."""
    count = sum(by_outcome.values())
    each = ", ".join(f"{n:,} {outcome}" for outcome, n in by_outcome.items())
    return (
        f"{count:,} of {requests:,} recorded requests were not served to their end ({each}): "
        "their service times here are estimates"
    )


def lateness_note(late_s: NDArray[np.float64]) -> str:
    """Note on arrivals later than planned, `late_s` [arrivals] in scenario seconds."""
    p50_s, p99_s = np.quantile(late_s, (0.5, 0.99))
    return f"live: arrivals were late by {p50_s:.3g} s (p50) and {p99_s:.3g} s (p99) of scenario time"


def planning_note(log: PlanningLog) -> str:
    """Note on late or failed plans of a run."""
    return f"plans: {log.made} made, {log.late} late, {log.raised} raised, {log.invalid} invalid"


def few_served_note(served_frac: Mapping[str, float]) -> str:
    """Note on policies that served too few requests for their means to be comparable."""
    each = "; ".join(f"{policy} {_served_text(share)}" for policy, share in served_frac.items())
    plural = "policies have" if len(served_frac) > 1 else "policy has"
    return f"served less than {100 * RANKED_FROM:g} % of the requests, so the {plural} no rank: {each}"


def _served_text(share: float) -> str:
    if share > 0.0:
        return f"served {100 * share:.4g} %"
    return "served nothing (a policy that holds every request never sends one to a node)"


def comparison_notes(trace: TraceSpec | None, results: Sequence[PolicyResult]) -> list[str]:
    """Notes on these results, and on their trace if there is one."""
    notes = _recording_notes(trace)
    by_seed = {run.seed: run for result in results for run in result.runs if run.remarks["n_fits_no_node"]}
    if by_seed:
        first = by_seed[min(by_seed)]
        count = sum(run.remarks["n_fits_no_node"] for run in by_seed.values())
        notes.append(unfit_note(count, first.remarks["fits_no_node"], f"seed {first.seed}: "))
    lacks = (each for result in results for run in result.runs for each in run.remarks["lacks"])
    notes += degraded_notes(Degraded(policy, Need[need], effect) for policy, need, effect in lacks)
    notes += [seedless_note(results)] if any(r.is_seedless for r in results) else []
    unranked = {r.policy: r.served_frac for r in results if not r.is_ranked}
    return notes + ([few_served_note(unranked)] if unranked else [])


def serving_model(cluster: ClusterSpec) -> str:
    """How the nodes of a cluster serve, and what that leaves out."""
    slots = "a slot per request; token speed does not depend on how many are served; no KV memory"
    services = [(name, kind.service) for name, kind in cluster.types.items()]
    models = [
        f"{name} ({service.profile})" for name, service in services if isinstance(service, ModelService)
    ]
    shared = [name for name, service in services if isinstance(service, SharedService | TableService)]
    texts = []
    if models:
        left_out = "no asynchronous scheduling, no imbalance of experts"
        texts.append(f"continuous batching with KV memory on {', '.join(models)}; {left_out}")
    if shared:
        texts.append(f"speed by the number of requests on {', '.join(shared)}")
    if any(service is None for _, service in services):
        texts.append(slots if not texts else f"elsewhere {slots}")
    return "; ".join(texts)


def degraded_notes(lacks: Iterable[Degraded]) -> list[str]:
    """Missing needs and their effects on policies: one note for each need and effect."""
    found: dict[tuple[Need, str], list[str]] = {}
    for each in dict.fromkeys(lacks):
        found.setdefault((each.need, each.effect), []).append(each.policy)
    return [f"no {need}, for {', '.join(policies)}: {effect}" for (need, effect), policies in found.items()]


def seedless_note(results: Sequence[PolicyResult]) -> str:
    """Note on runs that do not depend on the seed, and on their intervals."""
    own = "a recorded trace without randomness: no seed changes a run"
    named = ", ".join(sorted(r.policy for r in results if r.is_seedless))
    of = "" if all(r.is_seedless for r in results) else f" of {named}"
    how = "batch means for means over requests, a block bootstrap for their p99"
    return f"{own}{of}; intervals are of one run: {how}"


def _recording_notes(trace: TraceSpec | None) -> list[str]:
    if trace is None or not is_recording(Path(trace.file)):
        return []
    requests, by_outcome = unserved_rows(trace)
    return [unserved_note(requests, by_outcome)] if by_outcome else []
