"""Clusters of engines with simple tables, and requests of tokens, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import ENGINE_TYPE, LANGUAGE_MODEL, SHARED, Engines
from trimtab.domain.options import Options
from trimtab.domain.requests import TRUTH, Prefixes, Requests
from trimtab.domain.view import UNLIMITED, new_work
from trimtab.engine.driver import Driver
from trimtab.policies import find


def model_type(**fields: Any) -> dict[str, Any]:
    """A node type that serves a language model, with linear tables."""
    return (
        {"step_s": 0.01, "row_s": 0.001, "context_s": 0.0, "token_s": 0.001, "batch_max": 8}
        | {
            "token_budget": 64,
            "kv_tokens": 10_000,
            "service": LANGUAGE_MODEL,
        }
        | fields
    )


def shared_type(slowdown: np.ndarray) -> dict[str, Any]:
    """A node type that serves all its requests at once, `slowdown` [1 + most] by their number."""
    return {"service": SHARED, "batch_max": len(slowdown) - 1, "slowdown": slowdown}


def measured_type(size_at: Any, measured_s: Any) -> dict[str, Any]:
    """A node type that serves all its requests at once, in `measured_s` [1 + most, sizes] seconds."""
    seconds = np.asarray(measured_s, float)
    return shared_type(np.ones(len(seconds))) | {
        "sizes": len(size_at),
        "size_at": np.asarray(size_at, float),
        "measured_s": seconds,
    }


def engines_of(kinds: list[dict[str, Any]]) -> Engines:
    """Engines of node types; {} is a type with slots."""
    rows = max(int(kind.get("batch_max", 0)) for kind in kinds) + 1
    tokens = max(rows, *(int(kind.get("token_budget", 0)) for kind in kinds)) + 1
    types, shape = np.zeros(len(kinds), ENGINE_TYPE), (len(kinds), rows)
    dense, zero = np.zeros((len(kinds), tokens)), np.zeros(shape)
    attention, context, slowdown = zero.copy(), zero.copy(), np.ones(shape)
    for g, kind in enumerate(kinds):
        for name in ENGINE_TYPE.names or ():
            types[name][g] = kind.get(name, 0)
        if kind.get("service") == LANGUAGE_MODEL:
            dense[g] = kind["step_s"] + kind["token_s"] * np.arange(tokens)
            attention[g], context[g] = (kind["row_s"] - kind["token_s"]) * np.arange(rows), kind["context_s"]
            slowdown[g] = 1.0 + 0.1 * np.arange(rows)
        if "slowdown" in kind:
            slowdown[g, : len(kind["slowdown"])] = kind["slowdown"]
    sizes = max(1, *(int(kind.get("sizes", 0)) for kind in kinds))
    size_at, measured = np.zeros((len(kinds), sizes)), np.zeros((*shape, sizes))
    for g, kind in enumerate(kinds):
        if "sizes" in kind:
            seconds = kind["measured_s"]
            size_at[g, : seconds.shape[1]] = kind["size_at"]
            measured[g, : seconds.shape[0], : seconds.shape[1]] = seconds
    return Engines(types, dense, zero.copy(), attention, context, slowdown, size_at, measured)


def engine_cluster(
    kinds: list[dict[str, Any]], type_idx: list[int], slots: int = 2, queue_max: int = UNLIMITED
) -> Cluster:
    """Nodes of these types; a unit of work takes half a second on a type with slots."""
    n, many, place = len(type_idx), len(kinds), np.array(type_idx)
    return Cluster(
        type_names=tuple(f"type{g}" for g in range(many)),
        node_names=tuple(f"node{j}" for j in range(n)),
        type_idx=place,
        slots=np.full(n, slots),
        queue_max=np.full(n, queue_max),
        zone_idx=np.zeros(n, np.int64),
        weight=np.ones(n),
        nic_gib_per_s=np.full(n, np.inf),
        memory_gib=np.full(many, np.inf),
        accelerators=np.ones(many),
        usd_per_hour=np.ones(many),
        class_names=("chat",),
        fixed_s=np.zeros((1, many)),
        unit_s=np.full((1, many), 0.5),
        item_names=(),
        item_gib=np.zeros(0),
        item_is_adapter=np.zeros(0, np.uint8),
        load_s=np.zeros((0, many)),
        zone_names=("here",),
        rtt_s=np.zeros((1, 1)),
        zone_gib_per_s=np.array([np.inf]),
        engines=engines_of(kinds),
    )


def token_requests(
    cluster: Cluster, arrival_s: Any, prompt: Any, output: Any, prefixes: Prefixes | None = None, **work: Any
) -> Requests:
    """Requests of so many tokens, or of `output` units of work on other nodes."""
    n = len(arrival_s)
    rows, truth = new_work(n), np.zeros(n, TRUTH)
    rows["serial"], rows["arrival_s"], rows["run_arrival_s"] = np.arange(n), arrival_s, arrival_s
    rows["deadline_s"], rows["units"], rows["parts_max"] = np.inf, output, 1
    rows["model_idx"] = rows["adapter_idx"] = -1
    rows["input_tokens"], rows["output_tokens"] = prompt, output
    for name, values in work.items():
        rows[name] = values
    rows["estimate_s"] = rows["rank_s"] = cluster.best_estimate_s(rows["class_idx"], rows["units"])
    truth["units"], truth["factor"], truth["output_tokens"] = output, 1.0, output
    return Requests(rows, truth, prefixes=prefixes)


def finished(
    cluster: Cluster,
    requests: Requests,
    policy: str = "round-robin",
    mode: str = "interpreted",
    seed: int = 0,
    **options: Any,
) -> Driver:
    """A run to its end."""
    driver = Driver(cluster, requests, Options(**options), find(policy), mode=mode, seed=seed)
    driver.advance()
    return driver
