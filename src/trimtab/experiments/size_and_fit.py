"""Sizing and fitting with what Python code may give, for `trimtab.size` and `trimtab.fit`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trimtab.experiments.scenario.loader import scenario_on
from trimtab.experiments.scenario.scenario_parts import ClusterSource, TraceSource, trace_file
from trimtab.experiments.scenario.scenario_parts import cluster as cluster_of
from trimtab.experiments.scenario.spec.scenario import ClusterPart
from trimtab.experiments.service_fit import FittedCluster, fit_service
from trimtab.experiments.serving.objectives import objectives_of
from trimtab.experiments.serving.sizing import (
    NODES_MAX,
    SECONDS_MAX,
    FleetSizing,
    Told,
    load_node_types,
    parse_node_types,
    size_fleet,
)
from trimtab.traces import Trace, read_trace


def size(
    trace: TraceSource,
    node_types: ClusterSource,
    slo: str,
    policies: str | Sequence[str] = ("late-binding",),
    *,
    fail: int = 0,
    growth: float = 1.0,
    max_usd_per_hour: float | None = None,
    max_nodes: int = NODES_MAX,
    seed: int = 0,
    time_limit_s: float = SECONDS_MAX,
    progress: Told | None = None,
) -> FleetSizing:
    """Find the cheapest mix of nodes that meets objectives on a trace, as `trimtab size`.

    Args:
        trace: a file, a Trace, or a data frame of polars, pandas or Arrow in canonical columns.
        node_types: node types with prices, and classes: a file, its YAML text, or its values as a dict.
        slo: the objectives: "completion_p99<8s, wait_p99<1s".
        policies: the mix meets the objectives if one of these does; "auto" stands for three.
        fail: nodes of most capacity that are down for the whole run; paid as `paid_while_down` says.
        growth: factor on the arrival rate.
        max_usd_per_hour: most that the nodes may cost.
        max_nodes: most nodes.
        seed: of all random numbers.
        time_limit_s: seconds after which the best so far is given.
        progress: called with the mixes that were simulated and those that are left to be.

    Raises UsageError for input that cannot be used.
    """
    scenario = scenario_on(trace_file(trace), _node_types(node_types))
    return size_fleet(
        scenario,
        objectives_of(slo),
        (policies,) if isinstance(policies, str) else policies,
        usd_per_hour_max=np.inf if max_usd_per_hour is None else max_usd_per_hour,
        nodes_max=max_nodes,
        fail=fail,
        growth=growth,
        seed=seed,
        seconds_max=time_limit_s,
        told=progress,
    )


def fit(
    trace: TraceSource, cluster: ClusterSource | None = None, *, max_in_flight: int | None = None
) -> FittedCluster:
    """Fit service times to recorded ones, for each class and node type, as `trimtab fit`.

    Args:
        trace: with the column recorded_s: a file, a Trace, or a data frame in canonical columns.
        cluster: nodes that served it: a file, its YAML text, or its values; a recording has its own.
        max_in_flight: take only rows that met at most so many requests on their node.

    Raises UsageError for input that cannot be used.
    """
    read = trace if isinstance(trace, Trace) else read_trace(trace)
    return fit_service(read, None if cluster is None else cluster_of(cluster), max_in_flight=max_in_flight)


def _node_types(given: ClusterSource) -> ClusterPart:
    if isinstance(given, ClusterPart):
        return given
    if isinstance(given, Mapping) or (isinstance(given, str) and "\n" in given):
        return parse_node_types(given)
    return load_node_types(Path(os.fspath(given)))
