"""Quotas of the tenants of a training scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trimtab.domain.training_jobs import Floats, Workload
from trimtab.errors import ScenarioError
from trimtab.validation.names import nearest
from trimtab.words import counted


def quota_gpus_of(quotas: Mapping[str, int], workload: Workload, file: str) -> Floats:
    """Most GPUs of each tenant, [tenants]; inf = none; empty = no tenant has one. Raises ScenarioError."""
    for name in quotas:
        if name not in workload.tenant_names:
            expected = f"a tenant of the jobs: {nearest(name, workload.tenant_names)}"
            raise ScenarioError("no such tenant", file=file, field="quotas", value=name, expected=expected)
    if not quotas:
        return np.zeros(0)
    return np.array([quotas.get(name, np.inf) for name in workload.tenant_names], np.float64)


def limited(workload: Workload, quota_gpus: Floats, file: str) -> Workload:
    """No job gets more GPUs than its tenant may hold. Raises ScenarioError for one that asks for more."""
    if not len(quota_gpus):
        return workload
    most = quota_gpus[workload.tenant_idx]
    for i in np.flatnonzero(workload.gpus_requested > most)[:1]:
        raise ScenarioError(
            f"job {workload.job_ids[i]} asks for {counted(int(workload.gpus_requested[i]), 'GPU')}",
            file=file,
            field=f"quotas.{workload.tenant_names[workload.tenant_idx[i]]}",
            value=int(most[i]),
            expected="no less than a job of the tenant asks for",
        )
    return replace(workload, gpus_max=np.minimum(workload.gpus_max, most).astype(np.int64))
