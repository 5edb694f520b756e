"""Scenarios of generated clusters: nodes, types, speeds, models, bursts and errors of estimates by a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.experiments.scenario import Scenario


def generated_cluster(seed: int, requests: int = 1_500) -> Scenario:
    """8 to 64 nodes of 1 to 4 types at load .5 to 1.1, up to 5 classes; most classes have 1 to 12 models.

    Speeds are unrelated over types and classes. Many of the clusters are short of memory for their models.
    """
    rng = np.random.default_rng(seed)
    n_nodes, n_types = int(rng.choice([8, 12, 16, 24, 32, 48, 64])), int(rng.integers(1, 5))
    n_classes = int(rng.integers(1, 6))
    base_s = 10.0 * np.exp(rng.normal(0.0, 0.7, n_classes))
    speed = np.exp(rng.normal(0.0, 0.35, n_types))[:, None]
    speed = speed * np.exp(rng.normal(0.0, 0.3 * rng.random(), (n_types, n_classes)))
    counts = np.maximum(1, rng.multinomial(n_nodes, np.ones(n_types) / n_types))
    slots = int(rng.choice([1, 1, 1, 2, 4]))
    memory_gib = rng.choice([16.0, 24.0, 48.0, 80.0], n_types)
    names = [f"t{i}" for i in range(n_types)]
    has_models = rng.random() < 0.85
    classes, models, mix = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for c in range(n_classes):
        fixed_frac = rng.uniform(0.0, 0.7)
        on_type_s = base_s[c] / speed[:, c]
        classes[f"c{c}"] = {
            "fixed_s": dict(zip(names, (fixed_frac * on_type_s).tolist(), strict=True)),
            "unit_s": dict(zip(names, ((1.0 - fixed_frac) * on_type_s).tolist(), strict=True)),
        }
        if has_models:
            classes[f"c{c}"]["model"] = f"m{c}"
            models[f"m{c}"] = {
                "memory_gib": float(min(rng.choice([3.5, 7.0, 14.0]), 0.9 * memory_gib.min())),
                "load_s": float(base_s[c] * np.exp(rng.normal(0.0, 0.8))),
                "count": int(rng.integers(1, 13)),
                "zipf": float(rng.uniform(0.5, 1.7)),
            }
        size = {"distribution": "lognormal", "mean": 1.0, "cv": float(rng.uniform(0.1, 1.2))}
        mix[f"c{c}"] = {"share": 1.0 / (1 + c), "size": size}
    arrival: dict[str, Any] = {"process": "poisson", "rate_per_s": 1.0}
    if rng.random() < 0.6:
        rates = [1.0, float(rng.uniform(1.5, 4.0))]
        sojourns_s = [float(rng.uniform(30.0, 200.0)), float(rng.uniform(10.0, 80.0))]
        arrival = {"process": "mmpp", "rates_per_s": rates, "sojourns_s": sojourns_s}
    types = {n: {"memory_gib": m, "slots": slots} for n, m in zip(names, memory_gib.tolist(), strict=True)}
    nodes = [{"type": name, "count": int(n)} for name, n in zip(names, counts, strict=True)]
    workload = {
        "generate": {"requests": requests, "arrival": arrival, "mix": mix},
        "load": float(rng.uniform(0.5, 1.1)),
        "estimate_cv": float(rng.uniform(0.0, 0.6)),
        "service_cv": float(rng.uniform(0.05, 0.4)),
    }
    parts = {"cluster": {"types": types, "nodes": nodes}, "classes": classes, "workload": workload}
    return Scenario.model_validate({**parts, "models": models, "name": f"generated {seed}"})
