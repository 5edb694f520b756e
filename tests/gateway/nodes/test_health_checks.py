"""Active checks against servers on real sockets."""

import asyncio
from contextlib import ExitStack

import pytest

from support.gateway.node_world import Backend, fleet_of, spec
from support.ports import reserved_port
from support.waiting import until
from trimtab.gateway.model import Health, Node
from trimtab.gateway.nodes import health_checks
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions, parse_listing
from trimtab.gateway.nodes.node_state import Hold

QUICK = HealthCheckOptions(
    period_s=0.02, timeout_s=30, unhealthy_threshold=3, healthy_threshold=2, models_period_s=0.05
)


async def test_a_node_that_fails_goes_down_and_comes_back() -> None:
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        checker, node = HealthChecker(fleet, QUICK), fleet.nodes[0]
        checker.start()
        await until(lambda: node.models == ("m",))
        backend.answers["/health"] = (503, "loading")
        await until(lambda: node.health is Health.DOWN)
        assert node.reason == "its check answers 503"
        assert fleet.problems == {"node n0": "its check answers 503"}
        backend.answers["/health"] = (200, "")
        await until(lambda: fleet.gets_work(node))
        assert fleet.problems == {}
        assert fleet.state(node).is_on_trial
        await checker.close()


async def test_one_failure_of_a_node_that_was_up_changes_nothing() -> None:
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        checker, node = (
            HealthChecker(fleet, HealthCheckOptions(period_s=0.05, unhealthy_threshold=1000)),
            fleet.nodes[0],
        )
        checker.start()
        await until(lambda: fleet.state(node).was_up)
        backend.answers["/health"] = (500, "")
        await until(lambda: "node n0" in fleet.problems)
        assert fleet.gets_work(node)
        await checker.close()


async def test_a_failure_is_repeated_at_once_and_not_after_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "REPEAT_S", 0.01)
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        options = HealthCheckOptions(period_s=1e6, timeout_s=30.0)
        checker, node = HealthChecker(fleet, options), fleet.nodes[0]
        checker.start()
        await until(lambda: fleet.state(node).was_up)
        backend.answers["/health"] = (500, "")
        checker.check_now(node)
        await until(lambda: node.health is Health.DOWN)
        backend.answers["/health"] = (200, "")
        checker.check_now(node)
        await until(lambda: fleet.gets_work(node))
        await checker.close()


def test_an_unreachable_node_is_reported_at_once_and_found_later() -> None:
    async def main(port: int) -> None:
        backend = Backend()
        backend.port = port
        fleet = fleet_of(1, url=backend.url)
        checker, node = HealthChecker(fleet, QUICK), fleet.nodes[0]
        checker.start()
        await until(lambda: node.health is Health.DOWN)
        assert "cannot be connected" in node.reason
        async with backend:
            await until(lambda: fleet.gets_work(node))
            assert fleet.ramp_frac(node, fleet.loop.time()) == 1.0  # it was late, not ill
            await checker.close()
        fleet.close()

    with reserved_port() as port:
        asyncio.run(main(port))


def test_all_nodes_come_back_after_all_were_down() -> None:
    async def main(ports: list[int]) -> None:
        backends = [Backend() for _ in range(3)]
        fleet = fleet_of(0)
        for number, backend in enumerate(backends):
            backend.port = ports[number]
            fleet.add(spec(f"n{number}", url=backend.url))
        checker = HealthChecker(fleet, QUICK)
        checker.start()
        await until(lambda: all(node.health is Health.DOWN for node in fleet.nodes))
        async with backends[0], backends[1], backends[2]:
            await until(lambda: all(fleet.gets_work(node) for node in fleet.nodes))
            await checker.close()
        fleet.close()

    with ExitStack() as held:
        asyncio.run(main([held.enter_context(reserved_port()) for _ in range(3)]))


async def test_checks_carry_the_nodes_key_and_follow_no_redirect() -> None:
    async with Backend() as backend:
        fleet = Fleet(asyncio.get_running_loop(), environment={"KEY": "abc"})
        node = fleet.add(spec(url=backend.url, api_key_env="KEY", server_name="gpu-1"))
        backend.answers["/health"] = (302, "")
        backend.headers["Location"] = "/elsewhere"
        checker = HealthChecker(fleet, QUICK)
        checker.start()
        await until(lambda: node.health is Health.DOWN)
        assert "redirects" in node.reason
        assert set(backend.seen) == {("/health", f"gpu-1:{backend.port}", "Bearer abc")}
        await checker.close()


async def test_without_a_health_path_the_list_of_models_is_the_check() -> None:
    async with Backend() as backend:
        del backend.answers["/health"]
        fleet = fleet_of(1, url=backend.url + "/v1")
        checker = HealthChecker(fleet, QUICK)
        checker.start()
        await until(lambda: fleet.state(fleet.nodes[0]).was_up)
        backend.answers["/v1/models"] = (401, "")
        await until(lambda: fleet.nodes[0].health is Health.DOWN)
        assert "credentials" in fleet.nodes[0].reason
        await checker.close()


@pytest.mark.parametrize("is_excused", [True, False])
async def test_a_check_that_times_out_during_a_long_prefill_says_nothing(is_excused: bool) -> None:
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        asked: list[Node] = []

        def excused(node: Node) -> bool:
            asked.append(node)
            return is_excused

        options = HealthCheckOptions(period_s=0.01, timeout_s=0.03, unhealthy_threshold=3)
        checker, node = HealthChecker(fleet, options, excused), fleet.nodes[0]
        checker.start()
        await until(lambda: fleet.state(node).was_up)
        backend.is_silent = True
        before = len(asked)
        await until(lambda: len(asked) > before + 3)
        assert fleet.gets_work(node) is is_excused
        backend.is_silent = False
        await checker.close()


async def test_nodes_that_come_later_are_checked_and_removed_ones_no_more_and_checks_can_restart() -> None:
    async with Backend() as backend:
        fleet = fleet_of(0)
        checker = HealthChecker(fleet, QUICK)
        checker.start()
        await checker.close()
        checker.start()
        node = fleet.add(spec("late", url=backend.url))
        await until(lambda: fleet.state(node).was_up)
        fleet.remove("late")
        await asyncio.sleep(0.05)
        n_seen = len(backend.seen)
        await asyncio.sleep(0.1)
        assert len(backend.seen) == n_seen
        again = fleet.add(spec("late", url=backend.url))
        await until(lambda: len(backend.seen) > n_seen)
        assert again is node
        await checker.close()


async def test_a_node_that_drips_an_endless_answer_fails_its_check() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    fleet = fleet_of(1, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    checker = HealthChecker(fleet, HealthCheckOptions(period_s=0.02, timeout_s=30))
    checker.start()
    await until(lambda: fleet.nodes[0].health is Health.DOWN)
    await checker.close()
    fleet.close()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.05)


def test_the_list_of_models_tells_adapters_by_their_parent() -> None:
    listing = parse_listing(
        b'{"data": [{"id": "base", "parent": null}, {"id": "law", "parent": "base"}, {"id": "x"}]}'
    )
    assert listing is not None
    assert (listing.models, listing.adapters) == (("base", "x"), {"law": "base"})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"id": 3}]}', b"[" * 100000]
)
def test_what_is_no_list_of_models_is_none(body: bytes) -> None:
    assert parse_listing(body) is None


async def test_a_drained_node_stays_drained_whatever_its_checks_say() -> None:
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        checker, node = HealthChecker(fleet, QUICK), fleet.nodes[0]
        fleet.drain("n0")
        checker.start()
        await until(lambda: len(backend.seen) > 5)
        assert Hold.DRAINING in fleet.state(node).holds
        await checker.close()
