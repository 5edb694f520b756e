"""Names of nodes carry no meaning: relabelling the nodes relabels the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from support.builders import cluster, requests, run
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.policies import find, names

SCORE_BASED = [
    "least-expected-wait",
    "least-expected-completion",
    "bounded-hash",
    "load-aware",
    "locality",
    "prefix-affinity",
]  # ties are all but impossible
TIES_BY_NODE = [  # their whole numbers tie all the time, and then the lower index wins
    "least-connections",
    "best-fit",
    "most-free",
    "dominant-resource",
    "fragmentation-gradient",
    "lwl",  # idle nodes have equally little work left
    "hyper-scalable",
    "kv-cost",  # without engines these are requests in flight
]


def relabelled(c: Cluster, permutation: np.ndarray) -> Cluster:
    """Node i of the new cluster is node permutation[i] of the old one."""
    moved = ("type_idx", "slots", "queue_max", "zone_idx", "weight", "nic_gib_per_s")
    arrays = {name: getattr(c, name)[permutation] for name in moved}
    return replace(c, node_names=tuple(c.node_names[i] for i in permutation), **arrays)


@pytest.mark.parametrize("name", SCORE_BASED)
def test_relabelling_relabels_every_decision(name: str) -> None:
    n = 9
    speeds = [1.0 + np.sqrt(j) / 3 for j in range(n)]
    c = cluster(n, types=n, speeds=speeds, slots=[1 + j % 2 for j in range(n)], classes=2, models=3)
    work = requests(c, 800, load=0.8, noise=True)
    permutation = np.random.default_rng(6).permutation(n)
    before = run(c, work, Options(), *find(name)).requests
    after = run(relabelled(c, permutation), work, Options(), *find(name)).requests
    np.testing.assert_array_equal(permutation[after["node_idx"]], before["node_idx"])
    np.testing.assert_array_equal(after["finish_s"], before["finish_s"])


def completion_mean_s(c: Cluster, name: str, seed: int) -> float:
    work = requests(c, 3000, load=0.7, seed=seed)
    state = run(c, work, Options(), *find(name), seed=seed, compiled=True)
    return float((state.requests["finish_s"] - work.work["arrival_s"]).mean())


@pytest.mark.parametrize("name", [n for n in names("dispatch") if n not in SCORE_BASED + TIES_BY_NODE])
def test_relabelling_changes_nothing_on_average(name: str) -> None:
    """Slow nodes first or fast nodes first: the same work, the same seeds, the same mean."""
    c = cluster(12, types=2, slots=2, speeds=[1.0, 1.6])
    sorted_by_type = np.argsort(c.type_idx, kind="stable")
    one, other = relabelled(c, sorted_by_type), relabelled(c, sorted_by_type[::-1])
    pairs = [(completion_mean_s(one, name, seed), completion_mean_s(other, name, seed)) for seed in range(12)]
    first, second = np.array(pairs).T
    if not np.allclose(first, second, rtol=1e-12, atol=0.0):  # sums in another order differ by rounding
        assert ttest_rel(first, second).pvalue > 0.01
    assert abs(first.mean() / second.mean() - 1) < 0.05
