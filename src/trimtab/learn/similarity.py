"""How far apart two kinds of workloads are, for weights that were trained on one and are to serve the other.

A workload is told by distributions, each as `POINTS` of its quantiles. Between two of them is the
Wasserstein distance of order 1: the mean difference of their quantiles, in the unit of the values. Source:
Aaditya Ramdas, Nicolás García Trillos, Marco Cuturi, "On Wasserstein two-sample testing and related families
of nonparametric tests", Entropy 19(2), 2017, section 2. Times count in usual services of the workload and
relative to the best node, as in the features of learned weights, so a cluster that is twice as fast under
twice the rate is equal.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import wasserstein_distance

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.artifact import Artifact
from trimtab.domain.cluster import Cluster
from trimtab.errors import UsageError
from trimtab.experiments.scenario.build import RunInputs
from trimtab.learn.drawn_workloads import Floats, Workloads

POINTS: Final = 32  # quantiles of a distribution
STATISTICS_KEY: Final = "statistics"  # of an artifact's metadata
_WINDOW: Final = 5.0  # usual services
_SAMPLED: Final = 512  # requests of a workload, evenly from its begin to its end
_LEAST: Final = 1e-9  # of a ratio
_FAMILY: Final = range(2_000, 2_024)  # numbers of generated clusters that say what is usual

Statistics = Mapping[str, Sequence[float] | Floats]


class Part(NamedTuple):
    """One distribution of a workload."""

    name: str
    unit: str
    meaning: str


PARTS: Final = (
    Part("rates", "load", "arrivals in a window of five usual services, over what can be served in it"),
    Part("sizes", "ln of a ratio", "estimated service of a request on its best type, over the mean one"),
    Part("speeds", "ln of a ratio", "estimated service of a request on the type of a slot, over its best"),
    Part("nodes", "ln of a number", "nodes"),
    Part("slots", "ln of a number", "slots of a node"),
    Part("loads", "share of time", "seconds to load what a request needs, of these and its best service"),
    Part("memory", "share", "memory of a node, of that of everything that requests need; at most 1"),
)


@dataclass(frozen=True, slots=True)
class Similarity:
    """How far a target is from what weights were trained on.

    Attributes:
        distances: part → distance, in the unit of the part.
        usual: part → the mean distance of two generated clusters.
    """

    distances: Mapping[str, float]
    usual: Mapping[str, float]

    @property
    def relative(self) -> dict[str, float]:
        """Part → its distance over the usual one."""
        return {name: distance / self.usual[name] for name, distance in self.distances.items()}

    @property
    def total(self) -> float:
        """The mean of the relative distances; 1 = as far apart as two generated clusters are on average."""
        return math.fsum(self.relative.values()) / len(self.distances)

    def to_dict(self) -> dict[str, Any]:
        """The values for a file."""
        relative = self.relative
        parts = {name: {"distance": d, "relative": relative[name]} for name, d in self.distances.items()}
        return {"total": self.total, "parts": parts}


def statistics_of(workloads: Workloads, numbers: Iterable[int]) -> Statistics:
    """The distributions of workloads of these numbers together, each counting alike: part → [`POINTS`].

    Raises UsageError for a workload that they do not describe.
    """
    each = [_statistics(workloads.inputs(i)) for i in numbers]
    return {part.name: _quantiles(np.concatenate([one[part.name] for one in each])) for part in PARTS}


def told_statistics(statistics: Statistics) -> str:
    """As the metadata of an artifact has them."""
    return json.dumps({name: [float(f"{x:.5g}") for x in values] for name, values in statistics.items()})


def source_statistics(artifact: Artifact) -> Statistics:
    """Of what weights were trained on. Raises UsageError for weights that do not tell."""
    told = artifact.meta.get(STATISTICS_KEY)
    file, expected = artifact.path or artifact.name, "weights of `trimtab learn train` of this version"
    if told is None:
        raise UsageError(
            "do not tell what they were trained on", file=file, field=STATISTICS_KEY, expected=expected
        )
    try:
        found = json.loads(told)
        each = {part.name: [float(x) for x in found[part.name]] for part in PARTS}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("can't be read", file=file, field=STATISTICS_KEY, expected=expected) from error
    if not all(len(values) == POINTS and all(map(math.isfinite, values)) for values in each.values()):
        expected = f"{POINTS} finite numbers for each of {', '.join(part.name for part in PARTS)}"
        raise UsageError("are incomplete", file=file, field=STATISTICS_KEY, expected=expected)
    return each


def similarity(source: Statistics, target: Statistics) -> Similarity:
    """How far apart two kinds of workloads are; symmetric, and 0 for the same."""
    return Similarity(_distances(source, target), _usual())


def _distances(a: Statistics, b: Statistics) -> dict[str, float]:
    return {part.name: float(wasserstein_distance(a[part.name], b[part.name])) for part in PARTS}


@functools.cache
def _usual() -> Mapping[str, float]:
    """Part → the mean distance over all pairs of some generated clusters."""
    family = Workloads(requests=400)
    each = [statistics_of(family, [i]) for i in _FAMILY]
    pairs = [_distances(a, b) for a, b in itertools.combinations(each, 2)]
    return {part.name: math.fsum(pair[part.name] for pair in pairs) / len(pairs) for part in PARTS}


def _statistics(inputs: RunInputs) -> dict[str, Floats]:
    """Part → quantiles of one workload, [`POINTS`]. Raises UsageError for one that they do not describe."""
    cluster, all_work = inputs.cluster, inputs.requests.work
    work = all_work[np.isfinite(all_work["estimate_s"])]
    if not len(work) or not 0.0 < inputs.capacity_per_s < math.inf:
        expected = "a cluster that serves requests one by one, and requests that it can serve"
        raise UsageError("has nothing to compare", field="workload", expected=expected)
    work = work[np.arange(0, len(work), max(1, len(work) // _SAMPLED))]
    best_s = np.maximum(work["estimate_s"], _LEAST)
    usual_s = float(best_s.mean())
    of_type = np.bincount(cluster.type_idx, cluster.slots, cluster.n_types)
    there_s = cluster.fixed_s[work["class_idx"]] + cluster.unit_s[work["class_idx"]] * work["units"][:, None]
    needed_s = _loads_s(cluster, work)
    slots = np.broadcast_to(of_type, there_s.shape)
    serves = np.isfinite(there_s) & (slots > 0)
    slower = np.maximum(there_s / best_s[:, None], _LEAST)
    loads = needed_s / (needed_s + best_s[:, None])
    return {
        "rates": _quantiles(_window_loads(inputs, _WINDOW * usual_s)),
        "sizes": _logs(_quantiles(best_s / usual_s)),
        "speeds": _logs(_quantiles(slower[serves], slots[serves])),
        "nodes": _logs(np.full(POINTS, float(cluster.n_nodes))),
        "slots": _logs(_quantiles(cluster.slots.astype(np.float64))),
        "loads": _quantiles(loads[serves], slots[serves]),
        "memory": _quantiles(_memory_shares(cluster, work)),
    }


def _window_loads(inputs: RunInputs, window_s: float) -> Floats:
    """Arrivals of each whole window over what can be served in it, [windows]; of one window at least."""
    since_s = inputs.requests.work["arrival_s"] - inputs.requests.work["arrival_s"][0]
    windows = max(1, int(since_s[-1] / window_s))
    window_s = window_s if since_s[-1] >= window_s else max(float(since_s[-1]), window_s * _LEAST)
    counts = np.bincount((since_s[since_s < windows * window_s] / window_s).astype(np.int64))
    return counts / (window_s * inputs.capacity_per_s)


def _loads_s(cluster: Cluster, work: Any) -> Floats:
    """Seconds to load the model and the adapter of each request on each type, [requests, types]."""
    found = np.zeros((len(work), cluster.n_types))
    for item_idx in (work["model_idx"], work["adapter_idx"]):
        has = item_idx >= 0
        found[has] += cluster.load_s[item_idx[has]]
    return found


def _memory_shares(cluster: Cluster, work: Any) -> Floats:
    """Memory of each node over that of all that these requests need, at most 1, [nodes]."""
    needed = np.union1d(work["model_idx"], work["adapter_idx"])
    total_gib = float(cluster.item_gib[needed[needed >= 0]].sum())
    share = np.minimum(1.0, cluster.memory_gib / total_gib) if total_gib > 0.0 else np.ones(cluster.n_types)
    found: Floats = share[cluster.type_idx]
    return found


def _logs(values: Floats) -> Floats:
    return elementwise(math.log, values)


def _quantiles(values: Floats, weights: Floats | None = None) -> Floats:
    """`POINTS` values that split a weighted sample into equal parts, from its least to its greatest."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
    at = np.searchsorted(ends, (np.arange(POINTS) + 0.5) / POINTS * ends[-1])
    found: Floats = values[order][at]
    return found
