"""What nodes report, declare and are measured by changes decisions of the policies that read it."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from support.gateway.dispatch_bench import EMBEDDING, MACHINE, Asked, Bench, benched, busy, on_bench
from trimtab.domain.cluster import RESOURCES
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.decide.signals import NodeSignals, RoundTrips
from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.planned_outages import LinkMeter

MIB, GIB = 1 << 20, 1 << 30
RESOURCED = {"resources": MACHINE}


@pytest.mark.parametrize("busy_idx", [0, 1])
@benched("load-aware", RESOURCED, RESOURCED)
async def test_a_node_that_others_keep_busy_gets_next_to_nothing(bench: Bench, busy_idx: int) -> None:
    assert bench.one_by_one(40) == {"n0": 40}, "nothing is reported: ties go by node"
    await bench.report(busy_idx, busy(0.99))
    await bench.report(1 - busy_idx, busy(0.01))
    assert bench.one_by_one(40) == {f"n{1 - busy_idx}": 40}
    await bench.report(busy_idx, busy(0.01))
    await bench.report(1 - busy_idx, busy(0.99))
    assert bench.one_by_one(40) == {f"n{busy_idx}": 40}, "reports are followed"


@benched("load-aware")
async def test_capacities_that_only_reports_tell_are_taken_up(bench: Bench) -> None:
    reported = {"cpu_cores": 32.0, "cpu_busy_frac": 0.75}
    await bench.report(0, reported)
    await bench.report(1, {"cpu_cores": 32.0, "cpu_busy_frac": 0.25})
    await bench.settle()
    view = bench.view()
    assert (view.capacity.tolist(), view.used.tolist()) == ([[32.0], [32.0]], [[24.0], [8.0]])
    assert bench.one_by_one(10) == {"n1": 10}


@benched("load-aware", RESOURCED, RESOURCED)
async def test_reports_do_not_rebuild_states(bench: Bench) -> None:
    pool = bench.pool
    before = pool.live
    for frac in (0.2, 0.4, 0.6):
        await bench.report(0, busy(frac))
        await bench.settle()
    assert pool.live is before
    assert bench.view().used[0] == pytest.approx([0.6 * MACHINE[name] for name in RESOURCES], rel=1e-5)


@benched(
    "random",
    RESOURCED,
    {**RESOURCED, "models": ("other",)},
    declared=Declared(demand={"m": {"cpu_cores": 4.0}}),
)
async def test_load_of_others_is_the_report_less_what_our_requests_take(bench: Bench) -> None:
    await bench.report(0, {"cpu_busy_frac": 0.0})
    running = [bench.submit() for _ in range(2)]
    assert {asked.node for asked in running} == {"n0"}
    await asyncio.sleep(10.0)
    await bench.report(0, {"cpu_busy_frac": 0.75})  # 12 cores, 8 of them ours
    assert bench.view().used[0, 0] == pytest.approx(12.0, abs=0.3), "a moment passed before the first came"
    for asked in running:
        bench.done(asked)
    assert bench.view().used[0, 0] == pytest.approx(4.0, abs=0.3), "only the others' is left, at once"


@benched("load-aware", RESOURCED, RESOURCED, RESOURCED)
async def test_a_node_without_a_report_counts_as_the_mean_of_the_others(bench: Bench) -> None:
    await bench.report(0, {"cpu_busy_frac": 0.25})
    await bench.report(1, {"cpu_busy_frac": 0.75})
    assert bench.view().used[:, 0].tolist() == [4.0, 12.0, 8.0]
    node = bench.fleet.nodes[0]
    del node.reported["cpu_busy_frac"]
    await bench.report(0, {})  # its page is too old
    assert bench.view().used[:, 0].tolist() == [12.0, 12.0, 12.0]


@benched("least-connections", RESOURCED)
async def test_demand_is_learned_from_reports(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        running = []
        for endpoint, count in ((None, rng.integers(0, 4)), (EMBEDDING, rng.integers(0, 3))):
            for _ in range(count):
                asked = Asked()
                asked.endpoint = endpoint or asked.endpoint
                running.append(bench.submit(asked))
        there = Counter(asked.class_idx for asked in running)
        await bench.report(0, {"memory_used_frac": (5.0 + 4.0 * there[0] + 1.5 * there[1]) / 64.0})
        for asked in running:
            bench.done(asked)
    ram = RESOURCES.index("ram_gib")
    assert bench.view().demand[:2, ram] == pytest.approx([4.0, 1.5], abs=0.05)


@benched("load-aware", RESOURCED, RESOURCED)
async def test_reports_have_their_age(bench: Bench) -> None:
    assert bench.view().use_reported_s.tolist() == [np.inf, np.inf], "what is known is our own, and current"
    begun_s = bench.dispatcher.now_s()
    await bench.report(0, {"cpu_busy_frac": 0.5})
    await asyncio.sleep(3.0)
    await bench.report(0, {"gpu_busy_frac": 0.5}, "gpu")
    assert bench.view().use_reported_s.tolist() == [begun_s, np.inf], "the oldest of both"
    await bench.report(0, {})  # the machine's page is too old
    assert bench.view().use_reported_s[0] == pytest.approx(begun_s + 3.25, abs=0.01)


@benched("least-connections")
async def test_requests_that_others_sent_to_a_server_count(bench: Bench) -> None:
    mine = bench.submit(Asked(answers=3))
    assert mine.node == "n0"
    await bench.report(0, {"running": 3.0, "waiting": 0.0}, "backend")
    assert bench.view().nodes.in_flight.tolist() == [1, 0], "the three answers of our one request"
    await bench.report(0, {"running": 6.0, "waiting": 2.0}, "backend")
    assert bench.view().nodes.in_flight.tolist() == [6, 0]
    assert bench.one_by_one(3) == {"n1": 3}
    bench.dispatcher.rebuild()
    assert bench.view().nodes.in_flight.tolist() == [6, 0], "a new state knows it too"
    await bench.report(0, {"running": 3.0, "waiting": 0.0}, "backend")
    bench.done(mine)
    assert bench.view().nodes.in_flight.tolist() == [0, 0]


@pytest.mark.parametrize("policy", ["locality", "edge-first", "congestion-aware"])
def test_near_zones_come_first(policy: str) -> None:
    async def test(bench: Bench) -> None:
        assert bench.one_by_one(4) == {"n1": 4}
        abroad = Tenant("abroad", 0, zone="far")
        assert bench.one_by_one(4, tenant=abroad) == {"n0": 4}

    declared = Declared(zone="near", zones=("far",), rtt_s={("near", "far"): 0.08, ("far", "far"): 0.001})
    on_bench(test, policy, {"zone": "far"}, {"zone": "near"}, declared=declared)


@pytest.mark.parametrize("policy", ["locality", "edge-first", "congestion-aware"])
def test_round_trips_are_measured_by_checks(policy: str) -> None:
    async def test(bench: Bench) -> None:
        assert bench.one_by_one(4) == {"n0": 4}
        for seconds in (0.3, 0.05, 0.2):
            bench.fleet.took(bench.fleet.nodes[0], seconds)
            bench.fleet.took(bench.fleet.nodes[1], seconds / 50)
        await asyncio.sleep(1.0)
        assert bench.view().rtt_s[0].tolist() == [0.0, 0.05, 0.001], "the shortest: the rest is the server's"
        assert bench.one_by_one(4) == {"n1": 4}

    on_bench(test, policy, {"zone": "a"}, {"zone": "b"})


def test_between_foreign_zones_round_trips_add_up_through_the_gateway() -> None:
    trips = RoundTrips()
    for node, seconds in ((0, 0.01), (1, 0.03), (2, 0.05), (3, 0.2)):
        trips.note(node, seconds)
    declared = Declared(zone="here", rtt_s={("b", "c"): 0.5})
    found = trips.between(("here", "a", "b", "c"), ("a", "a", "b", "here"), declared)
    here, a, b = 0.2, 0.02, 0.05
    assert found == pytest.approx(
        np.array(
            [[here, a, b, 0], [a + here, 2 * a, a + b, a], [b + here, b + a, 2 * b, 0.5], [here, a, 0.5, 0]]
        )
    )


@benched("congestion-aware", {"nic_gib_per_s": 0.1}, {"nic_gib_per_s": 10.0})
async def test_a_slow_link_is_avoided(bench: Bench) -> None:
    assert bench.one_by_one(4) == {"n0": 4}, "without a body they are equal"
    assert bench.one_by_one(4, body_bytes=512 * MIB) == {"n1": 4}


@benched("congestion-aware", {"nic_gib_per_s": 1.0}, {"nic_gib_per_s": 1.0})
async def test_transfers_under_way_share_their_link(bench: Bench) -> None:
    large = {"body_bytes": 512 * MIB}
    assert bench.one_by_one(2, **large) == {"n0": 2}
    transfer = bench.dispatcher.signals.links.begin(0, 512 * MIB)
    assert transfer is not None
    assert bench.one_by_one(2, **large) == {"n1": 2}
    transfer.end(bench.loop.time(), is_whole=False)
    assert bench.one_by_one(2, **large) == {"n0": 2}


def test_bandwidth_is_measured_on_large_bodies() -> None:
    meter = LinkMeter()
    assert meter.begin(0, 200_000) is None
    first, second = meter.begin(0, 68 * MIB), meter.begin(0, 20 * MIB)
    assert first is not None
    assert second is not None
    first.sent(4 * MIB, 100.0)  # into buffers at once
    for tick in range(1, 65):
        first.sent(MIB, 100.0 + tick / 64)
    first.end(101.0, is_whole=True)
    assert meter.of_node(0) == pytest.approx(2 * 64 / 1024), "64 MiB in a second, beside another"
    second.end(101.0, is_whole=False)
    assert meter.of_node(0) == pytest.approx(2 * 64 / 1024)
    assert meter.active[0] == 0


@benched("congestion-aware")
async def test_a_measured_link_is_seen_by_policies(bench: Bench) -> None:
    meter = bench.dispatcher.signals.links
    for node_idx, gib_per_s in ((0, 0.05), (1, 5.0)):
        meter.measured(node_idx, gib_per_s)
        meter.changed(node_idx)
    assert bench.one_by_one(4, body_bytes=512 * MIB) == {"n1": 4}
    assert bench.view().link_gib_per_s.tolist()[-2:] == [0.05, 5.0]


@pytest.mark.parametrize(("policy", "chosen"), [("best-fit", "n1"), ("most-free", "n0")])
def test_packing_and_spreading_go_by_reported_use(policy: str, chosen: str) -> None:
    async def test(bench: Bench) -> None:
        await bench.report(0, busy(0.1))
        await bench.report(1, busy(0.6))
        await bench.report(2, busy(0.95))  # 4 GiB of accelerator memory free, less than it takes
        assert bench.one_by_one(4) == {chosen: 4}

    declared = Declared(demand={"m": {"gpu_gib": 20.0}})
    on_bench(test, policy, RESOURCED, RESOURCED, RESOURCED, declared=declared)


@benched("best-fit", RESOURCED, RESOURCED, declared=Declared(demand={"m": {"gpu_gib": 20.0}}))
async def test_what_fits_nowhere_waits_for_the_report_that_there_is_room(bench: Bench) -> None:
    await bench.report(0, busy(0.9))
    await bench.report(1, busy(0.9))
    held = bench.submit()
    assert held.node == ""
    await bench.report(1, busy(0.1))
    assert held.node == "n1"


@benched(
    "random",
    {"usd_per_hour": 3.6, "resources": {"gpu_gib": 80.0}},
    {"usd_per_hour": 7.2},
    declared=Declared(model_gib={"m": 15.0}),
)
async def test_prices_and_memory_of_models_are_seen(bench: Bench) -> None:
    view, live = bench.view(), bench.pool.live
    price = view.usd_per_s[view.nodes.type_idx]
    assert price == pytest.approx([3.6 / 3600, 7.2 / 3600])
    assert view.item_gib.tolist() == [15.0]
    assert live.cluster.memory_gib[live.cluster.type_idx].tolist() == [80.0, np.inf]


@benched("best-fit", RESOURCED, RESOURCED)
async def test_learned_demand_never_excludes_a_node_that_serves_the_class(bench: Bench) -> None:
    signals: NodeSignals = bench.dispatcher.signals
    for x in range(20):
        signals.fit.observe(0, {0: float(x % 3)}, [50.0 * (x % 3), *([None] * (len(RESOURCES) - 1))])
    bench.submit()
    await bench.report(0, {"cpu_busy_frac": 0.5})
    assert bench.view().demand[0, 0] == 16.0, "of a fit that says 50"


@benched("random")
async def test_kv_memory_is_seen_as_reported(bench: Bench) -> None:
    await bench.report(1, {"kv_used_frac": 0.25, "kv_tokens": 40_000.0})
    await bench.settle()
    engines = bench.view().engines
    assert engines.kv_tokens.tolist() == [0.0, 40_000.0]
    assert engines.kv_used.tolist() == [0.0, 10_000.0]
    assert engines.load_factor.tolist() == [1.0, 1.0]
