"""What one tenant alone has met at a node withholds the node from this tenant, and from no other."""

import asyncio
from collections.abc import Callable

import pytest

from support.gateway.node_world import Traffic, VirtualLoop, fleet_of
from trimtab.gateway.model import Cause, Node, Tenant
from trimtab.gateway.nodes.health_manager import HealthManager
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.tenant_holds import ACTIVE_S

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)

A, B = Tenant("a", 0), Tenant("b", 1)
Happening = Callable[["World", Node, Tenant], None]


class World:
    """A fleet of four whose requests are told to it as the dispatcher does."""

    def __init__(self, auto: bool = False) -> None:
        self.manager = HealthManager(fleet_of(4, max_requests=10, auto=auto))
        self.fleet = self.manager.fleet
        self.traffic = Traffic(self.manager.observer)

    def good(self, node: Node, tenant: Tenant) -> None:
        self.fleet.meet(tenant.name)
        self.traffic.good(node, tenant=tenant)

    def bad(
        self, node: Node, tenant: Tenant, cause: Cause, times: int = 1, retry_after_s: float = 0.0
    ) -> None:
        for _ in range(times):
            self.fleet.meet(tenant.name)
            self.traffic.bad(node, cause, tenant, retry_after_s=retry_after_s)

    def open_to(self, tenant: Tenant) -> list[int]:
        """Nodes that the tenant's next request may have."""
        kept = self.fleet.meet(tenant.name)
        return [node.idx for node in self.fleet.nodes if self.fleet.gets_work(node) and node.idx not in kept]


def refused(world: World, node: Node, tenant: Tenant) -> None:
    """Too busy for two requests, with a Retry-After that the second confirms."""
    world.bad(node, tenant, Cause.BUSY, 2, retry_after_s=8.0)


def reset(world: World, node: Node, tenant: Tenant) -> None:
    """Five failures in a row."""
    world.bad(node, tenant, Cause.RESET, 5)


def mostly_failed(world: World, node: Node, tenant: Tenant) -> None:
    """A success rate far below that of the others, never five in a row."""
    for turn in range(40):
        for other in world.fleet.nodes:
            if other is node and turn % 3:
                world.bad(other, tenant, Cause.SERVER_ERROR)
            else:
                world.good(other, tenant)
    world.manager.ejection.compare()


CAUSES = pytest.mark.parametrize("happen", [refused, reset, mostly_failed])


@CAUSES
async def test_it_stays_with_its_tenant_with_a_history_of_good_requests_too(happen: Happening) -> None:
    world = World()
    for node in world.fleet.nodes:
        for _ in range(20):
            world.good(node, A)
            world.good(node, B)
    for node in world.fleet.nodes[:2]:
        world.good(node, B)
        happen(world, node, A)
    assert world.open_to(B) == [0, 1, 2, 3]
    assert world.open_to(A) == [2, 3]
    await asyncio.sleep(10.1)
    assert world.open_to(A) == [0, 1, 2, 3]


async def test_one_burst_of_a_tenant_ejects_a_node_once() -> None:
    world = World()
    node = world.fleet.nodes[0]
    world.good(node, B)
    world.bad(node, A, Cause.RESET, 20)
    until_s = world.fleet.tenant_holds.until_s(node, Hold.OUTLIER, A.name)
    assert until_s - world.fleet.loop.time() == pytest.approx(5.0), "not 16 times in a row"


@pytest.mark.parametrize(("happen", "cause"), [(refused, Cause.BUSY), (reset, Cause.RESET)])
async def test_a_second_tenant_confirms_it_for_all(happen: Happening, cause: Cause) -> None:
    world = World()
    for node in world.fleet.nodes:
        world.good(node, B)
    happen(world, world.fleet.nodes[0], A)
    assert world.open_to(B) == [0, 1, 2, 3]
    world.bad(world.fleet.nodes[0], B, cause)
    assert world.open_to(Tenant("c", 2)) == [1, 2, 3]


async def test_a_success_rate_that_is_low_without_the_worst_tenant_too_is_the_nodes() -> None:
    world = World()
    for turn in range(120):
        for node in world.fleet.nodes:
            tenant = (A, B)[turn // 3 % 2]
            if node.idx == 0 and turn % 3:
                world.bad(node, tenant, Cause.SERVER_ERROR)
            else:
                world.good(node, tenant)
    world.manager.ejection.compare()
    assert [world.fleet.gets_work(node) for node in world.fleet.nodes] == [False, True, True, True]


@CAUSES
async def test_a_tenant_alone_withholds_it_from_all_until_another_comes(happen: Happening) -> None:
    world = World()
    world.good(world.fleet.nodes[3], B)
    await asyncio.sleep(ACTIVE_S + 1.0)  # B is active no more
    happen(world, world.fleet.nodes[0], A)
    assert world.open_to(A) == [1, 2, 3]
    assert not world.fleet.gets_work(world.fleet.nodes[0])  # as strict as ever while nobody else is there
    assert world.open_to(B) == [0, 1, 2, 3]
    assert world.open_to(A) == [1, 2, 3]


async def test_a_good_answer_to_another_tenant_tells_that_the_node_has_room() -> None:
    world = World()
    node = world.fleet.nodes[0]
    for _ in range(10):
        world.bad(node, A, Cause.BUSY, retry_after_s=8.0)
        world.good(node, B)
    assert Hold.BUSY not in world.fleet.state(node).holds


async def test_one_tenants_refusals_do_not_shrink_the_capacity_of_all() -> None:
    world = World(auto=True)
    node = world.fleet.nodes[0]
    world.good(node, B)
    before = node.max_requests
    world.bad(node, A, Cause.BUSY, 50)
    assert node.max_requests == before
    world.bad(node, B, Cause.BUSY, 1)
    assert node.max_requests < before


async def test_a_node_that_goes_leaves_nothing_behind() -> None:
    world = World()
    world.good(world.fleet.nodes[0], B)
    refused(world, world.fleet.nodes[0], A)
    world.fleet.remove("n0", drain_s=0.0)
    assert world.fleet.meet("a") == []
