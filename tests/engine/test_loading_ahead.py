"""Loading ahead, by hand. A model is 6 GiB and loads in 2 s; arrivals look at nodes 0, 1, … in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.by_hand import asked, count, fault_table, once, played
from support.mini_policies import Scripted
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.engine.driver import Driver
from trimtab.policies import find


class Ahead(Scripted):
    """Sends each request where its key says, on nodes that load ahead."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOADING_AHEAD})


def nodes(n: int, *, slots: int = 1, memory_gib: float = 12.0, **given: Any) -> Cluster:
    return cluster(n, slots=slots, models=3, memory_gib=memory_gib, load_s=2.0, **given)


def ahead(c: Cluster, arrival_s: Sequence[float], units: Any = 1.0, **columns: Any) -> Driver:
    return played(c, asked(c, arrival_s, units, **columns), policy=Ahead())


def service_starts(driver: Driver) -> list[float]:
    return driver.state.requests["service_start_s"].tolist()


def test_each_arrival_loads_its_model_at_the_node_whose_turn_it_is() -> None:
    d = ahead(nodes(3), [0.0, 0.5, 1.0, 1.5, 10.0], key=[0, 0, 0, 1, 2], model_idx=0)
    # Node 0 loads for the first request, node 1 from .5 s on, node 2 from 1 s on.
    assert service_starts(d) == [2.0, 3.0, 4.0, 2.5, 10.0]
    assert count(d, "model_loads") == 3


def test_without_the_need_nodes_wait_for_their_first_request() -> None:
    c = nodes(3)
    d = played(c, asked(c, [0.0, 0.5, 1.0, 1.5, 10.0], key=[0, 0, 0, 1, 2], model_idx=0))
    assert service_starts(d) == [2.0, 3.0, 4.0, 3.5, 12.0]


def test_nothing_is_evicted_for_it() -> None:
    d = ahead(nodes(1, memory_gib=6.0), [0.0, 10.0, 20.0], key=[0, -1, 0], model_idx=[0, 1, 0])
    assert d.state.resident.tolist() == [[1, 0, 0]]
    assert count(d, "evictions") == 0
    assert service_starts(d)[2] == 20.0


def test_a_node_without_a_free_slot_loads_nothing() -> None:
    d = ahead(nodes(1), [0.0, 1.0], [20.0, 1.0], key=[0, -1], model_idx=[0, 1])
    assert d.state.resident.tolist() == [[1, 0, 0]]


def test_a_node_loads_one_model_at_a_time() -> None:
    d = ahead(nodes(1, slots=2), [0.0, 1.0, 2.0], key=-1, model_idx=[0, 1, 2])
    assert d.state.resident.tolist() == [[1, 0, 1]]  # at 1 s it loads; at 2 s it has loaded


def test_until_its_first_use_it_is_the_first_to_go() -> None:
    d = ahead(nodes(1), [0.0, 10.0, 20.0], key=[0, -1, 0], model_idx=[0, 1, 2])
    assert d.state.resident.tolist() == [[1, 0, 1]]  # 2 evicts 1, which came after the use of 0


def test_after_its_first_use_it_is_an_item_like_others() -> None:
    d = ahead(nodes(1), [0.0, 10.0, 15.0, 20.0], key=[0, -1, 0, 0], model_idx=[0, 1, 1, 2])
    assert d.state.resident.tolist() == [[0, 1, 1]]


def test_a_node_that_does_not_serve_the_class_loads_nothing() -> None:
    d = ahead(nodes(2, types=2, unserved=[(0, 0)]), [0.0, 5.0], key=-1, model_idx=0)
    assert d.state.resident.tolist() == [[0, 0, 0], [1, 0, 0]]


def test_a_node_that_is_down_loads_nothing_and_is_filled_again_when_it_is_back() -> None:
    c = nodes(2)
    options = Options(faults=fault_table(once(0, 4.0, 20.0)))
    d = played(c, asked(c, [0.0, 1.0, 5.0, 21.0, 22.0], key=1, model_idx=0), options, Ahead())
    assert count(d, "model_loads") == 3  # node 0, node 1, and node 0 again: its turn is at 22 s
    assert d.state.resident[:, 0].tolist() == [1, 1]
    assert d.state.items["ready_s"][0, 0] == 24.0


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_never_exceeded(seed: int) -> None:
    c = cluster(5, slots=2, classes=2, models=4, adapters=3, memory_gib=13.0, types=2)
    state = run(c, requests(c, 300, seed=seed), Options(), find("late-binding").dispatch)
    used_gib = state.resident @ c.item_gib
    assert (used_gib <= 13.0 + 1e-9).all()
    assert np.allclose(used_gib, state.hidden["memory_used_gib"])


def test_a_burst_after_a_quiet_time_finds_the_model_everywhere() -> None:
    c = nodes(8)
    quiet, burst = 20.0 * np.arange(8), np.full(8, 200.0)
    r = asked(c, [*quiet, *burst], model_idx=0)
    state = run(c, r, Options(), find("late-binding").dispatch)
    assert state.requests["finish_s"][8:].tolist() == [201.0] * 8
