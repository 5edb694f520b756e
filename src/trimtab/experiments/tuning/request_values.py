"""One value for each request, and the metrics that are a mean or a quantile of such values.

Means and quantiles of single requests can be told for a part of a run, and drawn again for an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.metrics import METRICS, Records
from trimtab.metrics.latency import bounded_slowdown, slo_attained
from trimtab.metrics.statistics import BATCHES, LEAST_IN_BATCH

Floats = NDArray[np.float64]
LEAST: Final = BATCHES * LEAST_IN_BATCH  # requests of a part with an interval
_RESAMPLES: Final = 400

FAMILIES: Final[Mapping[str, Callable[[Records], Floats]]] = {
    "completion": lambda records: records.requests.completion_s,
    "queueing": lambda records: records.requests.start_s - records.requests.arrival_s,
    "slowdown": lambda records: bounded_slowdown(records.requests.completion_s, records.requests.best_work_s),
    "slo_attained": lambda records: slo_attained(records).astype(np.float64),
    "finished": lambda records: records.requests.finished.astype(np.float64),
}
"""Family of metrics → the value of each request, [requests]; nan where it has none."""


def measured_names() -> list[str]:
    """The metrics that are a statistic of one of the families."""
    return [name for name in METRICS if _parts(name) is not None]


def family_of(metric: str) -> str:
    """The family of such a metric."""
    found = _parts(metric)
    assert found is not None
    return found[0]


def statistic(metric: str, values: Floats) -> float:
    """A metric of these values [requests]; nan without any."""
    found = _parts(metric)
    assert found is not None
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan")
    return float(values.mean() if found[1] is None else np.percentile(values, found[1]))


def resampled(metric: str, runs: Sequence[Sequence[Floats]], seed: int) -> Floats:
    """The metric over drawn seeds and blocks of requests, [policies, resamples].

    Args:
        metric: one of `measured_names`.
        runs: for each policy the values of each seed, [policies][seeds][requests] in order of arrival.
        seed: of the draws.

    Seeds are drawn with replacement, and so are blocks of consecutive requests: the same ones for all seeds
    and policies, so that policies differ by their decisions alone, and seeds on the same traffic do not count
    as more traffic. Source: E. Carlstein, Annals of Statistics 14(3), 1986 (blocks that do not overlap).
    """
    draw, seeds = np.random.default_rng(seed), len(runs[0])
    found = np.empty((len(runs), _RESAMPLES))
    for k in range(_RESAMPLES):
        of_seeds = draw.integers(seeds, size=seeds)
        of_blocks = draw.integers(BATCHES, size=BATCHES)
        for policy, values in enumerate(runs):
            found[policy, k] = np.mean([statistic(metric, _drawn(values[s], of_blocks)) for s in of_seeds])
    return found


def _drawn(values: Floats, blocks: NDArray[np.integer]) -> Floats:
    edges = np.arange(BATCHES + 1) * len(values) // BATCHES
    return np.concatenate([values[edges[b] : edges[b + 1]] for b in blocks])


def _parts(metric: str) -> tuple[str, int | None] | None:
    """Family and rank of a metric; None as the rank is the mean, as the whole something else."""
    for family in FAMILIES:
        rest = metric.removeprefix(family).removesuffix("_s").removesuffix("_frac")
        if not metric.startswith(family):
            continue
        if rest in ("", "_mean"):
            return family, None
        if rest[:2] == "_p" and rest[2:].isdigit():
            return family, int(rest[2:])
    return None
