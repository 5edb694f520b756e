"""Models on nodes: loading, sharing, eviction. A model is 6 GiB, loads in 2 s; an adapter .5 GiB, 1/6 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, count, finishes, played, starts
from support.mini_policies import Scripted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import Driver


def one(slots: int = 1, memory_gib: float = 12.0, models: int = 3, adapters: int = 0) -> Cluster:
    return cluster(1, slots=slots, models=models, adapters=adapters, memory_gib=memory_gib, load_s=2.0)


class Keeping(Scripted):
    """Keeps item 0 on node 0."""

    plan_period_s = 1e9

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        placement = np.zeros(view.resident.shape, "u1")
        placement[0, 0] = 1
        return empty_plan()._replace(placement=placement)


def test_a_load_happens_at_service_start_and_occupies_the_slot() -> None:
    c = one()
    d = played(c, asked(c, [0.0, 0.5], 1.0, model_idx=0))
    assert starts(d) == [0.0, 3.0]
    assert d.state.requests["service_start_s"].tolist() == [2.0, 3.0]
    assert finishes(d) == [3.0, 4.0]
    assert (count(d, "model_loads"), count(d, "evictions")) == (1, 0)
    assert d.state.hidden["allocated_slot_s"].tolist() == [4.0]
    assert d.state.hidden["busy_slot_s"].tolist() == [2.0]


def test_one_load_per_model_and_node_and_the_others_wait_for_it() -> None:
    c = one(slots=3)
    d = played(c, asked(c, [0.0, 0.5, 1.0], 1.0, model_idx=0))
    assert starts(d) == [0.0, 0.5, 1.0]
    assert finishes(d) == [3.0, 3.0, 3.0]
    assert count(d, "model_loads") == 1


def test_the_adapter_is_loaded_after_its_model() -> None:
    c = one(slots=2, adapters=2)
    d = played(c, asked(c, [0.0, 0.5], 1.0, model_idx=0, adapter_idx=[3, 4]))
    assert d.state.requests["service_start_s"].tolist() == pytest.approx([2.0 + 1 / 6, 2.0 + 1 / 6])
    assert (count(d, "model_loads"), count(d, "adapter_loads")) == (1, 2)


def test_an_adapter_on_a_resident_model_loads_alone() -> None:
    c = one(adapters=1)
    d = played(c, asked(c, [0.0, 10.0], 1.0, model_idx=0, adapter_idx=[-1, 3]))
    assert d.state.requests["service_start_s"].tolist() == pytest.approx([2.0, 10.0 + 1 / 6])


def test_the_least_recently_used_goes() -> None:
    c = one()  # two of three models fit
    d = played(c, asked(c, [0.0, 10.0, 20.0, 30.0, 40.0], 1.0, model_idx=[0, 1, 0, 2, 0]))
    assert finishes(d) == [3.0, 13.0, 21.0, 33.0, 41.0]  # 2 evicts 1, not 0, which was used since
    assert (count(d, "model_loads"), count(d, "evictions")) == (3, 1)
    assert d.state.resident.tolist() == [[1, 0, 1]]


def test_use_lasts_until_the_request_ends() -> None:
    c = one(slots=2)
    d = played(c, asked(c, [0.0, 5.0, 30.0], [20.0, 1.0, 1.0], model_idx=[0, 1, 2]))
    assert d.state.resident.tolist() == [[1, 0, 1]]  # 0 was begun first, but used until 22 s; 1 until 8 s


def test_a_model_in_use_is_not_evicted_and_the_queue_waits() -> None:
    c = one(slots=2, memory_gib=6.0)
    d = played(c, asked(c, [0.0, 0.5, 1.0], 1.0, model_idx=[0, 1, 0]))
    assert starts(d) == [0.0, 3.0, 6.0]  # first come, first served: 2 waits behind 1
    assert finishes(d) == [3.0, 6.0, 9.0]
    assert (count(d, "model_loads"), count(d, "evictions")) == (3, 2)


def test_what_the_plan_keeps_stays() -> None:
    c = one()
    r = asked(c, [0.0, 10.0, 20.0, 30.0], 1.0, model_idx=[0, 1, 2, 0])
    d = played(c, r, Options(), Keeping())
    assert finishes(d) == [3.0, 13.0, 23.0, 31.0]  # without the plan 0 would have gone at 20 s
    assert d.state.resident.tolist() == [[1, 0, 1]]


def test_what_the_plan_keeps_goes_when_an_idle_node_could_serve_nothing_else() -> None:
    c = one(memory_gib=6.0)
    d = played(c, asked(c, [0.0, 10.0], 1.0, model_idx=[0, 1]), Options(), Keeping())
    assert finishes(d) == [3.0, 13.0]


def test_the_memory_integral() -> None:
    c = one(adapters=1)
    d = played(c, asked(c, [0.0, 10.0, 20.0], 1.0, model_idx=[0, 0, 1], adapter_idx=[-1, 3, -1]))
    node = d.state.hidden[0]
    assert node["memory_used_gib"] == 6.5  # model and adapter were last used together; the lower index goes
    assert node["memory_gib_s"] == 6.0 * 10 + 6.5 * 10
    assert node["memory_since_s"] == 20.0


def test_cancelled_loading_leaves_the_model_for_others() -> None:
    c = one()
    r = asked(c, [0.0, 1.0], 1.0, model_idx=0, deadline_s=[1.0, np.inf])
    d = played(c, r, Options(cancel=Cancel.ALWAYS))
    assert finishes(d)[1] == 3.0  # the load begun at 0 goes on
    assert count(d, "model_loads") == 1


def test_a_model_and_adapter_that_do_not_fit_together_are_refused() -> None:
    c = one(memory_gib=6.2, adapters=1)
    d = played(c, asked(c, [0.0], 1.0, model_idx=0, adapter_idx=3))
    assert count(d, "in_system") == 1


def test_the_view_shows_what_is_resident_or_loading() -> None:
    c = one()
    driver = Driver(
        c, asked(c, [0.0], 1.0, model_idx=1), Options(), Decider.of(Scripted()), mode="interpreted"
    )
    driver.advance(1.0)
    assert driver.view().resident.tolist() == [[0, 1, 0]]
