"""A family of clusters with their requests, each drawn from a seed: to train on many, and judge on others.

Between them they differ in nodes, types and how unrelated their speeds are, slots, memory, classes, models
with loads from a tenth to ten services, load, bursts, and errors of estimates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trimtab.experiments.scenario import Scenario

SIZES = (8, 12, 16, 24, 32, 48, 64)  # nodes
_BASE_S = 10.0  # median service


def generated_cluster(
    seed: int, requests: int = 1500, *, nodes: int | None = None, load: float | None = None
) -> Scenario:
    """The cluster of a seed with so many requests; with these nodes and this load, where they are given."""
    draw = np.random.default_rng(seed)
    n_nodes = int(nodes or draw.choice(SIZES))
    n_types, n_classes = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    base_s = [_BASE_S * math.exp(x) for x in draw.normal(0.0, 0.7, n_classes).tolist()]
    fast, apart = draw.normal(0.0, 0.35, n_types), 0.3 * draw.random()
    logs = fast[:, None] + draw.normal(0.0, apart, (n_types, n_classes))
    speeds = [[math.exp(x) for x in row] for row in logs.tolist()]
    counts = np.maximum(1, draw.multinomial(n_nodes, np.full(n_types, 1.0 / n_types)))
    slots, memory_gib = int(draw.choice([1, 1, 1, 2, 4])), draw.choice([16.0, 24.0, 48.0, 80.0], n_types)
    names = [f"type{t}" for t in range(n_types)]
    has_models = draw.random() < 0.85
    models: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    mix: dict[str, Any] = {}
    for c, seconds in enumerate(base_s):
        fixed_frac = draw.uniform(0.0, 0.7)
        one: dict[str, Any] = {
            "fixed_s": {name: seconds * fixed_frac / speeds[t][c] for t, name in enumerate(names)},
            "unit_s": {name: seconds * (1.0 - fixed_frac) / speeds[t][c] for t, name in enumerate(names)},
        }
        if has_models:
            one["model"] = f"model{c}"
            models[f"model{c}"] = {
                "memory_gib": float(min(draw.choice([3.5, 7.0, 14.0]), 0.9 * memory_gib.min())),
                "load_s": seconds * math.exp(0.8 * draw.standard_normal()),
                "count": int(draw.integers(1, 13)),
                "zipf": float(draw.uniform(0.5, 1.7)),
            }
        classes[f"class{c}"] = one
        size = {"distribution": "lognormal", "mean": 1.0, "cv": float(draw.uniform(0.1, 1.2))}
        mix[f"class{c}"] = {"share": 1.0 / (1 + c), "size": size}
    arrival: dict[str, Any] = {"process": "poisson", "rate_per_s": 1.0}
    if draw.random() < 0.6:
        rates = [1.0, float(draw.uniform(1.5, 4.0))]
        sojourns = [float(draw.uniform(30.0, 200.0)), float(draw.uniform(10.0, 80.0))]
        arrival = {"process": "mmpp", "rates_per_s": rates, "sojourns_s": sojourns}
    types = {name: {"memory_gib": float(memory_gib[t]), "slots": slots} for t, name in enumerate(names)}
    content = {
        "name": f"generated-{seed}",
        "cluster": {
            "types": types,
            "nodes": [{"type": name, "count": int(counts[t])} for t, name in enumerate(names)],
        },
        "classes": classes,
        "workload": {
            "generate": {"requests": requests, "arrival": arrival, "mix": mix},
            "load": float(load or draw.uniform(0.5, 1.1)),
            "estimate_cv": float(draw.uniform(0.0, 0.6)),
            "service_cv": float(draw.uniform(0.05, 0.4)),
        },
        **({"models": models} if models else {}),
    }
    return Scenario.model_validate(content)
