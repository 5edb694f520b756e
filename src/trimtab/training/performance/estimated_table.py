"""Tables of speed as allocators see them when only some numbers of GPUs were profiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trimtab.domain.training_profiles import ScalingTable
from trimtab.training.performance.job_metadata import JobMetadata
from trimtab.training.performance.profiled_runs import PerformanceModel, ProfiledRuns, Samples
from trimtab.training.performance.throughput_formulas import OptimusSpeed

CURVE_MODELS: Final[Mapping[str, PerformanceModel]] = {
    model.name: model for model in (ProfiledRuns(), OptimusSpeed(), JobMetadata())
}
"""Models that predict a curve from some of its points."""


def estimated_table(table: ScalingTable, name: str, profiled_gpus: Sequence[int]) -> ScalingTable:
    """The table with speeds predicted by the model of this name; what was profiled stays as it is.

    A curve without any of these numbers of GPUs was profiled at its least one. Whether a job runs at all with
    a number of GPUs is known.
    """
    rate = table.rate_per_s.copy()
    for type_rates in rate:
        runs = type_rates > 0
        known = runs & np.isin(table.levels, profiled_gpus)
        bare = np.flatnonzero(~known.any(axis=1) & runs.any(axis=1))
        known[bare, runs[bare].argmax(axis=1)] = True
        samples = curve_samples(table, type_rates)
        is_known = known[runs]
        predicted = CURVE_MODELS[name].fit(samples.of(is_known)).seconds(samples)
        type_rates[runs] = np.where(is_known, type_rates[runs], 1.0 / np.maximum(predicted, 1e-12))
    return replace(table, rate_per_s=rate)


def with_speeds(
    table: ScalingTable, models: Sequence[str], given: ScalingTable, given_models: Sequence[str]
) -> ScalingTable | None:
    """The table with given speeds, of one type, where they have the model, batch and GPUs; else its own.

    None where the two have no model and batch in common.
    """
    rate, matched = table.rate_per_s.copy(), False
    types = np.zeros(len(table.levels), np.int64)
    for m, name in enumerate(models):
        for b in np.flatnonzero(table.curve_idx[m] >= 0) if name in given_models else ():
            model_idx = np.array([given_models.index(name)])
            curve = given.curves_of(model_idx, table.batches[b : b + 1])
            if curve[0] >= 0:
                own = rate[:, table.curve_idx[m, b]]
                speeds = given.rates(np.repeat(curve, len(types)), types, table.levels)
                own[:] = np.where((own > 0) & (speeds > 0), speeds, own)
                matched = True
    return replace(table, rate_per_s=rate) if matched else None


def curve_samples(table: ScalingTable, rate: np.ndarray) -> Samples:
    """The points of the curves of one type, [curves, levels], row by row."""
    model, batch = (np.zeros(len(rate), np.int64), np.zeros(len(rate)))
    for (m, b), at in np.ndenumerate(table.curve_idx):
        if at >= 0:
            model[at], batch[at] = m, table.batches[b]
    curve, level = np.nonzero(rate > 0)
    columns = {
        "curve": curve,
        "model": model[curve].astype(str),
        "batch": batch[curve],
        "gpus": table.levels[level],
    }
    return Samples(columns, 1.0 / rate[curve, level])
