"""Failures and drains of nodes of a training scenario, for one seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trimtab.experiments.scenario.build.serving_options import struck_nodes
from trimtab.experiments.scenario.build.streams import Stream, generator
from trimtab.experiments.training.training_scenario import TrainingScenario
from trimtab.training.node_outages import FailingNode, NodeEvent


def node_faults(
    scenario: TrainingScenario, seed: int, stretch: float = 1.0
) -> tuple[tuple[NodeEvent, ...], tuple[FailingNode, ...]]:
    """Events at given times, `stretch` times as late and as long, and nodes that fail again and again."""
    nodes, zones = tuple(scenario.cluster.each_node()), scenario.cluster.zone_names
    names = np.array([node.name for node in nodes])
    types = np.array([node.group.type for node in nodes])
    zone = np.array([node.group.zone or zones[0] for node in nodes])
    known: list[NodeEvent] = []
    failing: list[FailingNode] = []
    for k, fault in enumerate(scenario.faults):
        rng = generator(seed, Stream.FAULT, k)
        for j in struck_nodes(fault, names, types, zone, rng).tolist():
            if fault.mtbf_s is not None and fault.mttr_s is not None:
                failing.append(FailingNode(j, fault.mtbf_s, fault.mttr_s, int(rng.integers(2**63))))
            if fault.at_s is not None and fault.duration_s is not None:
                at_s, duration_s = stretch * fault.at_s, stretch * fault.duration_s
                known += _once(j, at_s, duration_s, is_planned=fault.planned)
    return tuple(known), tuple(failing)


def _once(node_idx: int, at_s: float, duration_s: float, *, is_planned: bool) -> Iterator[NodeEvent]:
    yield NodeEvent(at_s, node_idx, up=False, drains=is_planned)
    yield NodeEvent(at_s + duration_s, node_idx, up=True)
