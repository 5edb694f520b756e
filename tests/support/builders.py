"""Clusters, requests and whole runs for tests: every number is chosen here, nothing is read from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Cancel, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import TRUTH, Requests
from trimtab.domain.view import UNLIMITED, new_work
from trimtab.engine.simulator import run as simulated
from trimtab.engine.state import State

NEVER_S = float("inf")
MODEL_GIB, ADAPTER_GIB = 6.0, 0.5


def cluster(
    n_nodes: int = 4,
    *,
    types: int = 1,
    slots: int | Sequence[int] = 1,
    classes: int = 1,
    models: int = 0,
    adapters: int = 0,
    zones: int = 1,
    queue_max: int = UNLIMITED,
    speeds: Sequence[float] | None = None,
    fixed_s: float = 0.0,
    unserved: Sequence[tuple[int, int]] = (),
    memory_gib: float = 16.0,
    load_s: float = 2.0,
    rtt_s: float = 0.02,
    nic_gib_per_s: float = np.inf,
) -> Cluster:
    """A cluster whose node j is of type j mod types and in zone j mod zones.

    Type g works at speeds[g] (default 1, 2, …); class c needs (1 + c/2) times the work of class 0, and a
    further fifth where c + g is odd (unrelated machines). `unserved` lists (class, type) pairs.
    """
    j, c, g = np.arange(n_nodes), np.arange(classes)[:, None], np.arange(types)[None, :]
    speed = np.asarray(speeds if speeds is not None else 1.0 + np.arange(types), np.float64)
    unit_s = (1.0 + 0.5 * c) * np.where((c + g) % 2 == 1, 1.2, 1.0) / speed
    fixed = np.full((classes, types), fixed_s)
    for pair in unserved:
        fixed[pair] = np.inf
    type_idx, slot_counts = j % types, np.broadcast_to(np.asarray(slots, np.int64), (n_nodes,)).copy()
    item_gib = np.concatenate([np.full(models, MODEL_GIB), np.full(adapters, ADAPTER_GIB)])
    return Cluster(
        type_names=tuple(f"type{k}" for k in range(types)),
        node_names=tuple(f"node{k}" for k in range(n_nodes)),
        type_idx=type_idx,
        slots=slot_counts,
        queue_max=np.full(n_nodes, queue_max, np.int64),
        zone_idx=j % zones,
        weight=slot_counts * speed[type_idx],
        nic_gib_per_s=np.full(n_nodes, nic_gib_per_s),
        memory_gib=np.full(types, memory_gib),
        accelerators=np.ones(types),
        usd_per_hour=1.0 + np.arange(types),
        class_names=tuple(f"class{k}" for k in range(classes)),
        fixed_s=fixed,
        unit_s=unit_s,
        item_names=tuple(f"item{k}" for k in range(models + adapters)),
        item_gib=item_gib,
        item_is_adapter=(np.arange(models + adapters) >= models).astype(np.uint8),
        load_s=item_gib[:, None] / MODEL_GIB * load_s / speed[None, :],
        zone_names=tuple(f"zone{k}" for k in range(zones)),
        rtt_s=rtt_s * (1.0 - np.eye(zones)),
        zone_gib_per_s=np.full(zones, np.inf),
    )


def with_resources(c: Cluster) -> Cluster:
    """Cores and memory for all nodes: for some mixes of the classes slots bind, for others either of them."""
    demand = np.array([[1.0, 0.5], [0.5, 1.5], [2.0, 1.0]])
    return replace(
        c,
        resource_names=("cpu_cores", "ram_gib"),
        capacity=np.stack([1.5 * c.slots + 1.0, c.slots + 1.0], axis=1),
        demand=demand[: len(c.class_names)],
    )


def capacity_per_s(c: Cluster) -> float:
    """Requests of one unit per second, classes equally frequent: each type serves what it can, evenly mixed.

    Exact for one class or related machines; a fair scale otherwise.
    """
    seconds = np.where(np.isfinite(c.fixed_s), c.fixed_s + c.unit_s, np.nan)
    return float((c.slots / np.nanmean(seconds, axis=0)[c.type_idx]).sum())


def requests(
    c: Cluster,
    n: int,
    *,
    load: float = 0.8,
    seed: int = 1,
    tenants: int = 1,
    priorities: int = 1,
    deadline_s: float = NEVER_S,
    payload_gib: float = 0.0,
    noise: bool = False,
    sizes: str = "exponential",
    keys: int = 1000,
) -> Requests:
    """Poisson arrivals at `load` × capacity; sizes `exponential` (mean 1) or `constant` (1).

    Classes, models, adapters, tenants, zones, priorities and keys are drawn evenly; `deadline_s` is relative,
    times a factor in [.5, 1.5); `noise` draws the hidden factor evenly from [.5, 1.5).
    """
    rng = np.random.default_rng(seed)
    n_models = int((c.item_is_adapter == 0).sum())
    n_adapters = len(c.item_names) - n_models
    work, truth = new_work(n), np.zeros(n, TRUTH)
    work["serial"] = np.arange(n)
    work["arrival_s"] = work["run_arrival_s"] = np.cumsum(
        rng.exponential(1.0 / (load * capacity_per_s(c)), n)
    )
    work["deadline_s"] = work["arrival_s"] + deadline_s * rng.uniform(0.5, 1.5, n)
    work["units"] = rng.exponential(1.0, n) if sizes == "exponential" else 1.0
    work["cost"] = work["units"]
    work["payload_gib"] = payload_gib * rng.uniform(0.5, 1.5, n)
    work["class_idx"] = rng.integers(0, len(c.class_names), n)
    work["tenant_idx"] = rng.integers(0, tenants, n)
    work["zone_idx"] = rng.integers(0, len(c.zone_names), n)
    work["priority"] = rng.integers(0, priorities, n)
    work["model_idx"] = rng.integers(0, n_models, n) if n_models else -1
    work["adapter_idx"] = n_models + rng.integers(0, n_adapters, n) if n_adapters else -1
    work["key"] = rng.integers(0, keys, n)
    work["estimate_s"] = work["rank_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    truth["units"] = work["units"]
    truth["factor"] = rng.uniform(0.5, 1.5, n) if noise else 1.0
    return Requests(work, truth, tuple(f"tenant{k}" for k in range(tenants)))


def faults(failing: Sequence[int], slow: Sequence[int], *, mtbf_s: float, mttr_s: float) -> np.ndarray:
    """Recurring faults: nodes that fail, and nodes that slow down to half speed."""
    rows = np.zeros(len(failing) + len(slow), FAULT)
    rows["node_idx"] = [*failing, *slow]
    rows["factor"] = [0.0] * len(failing) + [0.5] * len(slow)
    rows["mtbf_s"], rows["mttr_s"] = mtbf_s, mttr_s
    return rows


def everything_on(n: int = 600, *, seed: int = 1, n_nodes: int = 6) -> tuple[Cluster, Requests, Options]:
    """A small case with every feature at work: models, zones, faults, stale views, bounds, deadlines."""
    c = cluster(
        n_nodes,
        types=2,
        slots=[1 + j % 3 for j in range(n_nodes)],
        classes=3,
        models=3,
        adapters=2,
        zones=2,
        queue_max=3,
        load_s=0.3,
        unserved=[(2, 0)],
        nic_gib_per_s=1.0,
    )
    r = requests(
        c,
        n,
        load=0.9,
        seed=seed,
        tenants=2,
        priorities=3,
        deadline_s=12.0,
        payload_gib=0.05,
        noise=True,
    )
    options = Options(
        held_max=20,
        lookahead=2,
        cancel=Cancel.WAITING,
        dispatchers=2,
        telemetry_period_s=0.5,
        telemetry_delay_s=0.2,
        faults=faults([0, 1], [2], mtbf_s=10.0, mttr_s=2.0),
    )
    return c, r, options


def run(
    c: Cluster,
    r: Requests,
    options: Options,
    policy: Policy,
    order: Policy | None = None,
    *,
    seed: int = 0,
    compiled: bool = False,
) -> State:
    """Run to the end, plans included; returns the final state."""
    mode = "compiled" if compiled else "interpreted"
    state: State = simulated(c, r, options, Decider.of(policy, order), seed=seed, mode=mode).state
    return state
