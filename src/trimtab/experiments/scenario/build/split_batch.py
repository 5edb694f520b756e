"""Splitting and batching of the classes, in the form of requests and options."""

from __future__ import annotations

import numpy as np

from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray


def parts_max(served: Served, class_idx: IntArray, units: FloatArray) -> IntArray:
    """Highest number of parts of each request by its estimated units, [requests]; 1 = it cannot be split."""
    most = np.ones(len(units), np.int64)
    for c, service in enumerate(served.classes.values()):
        if service.split is not None:
            rows = class_idx == c
            parts = (units[rows] / service.split.part_units).astype(np.int64)
            most[rows] = np.clip(parts, 1, service.split.parts_max)
    return most


def join_s(served: Served) -> FloatArray | None:
    """Seconds to join the parts of a request, [classes]; None if no class can be split."""
    specs = [service.split for service in served.classes.values()]
    if not any(specs):
        return None
    return np.array([0.0 if spec is None else spec.join_s for spec in specs])


def batch_marginal_frac(served: Served) -> FloatArray | None:
    """Marginal cost of one more request in a batch, [classes], negative = not batched; None if none is."""
    specs = [service.batch for service in served.classes.values()]
    if not any(specs):
        return None
    return np.array([-1.0 if spec is None else spec.marginal_frac for spec in specs])
