"""A small scenario of requests and training jobs on the same nodes."""

from __future__ import annotations

from typing import Any


def small_shared(**changed: Any) -> dict[str, Any]:
    """Four nodes of two slots; 150 requests of 20 s in about 900 s."""
    node = {
        "accelerator": "gpu",
        "accelerators": 2,
        "memory_gib": 8,
        "slots": 2,
        "resources": {"gpu_milli": 2000},
    }
    answer = {"model": "m", "fixed_s": 20, "unit_s": 0.0, "slo_s": 60, "demand": {"gpu_milli": 1000}}
    requests = {
        "cluster": {"types": {"gpu-node": node}, "nodes": [{"type": "gpu-node", "count": 4, "queue_max": 0}]},
        "models": {"m": {"memory_gib": 1}},
        "classes": {"answer": answer},
        "workload": {
            "generate": {
                "requests": 150,
                "arrival": {"process": "diurnal", "rate_per_s": 0.17, "peak_to_trough": 8, "period_s": 900},
                "mix": {"answer": {"share": 1, "size": {"distribution": "choice", "values": {1: 1.0}}}},
            }
        },
    }
    generate = {"jobs": 12, "models": {"v": {"gpus_max": 2}}, "gpus": {1: 1.0}, "duration": {"median_s": 400}}
    return {
        "kind": "shared",
        "name": "small",
        "requests": requests,
        "serve_with": "best-fit",
        "jobs": {"generate": generate, "load": 2.0},
        "round_s": 30,
        "return_s": 10,
        "seeds": 1,
    } | changed
