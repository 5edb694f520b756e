"""Which policy is in charge of a request, also of one that runs while the rules change."""

from __future__ import annotations

import asyncio

from trimtab.gateway.decide.dispatch_rules import DispatchRules, policy_choice
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Refusal, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_spec import NodeSpec

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT)
TURNS, LEAST, ANY = policy_choice("round-robin"), policy_choice("least-connections"), policy_choice("random")


class Sent(Exchange):
    """Notes where it is sent."""

    def __init__(self, model: str, route: str = "") -> None:
        super().__init__()
        self.facts, self.endpoint, self.route = Facts(model), CHAT, route

    def start(self, node: Node) -> None:
        self.attempts.append(Attempt(node, 0.0))

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


async def decider_of(rules: DispatchRules) -> tuple[PolicyDispatcher, Fleet]:
    loop = asyncio.get_running_loop()
    fleet = Fleet(loop)
    for k in range(2):
        fleet.add(NodeSpec(f"n{k}", f"http://127.0.0.1:{k + 1}", ("a", "b"), 4))
    dispatcher = PolicyDispatcher(loop, fleet, rules, inline_plans=True, mode="interpreted")
    await dispatcher.open()
    return dispatcher, fleet


def submitted(dispatcher: PolicyDispatcher, model: str, route: str = "") -> Sent:
    exchange = Sent(model, route)
    dispatcher.submit(exchange)
    dispatcher.decide()
    assert exchange.attempts, exchange.refusal
    return exchange


def held(dispatcher: PolicyDispatcher, spec: str) -> set[str]:
    """Models of the requests that a policy is in charge of."""
    pool = dispatcher.pools[spec]
    return {one.facts.model for one in pool.exchanges.values() if one.facts}


def test_a_routes_policy_goes_before_its_models() -> None:
    async def main() -> None:
        dispatcher, fleet = await decider_of(DispatchRules(TURNS, {"a": LEAST}, {"r": ANY}))
        for model, route, spec in (
            ("a", "r", "random"),
            ("a", "", "least-connections"),
            ("b", "", "round-robin"),
        ):
            exchange = submitted(dispatcher, model, route)
            assert exchange.row in dispatcher.pools[spec].exchanges
            dispatcher.done((exchange,))
        dispatcher.close()
        fleet.close()

    asyncio.run(main())


def test_requests_in_flight_follow_their_model_to_its_new_policy() -> None:
    async def main() -> None:
        dispatcher, fleet = await decider_of(DispatchRules(TURNS, {"a": LEAST}))
        running = [submitted(dispatcher, model) for model in "abab"]
        dispatcher.use(DispatchRules(TURNS, {"b": LEAST}))  # both policies stay, the models change places
        assert (held(dispatcher, "round-robin"), held(dispatcher, "least-connections")) == ({"a"}, {"b"})
        assert sum(node.in_flight for node in fleet.nodes) == 4
        for exchange in running:
            dispatcher.done((exchange,))
        assert [node.in_flight for node in fleet.nodes] == [0, 0]
        dispatcher.catch_up()
        for pool in dispatcher.pools.values():
            assert not pool.exchanges
            assert pool.live.nodes.in_flight.tolist() == [0, 0]
        dispatcher.close()
        fleet.close()

    asyncio.run(main())


def test_a_policy_that_goes_leaves_its_requests_to_the_others() -> None:
    async def main() -> None:
        dispatcher, fleet = await decider_of(DispatchRules(TURNS, {"a": LEAST}, {"r": ANY}))
        running = [submitted(dispatcher, "a"), submitted(dispatcher, "a", "r"), submitted(dispatcher, "b")]
        dispatcher.use(DispatchRules(LEAST))
        assert list(dispatcher.pools) == ["least-connections"]
        for exchange in running:
            dispatcher.done((exchange,))
        dispatcher.catch_up()
        assert dispatcher.pools["least-connections"].live.nodes.in_flight.tolist() == [0, 0]
        dispatcher.close()
        fleet.close()

    asyncio.run(main())


def test_a_shorter_queue_holds_from_the_change_on() -> None:
    async def main() -> None:
        dispatcher, fleet = await decider_of(DispatchRules(TURNS))
        running = [submitted(dispatcher, "a") for _ in range(8)]
        dispatcher.use(DispatchRules(TURNS, held_max=1))
        waiting, refused = Sent("a"), Sent("a")
        dispatcher.submit(waiting)
        dispatcher.submit(refused)
        dispatcher.decide()
        assert waiting.refusal is None
        assert refused.refusal is not None
        assert refused.refusal.code == "queue_full"
        for exchange in running:
            dispatcher.done((exchange,))
        assert waiting.attempts
        dispatcher.done((waiting,))
        dispatcher.close()
        fleet.close()

    asyncio.run(main())


def test_tenants_beyond_those_at_the_start_have_accounts() -> None:
    async def main() -> None:
        dispatcher, fleet = await decider_of(DispatchRules(policy_choice("round-robin+vtc")))
        dispatcher.make_room_for_tenants(900)
        exchange = Sent("a")
        exchange.tenant = Tenant("late", 899)
        dispatcher.submit(exchange)
        dispatcher.decide()
        assert exchange.attempts
        dispatcher.progress(exchange, 3)
        pool = dispatcher.pools["round-robin+vtc"]
        assert pool.live.virtual_counters[899] > 0
        dispatcher.done((exchange,))
        dispatcher.close()
        fleet.close()

    asyncio.run(main())


def test_weights_of_tenants_and_costs_of_models_reach_their_orders() -> None:
    """Eight slots are taken; then of the waiting, the costly model's and the heavy tenant's go first."""

    async def first_started(order: str, holding_cost: dict[str, float]) -> str:
        rules = DispatchRules(policy_choice(f"least-connections+{order}"), holding_cost=holding_cost)
        dispatcher, fleet = await decider_of(rules)
        light, heavy = Tenant("light", 0), Tenant("heavy", 1, weight=3.0)
        running = []
        for tenant in (light, heavy) * 4:
            exchange = Sent("a")
            exchange.tenant = tenant
            dispatcher.submit(exchange)
            running.append(exchange)
        dispatcher.decide()
        waiting = {name: Sent(name[0]) for name in ("a of light", "b of heavy")}
        for name, exchange in waiting.items():
            exchange.tenant = heavy if name.endswith("heavy") else light
            dispatcher.submit(exchange)
        dispatcher.decide()
        assert not any(exchange.attempts for exchange in waiting.values())
        dispatcher.done(running[:1])
        started = [name for name, exchange in waiting.items() if exchange.attempts]
        dispatcher.close()
        fleet.close()
        assert len(started) == 1
        return started[0]

    def first(order: str, holding_cost: dict[str, float]) -> str:
        return asyncio.run(first_started(order, holding_cost))

    assert first("fcfs", {}) == "a of light"
    assert first("drf", {}) == "b of heavy"  # light holds 3 of 8 slots, heavy 4 at a weight of 3
    assert first("cmu", {}) == "a of light"
    assert first("cmu", {"b": 5.0}) == "b of heavy"
