"""Every policy of the catalogue in the gateway: each need that the gateway meets changes decisions there.

For each need there is a scene, played twice: with the signal and without. All else is equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from support.gateway.dispatch_bench import MACHINE, Asked, Bench, benched, busy, on_bench
from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.gateway.config import parse_config
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.load_hooks import VLLM_MODELS, LoadHooks
from trimtab.policies import find
from trimtab.policies.catalogue import names

MIB = 1 << 20
ELSEWHERE: Final = {  # needs of the loop itself, with the tests that show what they change
    Need.CENTRAL_QUEUE: "tests/parity/test_gateway_parity.py: whatever waits, waits at the gateway",
    Need.FULL_SPEED: "tests/conformance/test_service_models.py: who packs is refused where it is not met",
    Need.HELD_COMPARISON: "tests/parity/test_gateway_parity.py, tests/engine: they compete for a slot",
    Need.PLACEMENT: "tests/gateway/test_loading_over_http.py: nodes load it, and requests go there",
    Need.RESULT_CACHE: "tests/gateway/http/test_cached_answers.py: a second request goes to no node",
    Need.TOKENS: "tests/parity/test_engine_parity.py: prompts differ in length, and expected answers",
    Need.ROLLOUT: "tests/gateway/decide/test_active_candidate.py, tests/engine: candidates are simulated",
}
EVERYTHING = """
nodes:
  - {name: a, url: 'http://x:1', models: [m], adapters: [x], zone: a, usd_per_hour: 1,
     exporter_url: 'http://x:9100/metrics', metrics_url: /metrics}
  - {name: b, url: 'http://x:2', models: [m], zone: b, loading: {models: vllm}}
routes: {r: {targets: [m], cache: true}}
models: {m: {split: true, batch: true}}
"""
PROVIDED: Final = parse_config(EVERYTHING).provided()


@dataclass(frozen=True)
class Scene:
    """What differs where a need is met, and requests that are sensitive to it."""

    met: tuple[Mapping[str, Any], ...]  # entries of nodes
    unmet: tuple[Mapping[str, Any], ...]
    declared: Declared = field(default_factory=Declared)
    asked: tuple[Mapping[str, Any], ...] = ({},)  # requests, again and again
    at_once: int = 3  # requests that come before any of them ends
    report: Callable[[Bench], Any] | None = None  # only where the need is met
    rules: Mapping[str, Any] = field(default_factory=dict)  # likewise


async def _say_who_is_busy(bench: Bench) -> None:
    await bench.report(0, busy(0.95))
    await bench.report(1, busy(0.05))


async def _tell_of_slow_iterations(bench: Bench) -> None:
    for node_idx, kv_used_frac, token_s in ((0, 0.95, 0.5), (1, 0.05, 0.01)):
        told = {"kv_used_frac": kv_used_frac, "kv_tokens": 1000.0, "token_s": token_s}
        await bench.report(node_idx, told, "backend")


async def _fill_the_first(bench: Bench) -> None:
    bench.fleet.set_held(bench.fleet.nodes[0], "other", is_held=True)


async def _fill_the_second(bench: Bench) -> None:
    bench.fleet.set_held(bench.fleet.nodes[1], "other", is_held=True)


async def _hold_the_adapter(bench: Bench) -> None:
    bench.fleet.set_held(bench.fleet.nodes[1], "x", is_held=True)


RESOURCED: Final = {"resources": MACHINE}
LARGE: Final = {"resources": {**MACHINE, "gpu_gib": 160.0, "ram_gib": 500.0}}
SMALL: Final = {"resources": {**MACHINE, "gpu_gib": 24.0}}
DEMAND: Final = Declared(demand={"m": {"gpu_gib": 20.0, "ram_gib": 8.0}})
ADAPTERS: Final = {"adapters": ("x",), "adapter_load_s": 60.0, "max_requests": 8}
MERGED: Final = {"models": ("m", "x"), "max_requests": 8}  # the adapter is a model of its own
LONG: Final = {"prefix_blocks": tuple(range(1, 40))}
OTHER: Final = {"prefix_blocks": tuple(range(101, 140))}
ONE_SLOT: Final = ({"max_requests": 1}, {"max_requests": 1})
TWO: Final = ({}, {})
LOADS: Final = {"models": ("m", "other"), "hooks": LoadHooks(VLLM_MODELS), "resources": {"gpu_gib": 80.0}}
SIZES: Final = Declared(model_gib={"m": 20.0, "other": 40.0})
SPREADS: Final = Scene((LOADS, LOADS), (LOADS, LOADS), SIZES, at_once=1, report=_fill_the_first)
PACKS: Final = replace(SPREADS, report=_fill_the_second)
MEMORY: Final = {  # policies to which memory of models is a resource, and loads no time
    "best-fit": PACKS,
    "most-free": SPREADS,
    "dominant-resource": SPREADS,
    "load-aware": SPREADS,
}
DISPATCH: Final[Mapping[Need, Scene]] = {
    Need.RESOURCES: Scene((SMALL, LARGE), TWO, DEMAND),
    Need.REPORTED_LOAD: Scene((RESOURCED, RESOURCED), (RESOURCED, RESOURCED), report=_say_who_is_busy),
    Need.ENGINE_LOAD: Scene(TWO, TWO, report=_tell_of_slow_iterations),
    Need.ZONES: Scene(
        ({"zone": "far"}, {"zone": "near"}), TWO, Declared(zone="near", rtt_s={("near", "far"): 20.0})
    ),
    Need.LINKS: Scene(
        ({"nic_gib_per_s": 0.01}, {"nic_gib_per_s": 10.0}), TWO, asked=({"body_bytes": 512 * MIB},)
    ),
    Need.PRICES: Scene(({"usd_per_hour": 500.0}, {"usd_per_hour": 0.01}), TWO),
    Need.RESIDENCY: Scene(
        (ADAPTERS, ADAPTERS), (MERGED, MERGED), asked=({"model": "x"},), report=_hold_the_adapter
    ),
    Need.PREFIX: Scene(
        ONE_SLOT, ONE_SLOT, asked=(LONG, OTHER, OTHER, LONG), at_once=2, rules={"prefix_blocks": 1000}
    ),
}


async def decisions(bench: Bench, scene: Scene, is_met: bool) -> list[str]:
    """Where requests go, the later ones while some of the earlier ones run; "" = nowhere yet."""
    if is_met and scene.report is not None:
        await scene.report(bench)
    await asyncio.sleep(20.0)  # plans come into force
    went, running = [], list[Asked]()
    for k in range(12):
        asked = bench.submit(Asked(**scene.asked[k % len(scene.asked)]))
        went.append(asked.node)
        running.append(asked)
        if (k + 1) % scene.at_once == 0:
            for done in filter(lambda one: one.node, running):
                bench.done(done)
            running = [one for one in running if not one.node]
            await asyncio.sleep(1.0)
    return went


def played(policy: str, scene: Scene, is_met: bool) -> list[str]:
    found: list[str] = []

    async def test(bench: Bench) -> None:
        found.extend(await decisions(bench, scene, is_met))

    nodes = [{"max_requests": 2, **entry} for entry in (scene.met if is_met else scene.unmet)]
    rules = dict(scene.rules) if is_met else {}
    on_bench(test, policy, *nodes, declared=scene.declared, **rules)
    return found


def own_needs(policy: Policy) -> frozenset[Need]:
    """Its own, without those of a composite's candidates, which have cases of their own."""
    return policy.needs if policy.candidates else policy.all_needs


def cases(kind: str, of: Callable[[str], Policy]) -> list[tuple[str, Need]]:
    pairs = [(name, need) for name in names(kind) for need in Need if need in own_needs(of(name))]
    return [(name, need) for name, need in pairs if need in PROVIDED and need not in ELSEWHERE]


PARAMETERS: Final = {
    ("cost-index", Need.PRICES): "cost-index(w_price=1000)",  # by default prices weigh 0
    ("predicted-latency", Need.ENGINE_LOAD): "predicted-latency(ttft_slo_s=0.2)",  # as little as it takes
}
DISPATCHING = cases("dispatch", lambda name: find(name)[0])


@pytest.mark.parametrize(("policy", "need"), [c for c in DISPATCHING if c[1] in DISPATCH])
def test_a_need_of_a_policy_changes_where_requests_go(policy: str, need: Need) -> None:
    scene = MEMORY.get(policy, DISPATCH[need]) if need is Need.RESIDENCY else DISPATCH[need]
    policy = PARAMETERS.get((policy, need), policy)
    assert played(policy, scene, is_met=True) != played(policy, scene, is_met=False)


FITTING = [name for name in names("dispatch") if Need.RESOURCES in find(name)[0].all_needs]
FITTING.remove("sparrow")  # it goes by random probes


@pytest.mark.parametrize("policy", FITTING)
def test_a_node_that_says_it_is_full_comes_last_though_no_demand_is_known(policy: str) -> None:
    """The first node reports 99 % of everything in use, by others. No demand is declared."""

    async def test(bench: Bench) -> None:
        assert bench.submit().node, "nothing is known of the nodes yet"
        for _ in range(3):
            await bench.report(0, busy(0.99))
            await bench.report(1, busy(0.3))
        assert bench.one_by_one(40) == {"n1": 40}
        there = [bench.submit().node for _ in range(8)]
        assert sorted(there) == ["n0"] * 1 + ["n1"] * 7 or sorted(there) == ["n1"] * 8

    nodes = {"max_requests": 8, **RESOURCED}
    on_bench(test, policy, nodes, nodes)


@pytest.mark.parametrize("policy", ["late-binding", "best-fit"])
def test_a_node_that_says_it_is_full_gets_work_where_no_other_is_free(policy: str) -> None:
    async def test(bench: Bench) -> None:
        await bench.report(0, busy(0.99))
        await bench.report(1, busy(0.3))
        assert [bench.submit().node for _ in range(3)] == ["n1", "n0", ""]

    on_bench(test, policy, *({"max_requests": 1, **RESOURCED} for _ in range(2)))


@pytest.mark.parametrize("policy", ["auto", "what-if"])
def test_prices_of_nodes_weigh_as_a_simulating_policy_is_told(policy: str) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(80):
            bench.done(bench.submit())
            await asyncio.sleep(0.5)
        assert bench.one_by_one(20) == {"n1": 20}

    on_bench(test, f"{policy}(window=64,w_price=1000)", *DISPATCH[Need.PRICES].met)


@pytest.mark.parametrize("policy", [name for name, need in DISPATCHING if need is Need.HOLDING])
def test_what_a_policy_holds_waits_and_is_offered_again(policy: str) -> None:
    async def test(bench: Bench) -> None:
        first, second, third = (bench.submit() for _ in range(3))
        assert {first.node, second.node} == {"n0", "n1"}
        assert (third.node, third.refusal) == ("", None)
        bench.done(second)
        await asyncio.sleep(2.0)  # a plan may bind it
        assert third.node == second.node

    one = {"max_requests": 1}
    on_bench(test, policy, one, one)


def serve_some(bench: Bench) -> None:
    """Planners know their class and what of them may be served apart from now on."""
    for _ in range(5):
        asked = Asked()
        asked.parts_max = 4
        bench.done(bench.submit(asked))


@pytest.mark.parametrize("policy", [name for name, need in DISPATCHING if need is Need.SPLITTING])
def test_plans_say_how_a_request_is_split(policy: str) -> None:
    async def test(bench: Bench) -> None:
        serve_some(bench)
        await asyncio.sleep(60.0)  # plans come into force
        sizes = bench.dispatcher.groupings.part_sizes(Asked(), 4)
        assert (len(sizes), sum(sizes)) == (2, 4), "no more parts than nodes"

    on_bench(test, policy, {}, {})


@pytest.mark.parametrize(("from_load_frac", "most"), [(0.0, 8), (1e9, 1)])
def test_plans_say_how_requests_are_batched(from_load_frac: float, most: int) -> None:
    async def test(bench: Bench) -> None:
        assert bench.dispatcher.groupings.batching(Asked()) == (1, 0.0), "its class is not known"
        serve_some(bench)
        await asyncio.sleep(60.0)
        assert bench.dispatcher.groupings.batching(Asked()).most == most

    on_bench(test, f"split-merge(batch_from_load_frac={from_load_frac})", {}, {})


@benched("late-binding", {}, {})
async def test_a_policy_that_plans_no_parts_splits_nothing(bench: Bench) -> None:
    bench.done(bench.submit())
    await asyncio.sleep(60.0)
    assert bench.dispatcher.groupings.part_sizes(Asked(), 4) == [4]


HEAVY, LIGHT = Tenant("heavy", 0), Tenant("light", 1)
MARKS: Final[Mapping[Need, Mapping[str, Any]]] = {  # of a request that should go before others
    Need.DEADLINES: {"deadline_in_s": 10.0},
    Need.PRIORITIES: {"priority": 9},
    Need.VIRTUAL_COUNTERS: {"tenant": LIGHT},
    Need.SHARES_HELD: {"tenant": LIGHT},
    Need.DOMINANT_SHARES: {"tenant": LIGHT},
}


def teach(bench: Bench, *seconds: float) -> None:
    """Requests of the model take so long on nodes of type t0, t1, …"""
    first = bench.submit()  # the class is known from now on
    bench.dispatcher.abort(first)
    for k, took_s in enumerate(seconds):
        of = bench.dispatcher.registry.classes[0]
        for _ in range(8):
            bench.dispatcher.registry.estimates.observe(of.key, f"t{k}", first.units, took_s)
    bench.dispatcher.rebuild()


@pytest.mark.parametrize(("priority", "last"), [(0, "n1"), (5, "n0")])
@benched("priority-reservation", *[{"type_name": f"t{k}", "max_requests": 4} for k in range(2)])
async def test_priorities_get_the_reserved_slots_of_fast_nodes(
    bench: Bench, priority: int, last: str
) -> None:
    teach(bench, 1.0, 2.0)
    assert [bench.submit().node for _ in range(3)] == ["n0"] * 3
    asked = Asked()
    asked.priority = priority
    assert bench.submit(asked).node == last


@pytest.mark.parametrize(("deadline_in_s", "is_refused"), [(1000.0, False), (1.0, True)])
@benched("predictive", *[{"type_name": f"t{k}", "max_requests": 2} for k in range(2)], max_wait_s=1000.0)
async def test_deadlines_that_no_node_can_meet_are_refused(
    bench: Bench, deadline_in_s: float, is_refused: bool
) -> None:
    teach(bench, 30.0, 30.0)
    asked = Asked()
    asked.deadline_s = bench.loop.time() + deadline_in_s
    bench.submit(asked)
    assert (asked.node == "", asked.refusal is not None) == (is_refused, is_refused)


def asking(mark: Mapping[str, Any], now_s: float) -> Asked:
    asked = Asked(tenant=mark.get("tenant", HEAVY))
    asked.priority = mark.get("priority", 0)
    asked.deadline_s = now_s + mark.get("deadline_in_s", 50.0)
    return asked


def last_goes_before(order: str, mark: Mapping[str, Any]) -> bool:
    """Of three that wait behind requests of one tenant, whether the last starts before the second."""
    found: list[bool] = []

    async def test(bench: Bench) -> None:
        running = [bench.submit(asking({}, bench.loop.time())) for _ in range(2)]
        assert all(asked.node for asked in running)
        waiting = [bench.submit(asking(how, bench.loop.time())) for how in ({}, {}, mark)]
        assert not any(asked.node for asked in waiting)
        for asked in running:
            bench.done(asked)
        assert waiting[0].node
        assert bool(waiting[1].node) != bool(waiting[2].node)
        found.append(bool(waiting[2].node))

    node = {"max_requests": 2, "resources": MACHINE}
    on_bench(test, f"least-connections+{order}", node, {**node, "models": ("other",)}, declared=DEMAND)
    return found[0]


ORDERING = [  # of policies that order only: what one that also dispatches needs may be for choosing nodes
    case
    for case in cases("order", lambda name: find(f"least-connections+{name}")[1])
    if case[0] not in names("dispatch")
]


@pytest.mark.parametrize(("order", "need"), ORDERING)
def test_a_need_of_an_order_changes_who_is_next(order: str, need: Need) -> None:
    assert not last_goes_before(order, {})
    assert last_goes_before(order, MARKS[need])


def test_every_need_that_the_gateway_meets_has_a_scene() -> None:
    known = {*DISPATCH, *MARKS, *ELSEWHERE, Need.HOLDING, Need.SPLITTING, Need.BATCHING}
    assert known >= PROVIDED, sorted(PROVIDED - known)
    apart = {  # tests/policies
        ("priority-reservation", Need.PRIORITIES),
        ("predictive", Need.DEADLINES),
        ("predicted-latency", Need.DEADLINES),
    }
    assert {
        case
        for case in DISPATCHING
        if case[1] not in {*DISPATCH, Need.HOLDING, Need.SPLITTING, Need.BATCHING}
    } == apart
    assert {need for _, need in ORDERING} <= MARKS.keys()
