"""Connects the recorder to the fleet and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trimtab.gateway.decide.decision_log import Decision
from trimtab.gateway.decide.dispatch_rules import LOOKAHEAD, MAX_RETRIES
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.decide.learning import class_name
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.observe.private_counts import is_public
from trimtab.gateway.record.recorded_rows import Signals, Snapshot
from trimtab.gateway.record.recorder import Recorder, RecordSettings
from trimtab.traces.gateway_format import ClassRow


def new_recorder(
    settings: RecordSettings | None,
    fleet: Fleet,
    dispatcher: PolicyDispatcher,
    shadow: Callable[[], str],
    tenants: Iterable[Tenant] = (),
) -> Recorder | None:
    """The recorder; None = no recording. `shadow()` names the shadow policy; "" = none."""
    if settings is None:
        return None

    def candidates(decision: Any) -> tuple[int, ...]:
        if not isinstance(decision, Decision):
            return ()
        if decision.nodes is dispatcher.registry.names:
            return decision.node_idx
        found = (fleet.find(decision.nodes[j]) for j in decision.node_idx)
        return tuple(node.idx for node in found if node is not None)

    return Recorder(
        settings,
        lambda: _snapshot(fleet, dispatcher, shadow()),
        fleet.loop.time,
        candidates_of=candidates,
        adapter_of=dispatcher.registry.adapter_of,
        lists=dispatcher.registry.lists,
        signals=lambda: signals_of(dispatcher, tenants),
    )


def _snapshot(fleet: Fleet, dispatcher: PolicyDispatcher, shadow: str) -> Snapshot:
    rules = dispatcher.rules
    exchanges = (one for pool in dispatcher.pools.values() for one in pool.exchanges.values())
    inside = list(filter(is_public, exchanges))
    return Snapshot(
        policy=rules.default.spec,
        nodes=fleet.nodes,
        classes=_class_rows(dispatcher.registry),
        seed=rules.seed,
        shadow=shadow,
        options={
            "held_max": rules.held_max,
            "lookahead": LOOKAHEAD,
            "lane_per_class": True,
            "max_retries": MAX_RETRIES,
            "dispatchers": 1,
        },
        in_flight=[one for one in inside if one.node_idx >= 0],
        queued=[one for one in inside if one.node_idx < 0],
    )


def signals_of(dispatcher: PolicyDispatcher, tenants: Iterable[Tenant] = ()) -> Signals:
    """Inputs of policies besides requests and estimates, as they are now."""
    registry = dispatcher.registry
    cluster, members = registry.cluster({}), registry.shape.members
    capacity, others = cluster.capacity, registry.used_by_others()
    names = cluster.class_names[: len(registry.classes)]
    costs = [dispatcher.rules.holding_cost.get(known.key[0], 1.0) for known in registry.classes]
    frac = np.divide(others, capacity, out=np.zeros(others.shape), where=capacity > 0.0)
    return Signals(
        resources=cluster.resource_names,
        capacity=capacity.tolist(),
        used_by_others_frac=np.minimum(frac, 1.0).tolist(),
        demand=dict(zip(names, cluster.demand.tolist(), strict=False)),
        holding_cost={name: cost for name, cost in zip(names, costs, strict=True) if cost != 1.0},
        weight=[member.weight for member in members],
        usd_per_hour=[member.usd_per_hour for member in members],
        zone=[member.zone for member in members],
        zones=cluster.zone_names,
        rtt_s=cluster.rtt_s.tolist(),
        nic_gib_per_s=cluster.nic_gib_per_s.tolist(),
        zone_gib_per_s=cluster.zone_gib_per_s.tolist(),
        tenant_weights={tenant.name: tenant.weight for tenant in tenants if tenant.weight != 1.0},
    )


def _class_rows(registry: Registry) -> list[ClassRow]:
    rows: list[ClassRow] = []
    estimates = registry.estimates.public or registry.estimates
    for key in registry.class_keys:
        by_type = {name: estimates.of(key, name) for name in registry.types_of(key[0])}
        rows.append(
            {
                "name": class_name(key),
                "unit": "unit",
                "fixed_s": {name: fixed_s for name, (fixed_s, _) in by_type.items()},
                "unit_s": {name: unit_s for name, (_, unit_s) in by_type.items()},
                "served_by": registry.served_by(key[0]),
            }
        )
    return rows
