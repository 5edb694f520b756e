"""Policies that weigh resources: nodes set by hand, and against NumPy over whole clusters at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.domain.cluster import RESOURCES, Cluster
from trimtab.domain.policy import Policy
from trimtab.errors import UsageError
from trimtab.policies.load_aware.late_binding import LateBinding
from trimtab.policies.load_aware.load_aware import LoadAware
from trimtab.policies.resource_aware.best_fit import BestFit
from trimtab.policies.resource_aware.dominant_resource import DominantResource
from trimtab.policies.resource_aware.fragmentation_gradient import FragmentationGradient
from trimtab.policies.resource_aware.most_free import MostFree

FITTING = [BestFit(), MostFree(), DominantResource()]


def machines(capacity: list[list[float]], demand: list[float]) -> Cluster:
    """Nodes of four slots with these resources, for one class."""
    return replace(
        cluster(len(capacity), slots=4),
        resource_names=RESOURCES[: len(demand)],
        capacity=np.array(capacity),
        demand=np.array([demand]),
    )


def desk_of(c: Cluster, policy: Policy, used: list[list[float]]) -> Desk:
    desk = Desk(c, policy)
    desk.state.used[:] = used
    for j, row in enumerate(used):
        running = int(any(row))
        desk.set(j, running=running, in_flight=running)
    return desk


def test_late_binding_fills_nodes_that_begin_at_once() -> None:
    """Both have slots free, but a request of 6 does not fit beside 5 of 10."""
    desk = desk_of(machines([[10.0], [10.0]], [6.0]), LateBinding(), [[5.0], [0.0]])
    assert desk.decide() == [1]
    desk.set(1, in_flight=1)  # on its way, and taken to need as much
    assert desk.decide() == []
    desk.state.used[0] = 4.0
    assert desk.decide() == [0]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (BestFit(), [2, 0, 1]),  # left, in parts of (8, 8): 8/8; 6/8; 13/8 of nodes 0, 2, 1
        (MostFree(), [1, 0, 2]),
        (DominantResource(), [1, 2, 0]),  # shares (5/8, 3/8), (2/8, 1/8), (2/4, 2/4)
    ],
)
def test_three_ways_to_choose_among_nodes_with_room(policy: Policy, expected: list[int]) -> None:
    c = machines([[8, 8], [8, 8], [4, 4], [8, 8]], [2, 1])
    desk = desk_of(c, policy, [[3, 2], [0, 0], [0, 1], [7, 0]])  # the last has one core left
    assert desk.decide() == expected


def holding(c: Cluster, policy: Policy, held: list[tuple[int, ...]], model: int) -> Desk:
    """Idle nodes that hold these models, before a request for a model. Models take 6 GiB, nodes have 16."""
    desk = Desk(c, policy)
    for j, models in enumerate(held):
        desk.state.resident[j, list(models)] = 1
    desk.work["model_idx"] = model
    return desk


@pytest.mark.parametrize(
    ("policy", "model", "expected"),
    [  # of 16 GiB are in use with model 0: 12, 6, 6; with model 1: 12, 12, 6; with model 2: 18, 12, 6
        (BestFit(), 0, [0, 1, 2]),
        (BestFit(), 1, [0, 1, 2]),
        (BestFit(), 2, [1, 2, 0]),
        (MostFree(), 0, [1, 2, 0]),
        (MostFree(), 1, [2, 0, 1]),
        (MostFree(), 2, [2, 1, 0]),
        (DominantResource(), 0, [1, 2, 0]),
        (DominantResource(), 1, [2, 0, 1]),
        (DominantResource(), 2, [2, 1, 0]),
        (LoadAware(), 0, [1, 2, 0]),
        (LoadAware(), 1, [2, 0, 1]),
        (LoadAware(), 2, [2, 1, 0]),
    ],
)
def test_memory_of_models_is_a_resource(policy: Policy, model: int, expected: list[int]) -> None:
    c = cluster(3, slots=4, models=3)
    held = [(0, 1), (0,), ()]
    assert holding(c, policy, held, model).decide() == expected


@pytest.mark.parametrize("policy", [BestFit(), MostFree(), DominantResource(), LoadAware()])
def test_memory_of_models_is_counted_once_beside_what_is_reported(policy: Policy) -> None:
    """Node 0 reports 10 of 16 GiB in use, its models among them; node 1 holds models of 12 and reports 3."""
    c = replace(
        cluster(2, slots=4, models=3),
        resource_names=("gpu_gib",),
        capacity=np.array([[16.0], [16.0]]),
        demand=np.array([[1.0]]),
    )
    desk = holding(c, policy, [(0,), (0, 1)], 0)
    desk.state.used[:, 0] = [10.0, 3.0]
    least_used_first = [0, 1]  # 11 and 13
    assert desk.decide() == (least_used_first[::-1] if isinstance(policy, BestFit) else least_used_first)
    desk.set(0)
    desk.state.used[0, 0] = 13.0  # 14 and 13
    assert desk.decide() == (least_used_first if isinstance(policy, BestFit) else least_used_first[::-1])


@pytest.mark.parametrize("policy", [BestFit(), MostFree(), DominantResource(), LoadAware()])
def test_memory_is_counted_anew_where_a_node_has_changed(policy: Policy) -> None:
    desk = holding(cluster(2, slots=4, models=3), policy, [(0,), (0,)], 0)
    first = desk.decide()
    assert first == [0, 1]
    is_packing = isinstance(policy, BestFit)
    changed = 1 if is_packing else 0  # packed where more is held, spread where less is
    desk.state.resident[changed, 2] = 1
    desk.set(changed)
    assert desk.decide() == [1, 0]


@pytest.mark.parametrize("policy", [*FITTING, FragmentationGradient()])
def test_where_it_fits_nowhere_it_is_held(policy: Policy) -> None:
    c = machines([[4, 4], [2, 8]], [3, 1])
    assert desk_of(c, policy, [[2, 0], [0, 0]]).decide() == []
    assert desk_of(c, policy, [[1, 0], [0, 0]]).decide() == [0]


@pytest.mark.parametrize("policy", [*FITTING, FragmentationGradient()])
def test_a_slot_is_needed_too(policy: Policy) -> None:
    desk = desk_of(machines([[9], [9]], [1]), policy, [[0], [0]])
    desk.set(0, running=4, in_flight=4)
    assert desk.decide() == [1]


@pytest.mark.parametrize("policy", [*FITTING, FragmentationGradient()])
def test_what_is_on_its_way_counts_as_such_a_request(policy: Policy) -> None:
    desk = desk_of(machines([[4], [4]], [2]), policy, [[0], [0]])
    desk.set(0, running=0, in_flight=2)
    assert desk.decide() == [1]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(BestFit(), 2), (MostFree(), 1), (DominantResource(), 0), (FragmentationGradient(), 2)],
)
def test_without_resources_slots_are_the_only_one(policy: Policy, expected: int) -> None:
    """Slots 2, 6, 4 with 0, 2, 3 in use: left after it 1, 3, 0; shares 1/2, 1/2, 1; ties by node."""
    desk = Desk(cluster(3, slots=[2, 6, 4]), policy)
    for j, running in enumerate([0, 2, 3]):
        desk.set(j, running=running, in_flight=running)
    assert desk.decide()[0] == expected


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30))
def test_scores_against_whole_arrays(seed: int) -> None:
    pick = np.random.default_rng(seed)
    n, many = int(pick.integers(1, 8)), int(pick.integers(1, 6))
    capacity = pick.integers(1, 9, (n, many)) * 1.0
    used = np.floor(capacity * pick.random((n, many)))
    demand = pick.integers(0, 4, many) * 1.0
    c = machines(capacity.tolist(), demand.tolist())
    left = capacity - used - demand
    fits = (left >= 0).all(axis=1)
    packed = (left / capacity.max(axis=0)).sum(axis=1)
    for policy, score in zip(
        FITTING, (packed, -packed, ((capacity - left) / capacity).max(axis=1)), strict=True
    ):
        desk = Desk(c, policy)
        desk.state.used[:] = used
        chosen = desk.decide()
        assert sorted(chosen) == np.flatnonzero(fits).tolist()
        np.testing.assert_allclose(score[chosen], np.sort(score[fits]), rtol=1e-12, atol=1e-12)


def test_load_aware_adds_up_queue_wait_and_shares() -> None:
    """One unit of work a second; node 0 has no queue but its cores in use, node 1 the other way round."""
    c = machines([[4, 10], [4, 10]], [1, 1])
    c = replace(c, resource_names=("cpu_cores", "gpu_milli"))
    used, busy = [[3.0, 0.0], [0.0, 0.0]], {"in_flight": 2, "running": 2}

    def first(policy: Policy) -> int:
        desk = Desk(c, policy)
        desk.state.used[:] = used
        desk.set(1, **busy)
        return desk.decide()[0]

    # node 0: queue 1/4, cores 4/4, gpu 1/10; node 1: queue 3/4, cores 1/4, gpu 1/10
    only_queue = LoadAware(backlog=0, cpu=0, gpu=0)
    assert first(only_queue) == 0
    assert first(replace(only_queue, cpu=0.6)) == 0
    assert first(replace(only_queue, cpu=0.7)) == 1
    assert first(replace(only_queue, cpu=0.7, queue=1.1)) == 0


def test_load_aware_counts_the_wait_in_services_of_the_request() -> None:
    c = cluster(2, slots=2)
    desk = Desk(c, LoadAware(queue=0))
    for j, backlog_s in enumerate((9.0, 8.0)):
        desk.set(j, running=2, in_flight=3, backlog_s=backlog_s, outstanding_s=backlog_s)
    assert desk.decide() == [1, 0]


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"load-aware\.gpu"):
        LoadAware(gpu=-1.0)
    with pytest.raises(UsageError, match=r"load-aware\.queue"):
        LoadAware(queue=float("nan"))
