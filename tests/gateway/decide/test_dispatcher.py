"""The dispatcher on its own: exchanges that only note what becomes of them, and virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.gateway.dispatch_bench import Asked, Bench, benched, on_bench
from support.planning_policies import Gate, Steering
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import PlanningLog
from trimtab.gateway.decide.dispatch_rules import DispatchRules, PolicyChoice, policy_choice
from trimtab.gateway.decide.request_specs import SessionAffinity
from trimtab.gateway.model import (
    Cause,
    DecisionListener,
    Endpoint,
    Facts,
    Kind,
    Node,
    Tenant,
    Usage,
)
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import Hold, Listing, NodeSpec

at = partial(benched, slots=1, type_name="")
TENANT = Tenant("t", 0)


class StartedAfter(Asked):
    """Notes what the nodes had served when it was started."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet, self.served_at_start = fleet, list[int]()

    def start(self, node: Node) -> None:
        super().start(node)
        self.served_at_start = [one.served for one in self.fleet.nodes]


def test_what_is_submitted_together_is_decided_as_one_by_one() -> None:
    outcomes = []

    async def test(bench: Bench, together: bool) -> None:
        dispatcher = bench.dispatcher
        dispatcher.use(DispatchRules(policy_choice("power-of-d", "least-connections"), held_max=3))
        exchanges = [Asked() for _ in range(16)]
        for exchange in exchanges:
            exchange.arrived_s = bench.loop.time()
            dispatcher.submit(exchange)
            if not together:
                dispatcher.decide()
            await asyncio.sleep(0.01)
        assert any(exchange.nodes for exchange in exchanges) != together
        dispatcher.decide()
        nodes = [exchange.nodes for exchange in exchanges]
        refused = [exchange.refusal is not None for exchange in exchanges]
        assert (sum(map(len, nodes)), sum(refused)) == (12, 1)
        receipts = [exchange.decision for exchange in exchanges if exchange.nodes]
        tally = dispatcher.log.shadow
        outcomes.append((nodes, refused, receipts, tally.counts, tally.figures()))

    for together in (False, True):
        on_bench(partial(test, together=together), slots=3, nodes=4, type_name="")
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][3][0] == 16  # the shadow was asked about each


@at()
async def test_what_came_before_a_lesson_is_decided_without_it(bench: Bench) -> None:
    first, second = bench.submit(), Asked()
    bench.dispatcher.submit(second)
    assert not second.nodes
    bench.done(first)
    assert second.nodes == ["n1"], "the other node had not given its place back when it came"


@at()
async def test_answers_of_one_turn_are_learned_from_before_what_waits_is_decided(bench: Bench) -> None:
    running = [bench.submit() for _ in range(2)]
    waiting = [bench.submit(StartedAfter(bench.fleet)) for _ in range(3)]
    for exchange in running:
        exchange.usage = Usage(100, 7)
        exchange.attempts[-1].ended_s = exchange.attempts[-1].begun_s + 1.0
    running[1].facts = None  # there is nothing to learn from it
    bench.dispatcher.done(running)
    assert [x.served_at_start for x in waiting] == [[1, 1], [1, 1], []]
    assert [x.nodes for x in waiting] == [["n0"], ["n1"], []]
    assert (running[0].actual_units, running[1].actual_units) == (12.0, 0.0)
    assert [node.served for node in bench.fleet.nodes] == [1, 1]


@at()
async def test_a_stream_without_a_report_of_tokens_is_learned_from_by_its_pieces(bench: Bench) -> None:
    stream = bench.submit()
    stream.streamed_chunks = 7
    bench.done(stream)
    assert stream.facts is not None
    output = bench.dispatcher.registry.classes[stream.class_idx].output
    assert output.predict(stream.facts.prompt_tokens, stream.facts.max_tokens) == 7.0
    assert stream.actual_units == 0.0  # which the node does not say


@at()
async def test_a_fault_in_learning_from_one_answer_is_its_own(bench: Bench) -> None:
    problems: list[str] = []
    bench.loop.set_exception_handler(lambda loop, said: problems.append(str(said["exception"])))
    faulty, sound, held = bench.submit(), bench.submit(), bench.submit()
    for exchange in (faulty, sound):
        exchange.usage = Usage(100, 7)
        exchange.attempts[-1].ended_s = exchange.attempts[-1].begun_s + 1.0
    faulty.class_idx = 99
    bench.dispatcher.done([faulty, sound])
    assert problems == ["list index out of range"]
    assert sound.actual_units == 12.0
    assert held.nodes


@at()
async def test_a_fault_in_starting_one_request_is_its_own(bench: Bench) -> None:
    class Faulty(Asked):
        def start(self, node: Node) -> None:
            raise RuntimeError("no start")

    problems: list[Any] = []
    bench.loop.set_exception_handler(lambda loop, said: problems.append(said["exception"]))
    faulty, sound = Faulty(), Asked()
    for exchange in (faulty, sound):
        bench.dispatcher.submit(exchange)
    bench.dispatcher.decide()
    assert sound.nodes == ["n1"]
    assert [str(problem) for problem in problems] == ["no start"]
    bench.dispatcher.abort(faulty)
    assert bench.in_flight() == {"n0": 0, "n1": 1}


@at()
async def test_a_lost_request_goes_elsewhere_and_an_aborted_one_frees_its_place(bench: Bench) -> None:
    lost, held = bench.submit(), bench.submit()
    bench.done(held)
    assert bench.in_flight() == {"n0": 1, "n1": 0}
    bench.dispatcher.lost(lost, Cause.RESET)
    assert lost.nodes == ["n0", "n1"]
    waiting = bench.submit(), bench.submit()
    assert [x.nodes for x in waiting] == [["n0"], []]
    bench.dispatcher.abort(waiting[1])
    bench.dispatcher.abort(lost)
    assert bench.in_flight() == {"n0": 1, "n1": 0}
    bench.dispatcher.failed(waiting[0], Cause.SERVER_ERROR)
    assert bench.in_flight() == {"n0": 0, "n1": 0}
    assert [node.failed for node in bench.fleet.nodes] == [2, 0]
    assert bench.submit().nodes, "there is room again"


@at(nodes=1, max_wait_s=3.0, policy="split-merge")
async def test_what_takes_the_place_of_a_waiting_request_waits_as_long_and_with_its_own_deadline(
    bench: Bench,
) -> None:
    running, first = bench.submit(), Asked()
    first.deadline_s = bench.loop.time() + 1.0
    bench.submit(first)
    later = bench.submit()
    await asyncio.sleep(0.5)
    larger = Asked()
    larger.arrived_s, larger.facts = first.arrived_s, Facts("m", prompt_tokens=900.0, max_tokens=10.0)
    bench.dispatcher.replace(first, larger)
    assert bench.dispatcher.waiting() == [larger, later]
    pool = bench.pool
    assert pool.live.history().work["units"].tolist() == [running.units, larger.units, later.units]
    await asyncio.sleep(1.0)
    assert (first.refusal, larger.refusal) == (None, None), "the deadline was the first one's"
    bench.done(running)
    assert (larger.nodes, later.nodes) == (["n0"], [])
    bench.dispatcher.replace(later, later)
    await asyncio.sleep(1.6)
    assert later.refusal is not None, "nobody waits longer than 3 s"


@at(nodes=1, max_wait_s=3.0)
async def test_a_replaced_request_is_refused_when_it_has_waited_too_long(bench: Bench) -> None:
    bench.submit()
    first, by = Asked(), Asked()
    first.deadline_s = bench.loop.time() + 1.0
    bench.submit(first)
    by.arrived_s = first.arrived_s
    bench.dispatcher.replace(first, by)
    await asyncio.sleep(2.9)
    assert by.refusal is None
    await asyncio.sleep(0.2)
    assert by.refusal is not None
    assert by.refusal.code == "no_capacity"


@at()
async def test_a_hedge_takes_a_place_and_gives_it_back(bench: Bench) -> None:
    first = bench.submit()
    second = bench.dispatcher.hedge(first)
    assert second is not None
    assert second.name == "n1"
    assert bench.in_flight() == {"n0": 1, "n1": 1}
    assert bench.dispatcher.hedge(first) is None, "no third place"
    held = bench.submit()
    assert held.nodes == []
    bench.dispatcher.release(second, first)
    assert held.nodes == ["n1"], "the loser's place is used at once"
    bench.done(first)
    assert bench.in_flight() == {"n0": 0, "n1": 1}


@at()
async def test_a_request_that_only_its_home_can_serve_is_not_hedged(bench: Bench) -> None:
    first = bench.submit()
    first.response_id = "resp_1"
    bench.done(first)
    pinned = bench.submit(Asked(previous_response_id="resp_1"))
    assert pinned.nodes == first.nodes
    assert bench.dispatcher.hedge(pinned) is None, "no other node has what it goes on from"
    assert sum(bench.in_flight().values()) == 1


@at(nodes=0)
async def test_a_hedge_keeps_to_tokens_in_flight(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.fleet.add(NodeSpec(name, f"http://{name}:1", ("m",), 4, max_tokens=150.0))
    first, second = bench.submit(), bench.submit()
    assert first.nodes + second.nodes == ["a", "b"]
    assert bench.dispatcher.hedge(first) is None, "b has tokens in flight, and no room for as many again"
    bench.done(second)
    assert bench.dispatcher.hedge(first) == bench.fleet.find("b")
    waiting = bench.submit()
    assert waiting.nodes == [], "the hedge has taken b's tokens"
    bench.done(first)
    assert waiting.nodes == ["a"]
    assert bench.submit().nodes == ["b"], "and has given them back"


@at(slots=2, reserve_frac=0.5)
async def test_a_hedge_of_background_work_leaves_the_reserve_free(bench: Bench) -> None:
    idle = Asked()
    idle.background = True
    bench.submit(idle)
    assert idle.nodes == ["n0"]
    held = bench.submit()
    assert held.nodes == ["n1"]
    assert bench.dispatcher.hedge(idle) is None, "n1's last place is for others"
    assert bench.dispatcher.hedge(held) is not None


@at()
async def test_what_waits_starts_when_a_node_comes_or_serves_its_model(bench: Bench) -> None:
    running = bench.submit(), bench.submit()
    held, other = bench.submit(), bench.submit(Asked("other"))
    assert (held.nodes, other.nodes) == ([], [])
    bench.add("n2")
    assert held.nodes == ["n2"]
    node = bench.add("n3", 2, models=())
    assert not bench.dispatcher.registry.ready("other")
    bench.fleet.set_listing(node, Listing(("other",), {}))
    assert other.nodes == ["n3"]
    assert bench.in_flight() == {"n0": 1, "n1": 1, "n2": 1, "n3": 1}
    for exchange in (*running, held, other):
        bench.done(exchange)
    assert set(bench.in_flight().values()) == {0}


@at()
async def test_a_node_that_is_withheld_gets_nothing(bench: Bench) -> None:
    node = bench.fleet.nodes[0]
    bench.fleet.hold(node, Hold.DRAINING, "a test")
    assert [bench.submit().nodes for _ in range(2)] == [["n1"], []]
    bench.fleet.release(node, Hold.DRAINING)
    assert bench.in_flight() == {"n0": 1, "n1": 1}


@at()
async def test_another_policy_goes_on_with_what_is_there(bench: Bench) -> None:
    running = [bench.submit(), bench.submit()]
    held = bench.submit()
    bench.dispatcher.use(DispatchRules(policy_choice("round-robin")))
    assert list(bench.dispatcher.pools) == ["round-robin"]
    assert bench.in_flight() == {"n0": 1, "n1": 1}
    bench.done(running[1])
    assert held.nodes == ["n1"]
    bench.dispatcher.abort(running[0])
    bench.done(held)
    assert bench.in_flight() == {"n0": 0, "n1": 0}


@at()
async def test_a_shadow_that_a_reload_brings_is_asked(bench: Bench) -> None:
    bench.dispatcher.use(DispatchRules(policy_choice("least-connections", "random")))
    bench.submit()
    assert bench.dispatcher.log.shadow.figures().decisions == 1


class Last(Steering):
    """Plans for the last node, and only from the second plan on."""

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        weights = np.ones(view.context.n_nodes)
        weights[-1] = 100.0 if view.context.now_s > 0.0 else 1.0
        return empty_plan()._replace(weights=weights)


@at(nodes=1, slots=3)
async def test_what_runs_goes_on_where_its_node_may_hold_less_now(bench: Bench) -> None:
    running = [bench.submit() for _ in range(3)]
    bench.fleet.set_capacity(bench.fleet.nodes[0], 1)
    bench.dispatcher.use(DispatchRules(policy_choice("random")))
    assert bench.in_flight() == {"n0": 3}
    waiting = bench.submit()
    for exchange in running[:2]:
        bench.done(exchange)
        assert waiting.nodes == []
    bench.done(running[2])
    assert waiting.nodes == ["n0"]
    bench.done(waiting)
    assert bench.in_flight() == {"n0": 0}
    assert [x.nodes for x in running] == [["n0"]] * 3


@at(nodes=1)
async def test_what_runs_goes_on_where_its_model_has_left(bench: Bench) -> None:
    running = bench.submit()
    node = bench.add("free", models=())
    bench.fleet.set_listing(node, Listing(("m",), {}))
    on_it = bench.submit()
    assert on_it.nodes == ["free"]
    bench.fleet.set_listing(node, Listing((), {}))
    assert bench.in_flight() == {"n0": 1, "free": 1}
    for exchange in (running, on_it):
        bench.done(exchange)
    assert bench.in_flight() == {"n0": 0, "free": 0}
    pool = bench.pool
    assert list(pool.live.nodes.outstanding_s) == [0.0, 0.0]


@at(nodes=1)
async def test_what_runs_stays_with_the_node_whose_name_another_has_taken(bench: Bench) -> None:
    running = bench.submit()
    spec = replace(bench.fleet.state(bench.fleet.nodes[0]).spec, url="http://elsewhere:1")
    bench.fleet.replace(bench.fleet.nodes[0], spec, "config")
    fresh = bench.submit()
    assert [x.attempts[0].node.idx for x in (running, fresh)] == [0, 1]
    for exchange in (running, fresh):
        bench.done(exchange)
    bench.dispatcher.catch_up()
    assert [node.in_flight for node in bench.fleet.nodes] == [0, 0]
    pool = bench.pool
    assert list(pool.live.nodes.in_flight) == [0, 0]


@at()
async def test_clients_invent_no_classes(bench: Bench) -> None:
    bench.add("unasked", models=())
    for k in range(100):
        bench.submit(Asked(f"invented-{k}"))
    assert len(bench.dispatcher.registry.class_keys) == 1


@at()
async def test_a_lost_node_is_avoided_after_a_reload_too(bench: Bench) -> None:
    first, other = bench.submit(), bench.submit()
    bench.dispatcher.lost(first, Cause.RESET)  # the other node is full: it waits
    bench.dispatcher.use(DispatchRules(policy_choice("random")))
    assert first.nodes == ["n0"]
    bench.done(other)
    assert first.nodes == ["n0", "n1"]


@at()
async def test_a_request_has_another_node_where_one_gets_work_and_serves_its_model(bench: Bench) -> None:
    bench.add("other", models=("x",))
    first, other = bench.submit(), bench.submit()
    assert bench.dispatcher.has_another(first), "it is full, but only for now"
    bench.fleet.hold(other.attempts[0].node, Hold.CHECKS, "gone")
    assert not bench.dispatcher.has_another(first)


@at(nodes=1)
async def test_where_there_is_no_other_node_a_lost_request_waits_for_the_same(bench: Bench) -> None:
    alone = bench.submit()
    bench.dispatcher.lost(alone, Cause.CONNECT)
    assert alone.nodes == ["n0", "n0"]
    node = alone.attempts[0].node
    bench.fleet.hold(node, Hold.BREAKER, "cannot be connected")
    bench.dispatcher.lost(alone, Cause.CONNECT)
    assert alone.nodes == ["n0", "n0"]
    bench.fleet.release(node, Hold.BREAKER)
    assert alone.nodes == ["n0", "n0", "n0"]


@at()
async def test_a_shadow_decides_by_plans_of_its_own(bench: Bench) -> None:
    live = policy_choice("least-connections")
    bench.dispatcher.use(DispatchRules(replace(live, shadow=Last(plan_period_s=1.0))))
    await bench.dispatcher.open()
    pool = bench.pool
    first = bench.submit()
    assert pool.live.decisions.shadow_idx[first.row] == 0
    bench.done(first)
    await asyncio.sleep(1.5)
    second = bench.submit()
    assert (second.nodes, pool.live.decisions.shadow_idx[second.row]) == (["n0"], 1)
    assert bench.dispatcher.planning() == (PlanningLog(), PlanningLog(made=2))


BOTH = {"models": ("m", "other"), "max_requests": 1}


@at("least-connections", BOTH, BOTH)
async def test_pools_share_the_places_of_nodes(bench: Bench) -> None:
    bench.dispatcher.use(
        DispatchRules(policy_choice("least-connections"), {"other": policy_choice("random")})
    )
    bench.fleet.set_listing(bench.fleet.nodes[0], Listing(("m", "other"), {}))
    by_one = bench.submit(), bench.submit()
    held = bench.submit(Asked("other"))
    assert held.nodes == []
    bench.in_flight()
    bench.done(next(x for x in by_one if x.nodes == ["n0"]))
    assert held.nodes == ["n0"]
    assert bench.in_flight() == {"n0": 1, "n1": 1}


@at()
async def test_sessions_and_responses_return_to_their_node(bench: Bench) -> None:
    first = Asked()
    first.session = "s"
    bench.submit(first)
    bench.done(first)
    for _ in range(4):
        again = Asked()
        again.session = "s"
        bench.submit(again)
        assert again.nodes == first.nodes
        bench.dispatcher.abort(again)
    full = [bench.submit(), bench.submit()]
    again = Asked()
    again.session = "s"
    bench.submit(again)
    assert again.nodes == [], "it waits where all are full"
    other = next(x for x in full if x.nodes != first.nodes)
    bench.done(other)
    assert again.nodes == other.nodes, "and goes elsewhere rather than wait"


@at()
async def test_homes_are_those_of_a_tenant(bench: Bench) -> None:
    mine, others = TENANT, Tenant("other", 1)
    first = Asked(tenant=mine)
    first.session, first.response_id = "s", "resp_1"
    bench.submit(first)
    bench.done(first)
    assert first.nodes == ["n0"]
    busy = bench.submit()
    assert busy.nodes == ["n0"]
    foreign = bench.submit(Asked(tenant=others, previous_response_id="resp_1"))
    assert foreign.nodes == []
    assert foreign.refusal is not None
    assert (foreign.refusal.status, foreign.refusal.code) == (404, "response_not_found")
    unknown = bench.submit(Asked(tenant=others, previous_response_id="resp_2"))
    assert unknown.nodes == ["n1"], "of what nobody knows any node may know"
    unknown.response_id = "resp_1"
    bench.done(unknown)
    same = Asked(tenant=others)
    same.session = "s"
    assert bench.submit(same).nodes == ["n1"]
    bench.dispatcher.abort(busy)
    again = bench.submit(Asked(tenant=mine, previous_response_id="resp_1"))
    assert again.nodes == ["n0"], "nobody takes it from who made it"


@at()
async def test_forgotten_homes_are_nobodys(bench: Bench) -> None:
    homes, other = SessionAffinity(bench.fleet, 0, most=2), Asked(tenant=Tenant("other", 1))
    for k in range(3):
        homes.remember(Asked(), f"resp_{k}", bench.fleet.nodes[0])
    assert homes.node_of(Asked(previous_response_id="resp_0")) == (-1, False)
    assert not homes.is_foreign(other, "resp_0")
    assert homes.is_foreign(other, "resp_2")
    assert homes.node_of(Asked(previous_response_id="resp_2")) == (0, True)


@at(policy="least-connections+vtc")
async def test_tenants_are_charged_for_what_was_used(bench: Bench) -> None:
    tenants = Tenant("a", 0, weight=2.0), Tenant("b", 1)
    pool = bench.pool
    exchanges = [bench.submit(Asked(tenant=tenant)) for tenant in tenants]
    assert list(pool.live.virtual_counters[:2]) == [50.0, 50.0 + 100.0], "nobody gains by coming late"
    bench.dispatcher.progress(exchanges[0], 3)
    exchanges[0].streamed_chunks = 3
    assert pool.live.virtual_counters[0] == 53.0
    exchanges[0].usage = Usage(prompt_tokens=120, completion_tokens=10)
    bench.done(exchanges[0])
    assert pool.live.virtual_counters[0] == (120 + 2 * 10) / 2.0
    assert exchanges[0].actual_units == 10 + 0.05 * 120


@at(held_max=1, max_wait_s=2.0)
async def test_a_full_queue_asks_for_no_longer_a_pause_than_its_requests_may_wait(bench: Bench) -> None:
    """Before anything was served the estimates are guesses: here of 4.2 s for each node."""

    asked = [Asked() for _ in range(4)]
    for exchange in asked:
        assert exchange.facts is not None
        exchange.facts.max_tokens = 8000.0
        bench.submit(exchange)
    assert [exchange.refusal is None for exchange in asked] == [True, True, True, False]
    refusal = asked[-1].refusal
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("queue_full", 2.0)


@at(held_max=2, max_wait_s=5.0, max_wait_no_ready_node_s=1.0)
async def test_refusals_say_why(bench: Bench) -> None:
    bench.submit(), bench.submit()
    hurried = Asked()
    hurried.deadline_s = 2.0
    waiting = bench.submit(hurried)
    patient = bench.submit()
    full = bench.submit()
    assert full.refusal is not None
    assert (full.refusal.status, full.refusal.code) == (503, "queue_full")
    assert full.refusal.retry_after_s >= 1.0
    await asyncio.sleep(2.5)
    assert waiting.refusal is not None
    assert waiting.refusal.status == 504
    await asyncio.sleep(3.0)
    assert patient.refusal is not None
    assert patient.refusal.code == "no_capacity"
    nobody = bench.submit(Asked("unknown"))
    await asyncio.sleep(1.5)
    assert nobody.refusal is not None, "held for a node, not for ever"
    assert nobody.refusal.status == 503


@at(max_wait_s=5.0, max_wait_no_ready_node_s=1.0)
async def test_behind_the_one_request_of_a_trial_waits_are_short(bench: Bench) -> None:
    for node in bench.fleet.nodes:
        bench.fleet.hold(node, Hold.BREAKER, "nothing connects")
    bench.fleet.release(bench.fleet.nodes[0], Hold.BREAKER)
    tried = bench.submit()
    assert tried.nodes == ["n0"], "the node has room for one"
    waiting = bench.submit()
    await asyncio.sleep(1.5)
    assert waiting.refusal is not None
    assert (waiting.refusal.status, waiting.refusal.code) == (503, "no_capacity")
    bench.fleet.end_trial(bench.fleet.nodes[0])
    usual = bench.submit(), bench.submit()
    await asyncio.sleep(1.5)
    assert [exchange.refusal for exchange in usual] == [None, None]


@at(max_wait_s=5.0, max_wait_no_ready_node_s=1.0)
async def test_waits_are_short_for_a_request_that_has_lost_the_last_node(bench: Bench) -> None:
    lost, hurried = Asked(), Asked()
    hurried.deadline_s = 0.5
    bench.submit(lost), bench.submit(hurried)
    for node in bench.fleet.nodes:
        bench.fleet.hold(node, Hold.BREAKER, "nothing connects")
    bench.dispatcher.lost(lost, Cause.CONNECT), bench.dispatcher.lost(hurried, Cause.CONNECT)
    assert [lost.refusal, hurried.refusal] == [None, None], "the node may come back at once"
    await asyncio.sleep(1.5)
    assert lost.refusal is not None
    assert (lost.refusal.status, lost.refusal.code) == (503, "no_capacity")
    assert hurried.refusal is not None
    assert (hurried.refusal.status, hurried.refusal.is_late) == (504, True)


@at(max_wait_s=5.0)
async def test_what_has_expired_is_told_by_the_deadline_and_not_by_the_clock(bench: Bench) -> None:
    pool = bench.pool
    bench.submit(), bench.submit()
    hurried, patient = Asked(), Asked()
    hurried.deadline_s = bench.loop.time() + 2.0
    patient.deadline_s = bench.loop.time() + 6.0
    bench.submit(hurried), bench.submit(patient)
    bench.dispatcher.turn(pool, bench.dispatcher.now_s() + 2.0)  # as a timer that fires early
    assert bench.loop.time() < hurried.deadline_s
    assert hurried.refusal is not None
    assert (hurried.refusal.status, hurried.refusal.is_late) == (504, True)
    patient.deadline_s = bench.loop.time()  # as if the turn at which it may wait no longer came late
    bench.dispatcher.turn(pool, bench.dispatcher.now_s() + 5.0)
    assert patient.refusal is not None
    assert (patient.refusal.status, patient.refusal.code) == (503, "no_capacity")


@at()
async def test_plans_begin_anew_where_the_nodes_change_and_past_ones_are_not_made_up_for(
    bench: Bench,
) -> None:
    steering = Steering(plan_period_s=1.0)
    bench.dispatcher.close()
    bench.dispatcher = bench.decides(PolicyChoice("steering", steering, steering))
    pool = bench.pool
    await bench.dispatcher.open()
    await asyncio.sleep(10.5)
    assert pool.planning.made == 11
    planner = pool.planner
    bench.add("n2")
    await asyncio.sleep(0.1)
    assert pool.planning.made == 11 + 1
    await asyncio.sleep(2.0)
    assert pool.planning.made == 11 + 3
    assert pool.planner is planner, "the process that plans is kept"


@at(policy="least-connections+vtc")
async def test_images_are_charged_by_their_steps_whatever_comes_back(bench: Bench) -> None:
    pool = bench.pool
    picture = Asked(tenant=Tenant("a", 0, weight=2.0), images=3, steps=20)
    picture.endpoint = Endpoint("/v1/images/generations", ("POST",), Kind.IMAGE)
    bench.submit(picture)
    charged = (100.0 + 2.0 * 3 * 20) / 2.0  # the prompt, and a unit as a token of output
    assert pool.live.virtual_counters[0] == charged
    bench.dispatcher.progress(picture, 7)
    picture.usage = Usage(prompt_tokens=50, completion_tokens=4000)
    bench.done(picture)
    assert pool.live.virtual_counters[0] == charged
    assert picture.actual_units == 3 * 20


@at()
async def test_a_receipt_tells_what_the_decision_rested_on(bench: Bench) -> None:
    first, second, third = (bench.submit() for _ in range(3))
    one, two = first.decision.record, second.decision.record
    assert first.decision.nodes == ("n0", "n1")
    assert (first.decision.node_idx, one["in_flight"].tolist()[:2]) == ((0, 1), [0, 0])
    assert (two["node_idx"][0], two["in_flight"][0]) == (1, 0)
    assert one["predicted_s"][0] == one["estimate_s"] == first.estimate_s > 0.0
    bench.done(second)
    assert third.decision.record["decisions"] == 2, "offered when it came, and when a place was free"
    bench.dispatcher.lost(first, Cause.RESET)
    assert first.decision.record["decisions"] == 1
    bench.done(third)
    assert (first.nodes, first.decision.record["decisions"]) == (["n0", "n1"], 3)


@at()
async def test_plans_that_fail_are_counted_and_good_ones_are_told_also_once_their_policy_is_gone(
    bench: Bench,
) -> None:
    told: list[tuple[str, float]] = []

    class Told(DecisionListener):
        def plan_changed(self, policy: str, plan: Plan) -> None:
            told.append((policy, plan.params[0]))

    bench.dispatcher.log.listeners.append(Told())
    for answer in ("raise", "nan", "plan"):
        gate = Gate(plan_period_s=1.0, answer=answer)
        bench.dispatcher.use(DispatchRules(PolicyChoice(answer, gate, gate)))
        await bench.dispatcher.open()
        await asyncio.sleep(1.5)
    bench.dispatcher.use(DispatchRules(policy_choice("random")))
    assert bench.dispatcher.planning() == (PlanningLog(made=2, raised=2, invalid=2), PlanningLog())
    assert told == [("plan", 1.0), ("plan", 1.0)]


@at()
async def test_estimates_are_the_best_of_all_types(bench: Bench) -> None:
    pool = bench.pool
    c = bench.submit().class_idx
    pool.live.fixed_s[c] = [2.0, 3.0]
    pool.live.unit_s[c] = [1.0, 0.5]
    assert pool.live.best_estimate_s(c, 1.0) == 3.0
    assert pool.live.best_estimate_s(c, 10.0) == 8.0
    assert pool.live.best_estimate_s(c + 1, 1.0) == 1.0, "no type serves it now"


@at()
async def test_a_tokenizer_that_counts_prompts_otherwise_does_not_shift_the_estimates(bench: Bench) -> None:
    """Texts of 100 tokens by their length, 300 by their node, 2 s each."""

    def embedding() -> Asked:
        asked = Asked()
        asked.endpoint = Endpoint("/v1/embeddings", ("POST",), Kind.EMBEDDING, replayable=True)
        asked.usage = Usage(300, 0)
        return asked

    for _ in range(8):
        asked = bench.submit(embedding())
        asked.attempts[-1].ended_s = asked.attempts[-1].begun_s + 2.0
        bench.dispatcher.done((asked,))
        assert asked.actual_units == 15.0, "as the node says"
    assert bench.submit(embedding()).estimate_s == pytest.approx(2.0, rel=1e-3)


@benched("least-connections", *[{"models": ("m", "x"), "max_requests": 1, "type_name": ""}] * 2)
async def test_policies_see_how_many_waiting_requests_want_a_model(bench: Bench) -> None:
    running = [bench.submit() for _ in range(2)]
    for model in ("x", "m", "x"):
        bench.submit(Asked(model))
    items = bench.dispatcher.registry.shape.items
    held = bench.view().held_of_item
    assert {item: held[i] for i, item in enumerate(items)} == {"m": 1, "x": 2}
    for exchange in running:
        bench.done(exchange)
    assert held.sum() == 1
