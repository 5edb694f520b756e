"""Online services as rows of a workload, ahead of its jobs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from trimtab.domain.job_places import JobAsk
from trimtab.domain.training_jobs import ServiceLoads, Workload
from trimtab.experiments.training.training_scenario import GenerateServices

SERVICE: Final = "online-service"  # name of their model
_DAY_S: Final = 86_400.0


def with_services(workload: Workload, services: GenerateServices, seed: int) -> Workload:
    """The workload with services that begin with its first job, each at another time of its day."""
    n, first_s = services.count, float(workload.submit_s[0])
    phase_s = np.random.default_rng([seed, 3]).uniform(0.0, _DAY_S, n)
    given: dict[str, Any] = {
        "submit_s": first_s,
        "deadline_s": np.inf,
        "model_idx": workload.model_names.index(SERVICE),
        "gpus_requested": 1,
        "gpus_min": 1,
        "gpus_max": 1,
        "batch": 1.0,
        "work": np.inf,
        "declared_work": np.inf,
        "duration_s": np.nan,
        "priority": 1,
        "tenant_idx": 0,
        "preemptible": False,
        "scales": False,
    }
    columns: dict[str, Any] = {
        name: np.concatenate([np.full(n, value, getattr(workload, name).dtype), getattr(workload, name)])
        for name, value in given.items()
    }
    assert {f.name for f in fields(workload)} - set(given) == {
        "name", "job_ids", "model_names", "tenant_names", "pinned", "services", "asks", "columns"
    }  # fmt: skip
    if workload.pinned is not None:
        columns["pinned"] = np.concatenate([np.zeros(n, np.bool_), workload.pinned])
    loads = ServiceLoads(
        is_service=np.arange(n + len(workload)) < n,
        phase_s=np.concatenate([phase_s, np.zeros(len(workload))]),
        least=services.load_least,
        most=services.load_most,
    )
    ids = tuple(f"service-{i}" for i in range(n))
    asks = (JobAsk(),) * n + workload.asks if workload.asks else ()
    return replace(workload, job_ids=ids + workload.job_ids, services=loads, asks=asks, **columns)
