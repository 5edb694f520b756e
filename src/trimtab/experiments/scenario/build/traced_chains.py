"""The stages of recorded runs as rows. Runs of the same graph share a template."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from trimtab.domain.chains import Chains, Flow, StageSpec, new_stage_work, templates_of
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH
from trimtab.domain.stage_graph import upward_ranks_s
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.chain_rows import keys_of, mean_estimates_s, stage_factor
from trimtab.experiments.scenario.build.generated import Stream
from trimtab.experiments.scenario.spec.service_classes import Served, ServiceClass
from trimtab.experiments.scenario.spec.shared_types import IntArray
from trimtab.experiments.scenario.spec.workload import WorkloadSpec
from trimtab.traces.run_tables import RUN_CLASS
from trimtab.validation.names import nearest

_UNIT = ServiceClass(unit_s=1.0, unit="second at speed 1")

Graph = tuple[tuple[str, tuple[str, ...], tuple[float, ...]], ...]
"""Stages in order: name, predecessors, and the shares of their outputs that it reads."""


def served_of(stages: pl.DataFrame) -> Served:
    """Classes for recorded stages of a scenario that defines none: their sizes are seconds at speed 1."""
    names = stages["class"].unique().sort().to_list()
    return Served({}, {}, dict.fromkeys(names, _UNIT))


def with_run_class(served: Served) -> Served:
    """The classes, with one for runs, which no node serves."""
    return Served(
        served.models, served.adapters, {**served.classes, RUN_CLASS: ServiceClass(fixed_s={}, unit_s={})}
    )


def traced_chains(
    stages: pl.DataFrame,
    run_idx: IntArray,
    workload: WorkloadSpec,
    served: Served,
    cluster: Cluster,
    seed: int,
) -> Chains:
    """The stages of the chosen runs. Raises ScenarioError for a class that there is not."""
    by_run = {int(key[0]): rows for key, rows in stages.partition_by("run_idx", as_dict=True).items()}
    chosen = [by_run[k] for k in run_idx.tolist()]
    graphs: dict[Graph, int] = {}
    template_idx = [graphs.setdefault(_graph_of(rows), len(graphs)) for rows in chosen]
    rows = pl.concat(chosen)
    work, truth = new_stage_work(rows.height), np.zeros(rows.height, TRUTH)
    units = rows["size"].to_numpy()
    truth["units"] = units
    work["units"] = units * stage_factor(workload.estimate_cv, seed, Stream.STAGE_ESTIMATE, 0, len(units))
    truth["factor"] = stage_factor(workload.service_cv, seed, Stream.STAGE_SERVICE, 0, len(units))
    work["class_idx"] = _class_idx(rows["class"], served)
    work["estimate_s"] = cluster.best_estimate_s(work["class_idx"], work["units"])
    work["key"] = keys_of(len(work))
    chains = Chains(
        templates=templates_of({f"graph-{k + 1}": _specs_of(graph) for graph, k in graphs.items()}),
        template_idx=np.array(template_idx, np.int32),
        counts=np.ones(rows.height, np.int32),
        work=work,
        truth=truth,
        output_gib=rows["output_gib"].to_numpy().copy(),
        is_skipped=np.zeros(rows.height, np.bool_),
    )
    rank_s, after = upward_ranks_s(chains, mean_estimates_s(cluster, work))
    work["rank_s"] = rank_s
    work["next_class_idx"] = np.where(after >= 0, work["class_idx"][after], -1)
    return chains


def _graph_of(rows: pl.DataFrame) -> Graph:
    columns = rows["stage"].to_list(), rows["after"].to_list(), rows["after_frac"].to_list()
    return tuple((name, tuple(after), tuple(frac)) for name, after, frac in zip(*columns, strict=True))


def _specs_of(graph: Graph) -> Mapping[str, StageSpec]:
    return {
        name: StageSpec(after=dict.fromkeys(after, Flow.ALL), frac=dict(zip(after, frac, strict=True)))
        for name, after, frac in graph
    }


def _class_idx(names: pl.Series, served: Served) -> IntArray:
    known = {name: c for c, name in enumerate(served.classes)}
    unknown = sorted(set(names.unique().to_list()) - known.keys())
    if unknown:
        expected = f"a class of the scenario: {nearest(unknown[0], known)}"
        raise ScenarioError("no such class", field="stages.class", value=unknown[0], expected=expected)
    return names.replace_strict(known, return_dtype=pl.Int64).to_numpy()
