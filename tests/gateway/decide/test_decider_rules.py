"""Which policy is in charge of a request, also of one that runs while the rules change."""

from __future__ import annotations

import asyncio

from trimtab.gateway.decide.dispatcher import Decider
from trimtab.gateway.decide.pool import chosen
from trimtab.gateway.decide.rules import Rules
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Refusal, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_spec import NodeSpec

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT)
TURNS, LEAST, ANY = chosen("round-robin"), chosen("least-connections"), chosen("random")


class Sent(Exchange):
    """Notes where it is sent."""

    def __init__(self, model: str, route: str = "") -> None:
        super().__init__()
        self.facts, self.endpoint, self.route = Facts(model), CHAT, route

    def start(self, node: Node) -> None:
        self.attempts.append(Attempt(node, 0.0))

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


async def decider_of(rules: Rules) -> tuple[Decider, Fleet]:
    loop = asyncio.get_running_loop()
    fleet = Fleet(loop)
    for k in range(2):
        fleet.add(NodeSpec(f"n{k}", f"http://127.0.0.1:{k + 1}", ("a", "b"), 4))
    decider = Decider(loop, fleet, rules, inline_plans=True, mode="interpreted")
    await decider.open()
    return decider, fleet


def submitted(decider: Decider, model: str, route: str = "") -> Sent:
    exchange = Sent(model, route)
    decider.submit(exchange)
    decider.decide()
    assert exchange.attempts, exchange.refusal
    return exchange


def held(decider: Decider, spec: str) -> set[str]:
    """Models of the requests that a policy is in charge of."""
    pool = decider.pools[spec]
    return {entry.exchange.facts.model for entry in pool.entries.values() if entry.exchange.facts}


def test_a_routes_policy_goes_before_its_models() -> None:
    async def main() -> None:
        decider, fleet = await decider_of(Rules(TURNS, {"a": LEAST}, {"r": ANY}))
        for model, route, spec in (
            ("a", "r", "random"),
            ("a", "", "least-connections"),
            ("b", "", "round-robin"),
        ):
            exchange = submitted(decider, model, route)
            assert exchange.row in decider.pools[spec].entries
            decider.done((exchange,))
        decider.close()
        fleet.close()

    asyncio.run(main())


def test_requests_in_flight_follow_their_model_to_its_new_policy() -> None:
    async def main() -> None:
        decider, fleet = await decider_of(Rules(TURNS, {"a": LEAST}))
        running = [submitted(decider, model) for model in "abab"]
        decider.use(Rules(TURNS, {"b": LEAST}))  # both policies stay, the models change places
        assert (held(decider, "round-robin"), held(decider, "least-connections")) == ({"a"}, {"b"})
        assert sum(node.in_flight for node in fleet.nodes) == 4
        for exchange in running:
            decider.done((exchange,))
        assert [node.in_flight for node in fleet.nodes] == [0, 0]
        decider.catch_up()
        for pool in decider.pools.values():
            assert not pool.entries
            assert pool.live.nodes.in_flight.tolist() == [0, 0]
        decider.close()
        fleet.close()

    asyncio.run(main())


def test_a_policy_that_goes_leaves_its_requests_to_the_others() -> None:
    async def main() -> None:
        decider, fleet = await decider_of(Rules(TURNS, {"a": LEAST}, {"r": ANY}))
        running = [submitted(decider, "a"), submitted(decider, "a", "r"), submitted(decider, "b")]
        decider.use(Rules(LEAST))
        assert list(decider.pools) == ["least-connections"]
        for exchange in running:
            decider.done((exchange,))
        decider.catch_up()
        assert decider.pools["least-connections"].live.nodes.in_flight.tolist() == [0, 0]
        decider.close()
        fleet.close()

    asyncio.run(main())


def test_a_shorter_queue_holds_from_the_change_on() -> None:
    async def main() -> None:
        decider, fleet = await decider_of(Rules(TURNS))
        running = [submitted(decider, "a") for _ in range(8)]
        decider.use(Rules(TURNS, held_max=1))
        waiting, refused = Sent("a"), Sent("a")
        decider.submit(waiting)
        decider.submit(refused)
        decider.decide()
        assert waiting.refusal is None
        assert refused.refusal is not None
        assert refused.refusal.code == "queue_full"
        for exchange in running:
            decider.done((exchange,))
        assert waiting.attempts
        decider.done((waiting,))
        decider.close()
        fleet.close()

    asyncio.run(main())


def test_tenants_beyond_those_at_the_start_have_accounts() -> None:
    async def main() -> None:
        decider, fleet = await decider_of(Rules(chosen("round-robin+vtc")))
        decider.make_room_for_tenants(900)
        exchange = Sent("a")
        exchange.tenant = Tenant("late", 899)
        decider.submit(exchange)
        decider.decide()
        assert exchange.attempts
        decider.progress(exchange, 3)
        pool = decider.pools["round-robin+vtc"]
        assert pool.live.virtual_counters[899] > 0
        decider.done((exchange,))
        decider.close()
        fleet.close()

    asyncio.run(main())
