"""What leaves a node's memory, what a plan places there, and hit rates against the best possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import MODEL_GIB, cluster, everything_on, run
from support.by_hand import asked, count, fault_table, finishes, once, played
from support.mini_policies import SECOND, Emptiest, Scripted
from support.plain_caches import PlainLru
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Eviction, Options
from trimtab.domain.policy import Decider
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import Driver
from trimtab.experiments.bounds.caching import belady_hits

GDS, PINNED = Options(eviction=Eviction.GREEDY_DUAL_SIZE), Options(eviction=Eviction.PLAN_PINNED)


class Placing(Scripted):
    """Places these items on node 0, from the start."""

    plan_period_s = 1e9

    def __init__(self, *items: int) -> None:
        self._items = list(items)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        placement = np.zeros(view.resident.shape, "u1")
        placement[0, self._items] = 1
        return empty_plan()._replace(placement=placement)


def nodes(n: int = 1, *, slots: int = 1, room_for: int = 2, models: int = 3) -> Cluster:
    return cluster(n, slots=slots, models=models, memory_gib=MODEL_GIB * room_for, load_s=2.0)


# --- GreedyDual-Size


def test_greedy_dual_size_keeps_what_is_dear_to_load_until_it_has_aged() -> None:
    c = replace(nodes(), load_s=np.array([[8.0], [2.0], [2.0]]))
    # Credits in load seconds (all are 6 GiB): 0 has 8. What is used after an eviction gains what went.
    models = [0, 1, 2, 1, 2, 1, 2, 0]
    d = played(c, asked(c, np.arange(8) * 100.0, 1.0, model_idx=models), GDS)
    # 2 evicts 1 (2), 1 evicts 2 (4), 2 evicts 1 (6); 1 ties 2 with 0 (8), which was used longer ago, and goes
    taken_s = np.array(finishes(d)) - np.arange(8) * 100.0
    assert taken_s.tolist() == [9.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0, 9.0]


def test_with_equal_cost_per_gib_greedy_dual_size_is_lru() -> None:
    c, r, options = everything_on(n=400)  # loads in proportion to size
    lru = run(c, r, options, Emptiest()).requests
    gds = run(c, r, replace(options, eviction=Eviction.GREEDY_DUAL_SIZE), Emptiest()).requests
    assert lru["finish_s"].tolist() == pytest.approx(gds["finish_s"].tolist(), abs=0.0, nan_ok=True)


# --- placement


def test_what_the_plan_places_is_loaded_before_it_is_asked_for() -> None:
    c = nodes()
    d = played(c, asked(c, [10.0], 1.0, model_idx=1), None, Placing(1))
    assert finishes(d) == [11.0]
    assert count(d, "model_loads") == 1


def test_placed_items_load_one_after_the_other_and_hold_no_slot() -> None:
    c = nodes(models=3, room_for=3)
    r = asked(c, [0.5, 3.0], 1.0, model_idx=[-1, 1])
    assert finishes(played(c, r, None, Placing(0, 1))) == [1.5, 5.0]  # the second is ready at 4 s


def test_no_more_is_placed_than_fits() -> None:
    c = nodes(room_for=2)
    d = Driver(c, asked(c, [50.0], 1.0), Options(), Decider.of(Placing(0, 1, 2)), mode="interpreted")
    plan = d.make_plan()
    assert plan is not None
    d.adopt(plan, 0.0)
    d.advance(40.0)
    assert d.state.resident.tolist() == [[1, 1, 0]]
    assert d.state.hidden["placed_gib"].tolist() == [2 * MODEL_GIB]


def test_a_repaired_node_loads_what_is_placed_there_again() -> None:
    c = nodes()
    options = Options(faults=fault_table(once(0, 5.0, 6.0)))
    d = played(c, asked(c, [20.0], 1.0, model_idx=0), options, Placing(0))
    assert finishes(d) == [21.0]
    assert count(d, "model_loads") == 2


def test_what_was_crowded_out_stays_out_until_the_next_plan() -> None:
    c = nodes(slots=2, room_for=1)
    d = played(c, asked(c, [10.0, 30.0], [5.0, 1.0], model_idx=[1, 0]), None, Placing(0))
    assert finishes(d) == [17.0, 33.0]


def test_pinned_items_are_not_crowded_out_and_the_next_candidate_gets_the_request() -> None:
    c = nodes(2, room_for=1)
    first_then_second = 0 + SECOND * (1 + 1)
    r = asked(c, [10.0, 20.0], 1.0, model_idx=[1, 0], key=[first_then_second, 0])
    pinned, soft = (played(c, r, options, Placing(0)) for options in (PINNED, None))
    assert pinned.state.requests["node_idx"].tolist() == [1, 0]
    assert finishes(pinned) == [13.0, 21.0]
    assert soft.state.requests["node_idx"].tolist() == [0, 0]
    assert finishes(soft) == [13.0, 23.0]


def test_what_fits_beside_the_pinned_is_taken() -> None:
    c = nodes(room_for=2)
    d = played(c, asked(c, [10.0, 20.0, 30.0], 1.0, model_idx=[1, 2, 0]), PINNED, Placing(0))
    assert finishes(d) == [13.0, 23.0, 31.0]
    assert d.state.resident.tolist() == [[1, 0, 1]]


# --- hit rates


def _zipf(n: int, models: int, exponent: float) -> np.ndarray:
    weight = np.arange(1, models + 1) ** -exponent
    return np.random.default_rng(7).choice(models, n, p=weight / weight.sum())


def _misses(models: np.ndarray, c: Cluster, eviction: Eviction) -> tuple[int, float]:
    """Loads, and seconds of loading, of requests that come one at a time."""
    r = asked(c, np.arange(len(models)) * 1000.0, 1.0, model_idx=models)
    d = played(c, r, Options(eviction=eviction))
    waited_s = d.state.requests["service_start_s"] - d.state.requests["start_s"]
    return count(d, "model_loads"), float(waited_s.sum())


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("room_for", [4, 12])
def test_hits_are_those_of_lru_and_no_more_than_belady(exponent: float, room_for: int) -> None:
    models = _zipf(1500, 40, exponent)
    c = nodes(room_for=room_for, models=40)
    loads, _ = _misses(models, c, Eviction.LRU)
    lru = PlainLru(room_for)
    hits = sum(lru.use(int(m)) for m in models)
    best = belady_hits(models.tolist(), room_for)
    assert len(models) - loads == hits
    assert 0.3 * best < hits < best


def test_greedy_dual_size_spends_less_on_loads_than_lru_where_they_cost_unequally() -> None:
    models = _zipf(1500, 40, 0.8)
    cost_s = np.random.default_rng(3).choice([2.0, 40.0], (40, 1))
    c = replace(nodes(room_for=12, models=40), load_s=cost_s)
    (_, lru_s), (_, gds_s) = (_misses(models, c, e) for e in (Eviction.LRU, Eviction.GREEDY_DUAL_SIZE))
    assert gds_s < 0.9 * lru_s
