"""Outliers: who is ejected, for how long, and when not."""

import asyncio

import pytest

from support.gateway.node_world import Traffic, VirtualLoop, fleet_of, watched
from trimtab.gateway.model import Cause, Health, Tenant
from trimtab.gateway.nodes.health_manager import HealthManager, HealthManagerOptions
from trimtab.gateway.nodes.outlier_ejection import EjectionOptions

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)

FAULTS = [
    Cause.SERVER_ERROR,
    Cause.RESET,
    Cause.BAD_RESPONSE,
    Cause.FIRST_BYTE,
    Cause.IDLE,
    Cause.TOTAL,
]


@pytest.mark.parametrize("cause", FAULTS)
async def test_failures_in_a_row_eject_for_growing_times(cause: Cause) -> None:
    _, fleet, traffic = watched(2)
    node = fleet.nodes[0]
    for _ in range(4):
        traffic.bad(node, cause)
    traffic.good(node)
    for _ in range(5):
        assert fleet.gets_work(node)
        traffic.bad(node, cause)
    assert node.health is Health.EJECTED
    for base_ejection_s in (5.0, 10.0, 15.0):
        await asyncio.sleep(base_ejection_s - 0.1)
        assert not fleet.gets_work(node)
        await asyncio.sleep(0.2)
        assert fleet.gets_work(node)
        traffic.bad(node, cause)  # the trial fails


async def test_at_most_half_is_ejected_and_the_rest_is_reported() -> None:
    _, fleet, traffic = watched(5)
    for node in fleet.nodes:
        for k in range(5):
            traffic.bad(node, Cause.SERVER_ERROR, Tenant(f"t{node.idx}{k}", 0))
    assert [node.health for node in fleet.nodes].count(Health.EJECTED) == 2
    assert len(fleet.problems) == 3
    assert all("too many" in problem for problem in fleet.problems.values())


async def test_the_only_node_is_never_ejected() -> None:
    manager = HealthManager(fleet_of(1))
    traffic = Traffic(manager.observer)
    for _ in range(50):
        traffic.bad(manager.fleet.nodes[0], Cause.SERVER_ERROR)
    assert manager.fleet.gets_work(manager.fleet.nodes[0])


async def test_a_success_rate_far_below_the_others_ejects() -> None:
    manager, fleet, traffic = watched(4)
    for turn in range(100):
        for node in fleet.nodes:
            every = 3 if node.idx == 2 else 50
            if turn % every == 0:
                traffic.bad(node, Cause.SERVER_ERROR)
            else:
                traffic.good(node)
    manager.ejection.compare()
    assert [node.health is Health.EJECTED for node in fleet.nodes] == [False, False, True, False]
    assert "success rate 0.67" in fleet.nodes[2].reason  # 0.66, less what the tenant fails elsewhere


async def test_latency_far_above_its_prediction_ejects_and_a_slow_type_of_node_is_none() -> None:
    manager, fleet, traffic = watched(4)
    predicted_s, taken_s = (1.0, 1.0, 10.0, 1.0), (1.0, 1.1, 10.0, 4.0)  # node 2 is slow and known to be
    for node in fleet.nodes:
        begun = [traffic.begin(node, predicted_s[node.idx])[0] for _ in range(30)]
        await asyncio.sleep(taken_s[node.idx])
        for exchange in begun:
            traffic.finish(exchange)
    manager.ejection.compare()
    assert [node.health is Health.EJECTED for node in fleet.nodes] == [False, False, False, True]


async def test_good_periods_shorten_the_next_ejection_and_few_attempts_say_nothing() -> None:
    manager, fleet, traffic = watched(3, HealthManagerOptions(ejection=EjectionOptions(period_s=1)))
    manager.ejection.start()
    node = fleet.nodes[0]
    for _ in range(5):
        traffic.bad(node, Cause.SERVER_ERROR)
    await asyncio.sleep(5.1)
    for _ in range(4):  # good periods
        traffic.good(node)
        await asyncio.sleep(1.2)
    for _ in range(5):
        traffic.bad(node, Cause.SERVER_ERROR)
    assert "ejected for 5 s" in node.reason
    await manager.ejection.close()


async def test_one_tenants_bad_requests_eject_no_node_for_the_others() -> None:
    manager, fleet, traffic = watched(3)
    poison, victim = Tenant("poison", 0), Tenant("victim", 1)
    for turn in range(300):  # each is tried on two nodes, as the data plane does
        traffic.bad(fleet.nodes[turn % 3], Cause.RESET, poison)
        traffic.bad(fleet.nodes[(turn + 1) % 3], Cause.RESET, poison)
        if turn % 20 == 0:
            traffic.good(fleet.nodes[turn % 3], tenant=victim)
            manager.ejection.compare()
    assert all(fleet.gets_work(node) for node in fleet.nodes)


async def test_a_tenant_with_bad_requests_and_affinity_to_one_node_does_not_eject_it() -> None:
    """Its failures lie mostly at one node; that they happen at the second try too shows who is to blame."""
    manager, fleet, traffic = watched(4)
    poison, victim = Tenant("poison", 0), Tenant("victim", 1)
    for turn in range(300):
        traffic.bad(fleet.nodes[0], Cause.SERVER_ERROR, poison)
        traffic.bad(fleet.nodes[1 + turn % 3], Cause.SERVER_ERROR, poison)
        for node in fleet.nodes:
            traffic.good(node, tenant=victim)
        if turn % 50 == 49:
            manager.ejection.compare()
    assert all(fleet.gets_work(node) for node in fleet.nodes)


async def test_a_node_that_fails_for_a_tenant_which_others_serve_is_ejected() -> None:
    _, fleet, traffic = watched(3)
    only = Tenant("only", 0)
    for _ in range(5):
        traffic.bad(fleet.nodes[0], Cause.RESET, only)
        traffic.good(fleet.nodes[1], tenant=only)
    assert [node.health is Health.EJECTED for node in fleet.nodes] == [True, False, False]
