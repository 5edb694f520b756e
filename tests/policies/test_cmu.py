"""The cμ rule and its generalisation, against all permutations and against the index computed plainly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, run
from support.by_hand import asked
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests
from trimtab.errors import UsageError
from trimtab.policies import find

SIZE_S = np.array([1.0, 4.0, 2.0])  # of a request of each class


def one_server(cost: list[float]) -> Cluster:
    """One slot and no queue at the node, so the central queue decides; a second a unit."""
    c = cluster(1, classes=3, queue_max=0)
    return replace(c, unit_s=np.ones((3, 1)), holding_cost=np.array(cost))


def of_classes(c: Cluster, arrival_s: list[float], class_idx: list[int]) -> Requests:
    return asked(c, arrival_s, SIZE_S[class_idx], class_idx=class_idx)


def started(c: Cluster, r: Requests, power: float = 1.0, options: Options | None = None) -> np.ndarray:
    spec = find(f"least-connections+cmu(power={power})")
    return run(c, r, options or Options(), *spec).requests["start_s"]


@pytest.mark.parametrize("seed", range(5))
def test_no_permutation_of_a_backlog_costs_less(seed: int) -> None:
    """All wait from the start: the cμ rule then has the least total holding cost of all orders."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0.2, 5.0, 3)
    c, classes = one_server(cost.tolist()), rng.integers(0, 3, 6)
    r = of_classes(c, [0.0] * 7, [0, *classes.tolist()])  # the first starts at once, the others wait for it
    end_s = (started(c, r) + r.truth["units"])[1:]

    def cost_of(order: tuple[int, ...]) -> float:
        ends = SIZE_S[0] + np.cumsum(SIZE_S[classes[list(order)]])
        return float(cost[classes[list(order)]] @ ends)

    least = min(cost_of(order) for order in itertools.permutations(range(6)))
    assert float(cost[classes] @ end_s) == pytest.approx(least)


def by_index(r: Requests, cost: np.ndarray, power: float) -> np.ndarray:
    """Starts at one server that takes at each end the oldest request of the class of the highest index."""
    arrival_s, c = r.work["arrival_s"], r.work["class_idx"]
    start_s, now_s, waiting = np.full(len(r), np.nan), 0.0, list(range(len(r)))
    while waiting:
        there = [i for i in waiting if arrival_s[i] < now_s] or [waiting[0]]
        heads = {int(c[i]): i for i in reversed(there)}
        now_s = max(now_s, arrival_s[there[0]])
        index = {k: cost[k] * (now_s - arrival_s[i]) ** (power - 1) / SIZE_S[k] for k, i in heads.items()}
        i = heads[max(index, key=lambda k: (index[k], -heads[k]))]
        waiting.remove(i)
        start_s[i] = now_s
        now_s += SIZE_S[c[i]]
    return start_s


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("lane_per_class", [False, True])
def test_the_class_of_the_highest_index_is_served(power: float, lane_per_class: bool) -> None:
    rng, cost = np.random.default_rng(7), [1.0, 1.5, 1.0]
    c = one_server(cost)
    r = of_classes(c, np.cumsum(rng.exponential(1.5, 120)).tolist(), rng.integers(0, 3, 120).tolist())
    expected = by_index(r, np.array(cost), power)
    assert (expected > r.work["arrival_s"]).sum() > 60
    options = Options(lane_per_class=lane_per_class)
    np.testing.assert_allclose(started(c, r, power, options), expected, atol=1e-9)


def test_the_rule_starves_a_cheap_class_and_the_generalised_one_does_not() -> None:
    """One long request of class 1 beside a little more of class 0 than the server can take.

    At t the oldest of class 0 has waited 0.05 t; a quarter of the age of the long one grows faster.
    """
    c = one_server([1.0, 1.0, 1.0])
    r = of_classes(c, np.arange(0.0, 114.0, 0.95).tolist(), [1 if i == 60 else 0 for i in range(120)])
    wait_s = {power: (started(c, r, power) - r.work["arrival_s"])[60] for power in (1.0, 2.0)}
    assert wait_s[1.0] > 50.0
    assert wait_s[2.0] < 20.0


def test_the_mean_of_a_class_is_learned_from_its_requests() -> None:
    """Classes of equal cost: 0 is short on average with one long first request, 1 is between."""
    c = one_server([1.0, 1.0, 1.0])
    classes = [2, 0, 0, 0, 0, 1, 1]
    r = asked(c, [0.0] * 7, [1.0, 9.0, 1.0, 1.0, 1.0, 5.0, 5.0], class_idx=classes)
    # heads 0 (9 s) and 1 (5 s): 1 first, twice; then those of 0 by arrival
    assert np.argsort(started(c, r)).tolist() == [0, 5, 6, 1, 2, 3, 4]


def test_a_power_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cmu\.power.*a number from 1 on"):
        find("random+cmu(power=0.5)")
