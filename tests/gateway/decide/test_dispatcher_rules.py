"""Which policy is in charge of a request, also of one that runs while the rules change."""

from __future__ import annotations

from functools import partial

from support.gateway.dispatch_bench import Asked, Bench, benched, on_bench
from trimtab.gateway.decide.dispatch_rules import DispatchRules, policy_choice
from trimtab.gateway.model import Tenant

TURNS, LEAST, ANY = policy_choice("round-robin"), policy_choice("least-connections"), policy_choice("random")
TWO_MODELS = {"models": ("a", "b"), "max_requests": 4, "type_name": ""}
at = partial(benched, "round-robin", TWO_MODELS, TWO_MODELS)


def submitted(bench: Bench, model: str, route: str = "") -> Asked:
    asked = bench.submit(Asked(model, route=route))
    assert asked.attempts, asked.refusal
    return asked


def held(bench: Bench, spec: str) -> set[str]:
    """Models of the requests that a policy is in charge of."""
    pool = bench.dispatcher.pools[spec]
    return {one.facts.model for one in pool.exchanges.values() if one.facts}


@at(by_model={"a": LEAST}, by_route={"r": ANY})
async def test_a_routes_policy_goes_before_its_models(bench: Bench) -> None:
    for model, route, spec in (
        ("a", "r", "random"),
        ("a", "", "least-connections"),
        ("b", "", "round-robin"),
    ):
        asked = submitted(bench, model, route)
        assert asked.row in bench.dispatcher.pools[spec].exchanges
        bench.done(asked)


@at(by_model={"a": LEAST})
async def test_requests_in_flight_follow_their_model_to_its_new_policy(bench: Bench) -> None:
    running = [submitted(bench, model) for model in "abab"]
    bench.dispatcher.use(DispatchRules(TURNS, {"b": LEAST}))  # both policies stay, the models change places
    assert (held(bench, "round-robin"), held(bench, "least-connections")) == ({"a"}, {"b"})
    assert sum(node.in_flight for node in bench.fleet.nodes) == 4
    bench.dispatcher.done(running)
    assert bench.in_flight() == {"n0": 0, "n1": 0}
    assert not any(pool.exchanges for pool in bench.dispatcher.pools.values())


@at(by_model={"a": LEAST}, by_route={"r": ANY})
async def test_a_policy_that_goes_leaves_its_requests_to_the_others(bench: Bench) -> None:
    running = [submitted(bench, "a"), submitted(bench, "a", "r"), submitted(bench, "b")]
    bench.dispatcher.use(DispatchRules(LEAST))
    assert list(bench.dispatcher.pools) == ["least-connections"]
    bench.dispatcher.done(running)
    assert bench.in_flight() == {"n0": 0, "n1": 0}


@at()
async def test_a_shorter_queue_holds_from_the_change_on(bench: Bench) -> None:
    running = [submitted(bench, "a") for _ in range(8)]
    bench.dispatcher.use(DispatchRules(TURNS, held_max=1))
    waiting, refused = Asked("a"), Asked("a")
    bench.dispatcher.submit(waiting)
    bench.submit(refused)
    assert waiting.refusal is None
    assert refused.refusal is not None
    assert refused.refusal.code == "queue_full"
    bench.dispatcher.done(running)
    assert waiting.attempts


@benched("round-robin+vtc")
async def test_tenants_beyond_those_at_the_start_have_accounts(bench: Bench) -> None:
    bench.dispatcher.make_room_for_tenants(900)
    asked = bench.submit(Asked(tenant=Tenant("late", 899)))
    assert asked.attempts
    bench.dispatcher.progress(asked, 3)
    assert bench.pool.live.virtual_counters[899] > 0


def test_weights_of_tenants_and_costs_of_models_reach_their_orders() -> None:
    """Eight slots are taken; then of the waiting, the costly model's and the heavy tenant's go first."""
    started: list[str] = []

    async def test(bench: Bench) -> None:
        light, heavy = Tenant("light", 0), Tenant("heavy", 1, weight=3.0)
        running = [Asked("a", tenant) for tenant in (light, heavy) * 4]
        for asked in running:
            bench.dispatcher.submit(asked)
        bench.dispatcher.decide()
        waiting = {"a of light": Asked("a", light), "b of heavy": Asked("b", heavy)}
        for asked in waiting.values():
            bench.dispatcher.submit(asked)
        bench.dispatcher.decide()
        assert not any(asked.attempts for asked in waiting.values())
        bench.done(running[0])
        started[:] = [name for name, asked in waiting.items() if asked.attempts]

    def first(order: str, holding_cost: dict[str, float]) -> str:
        policy = f"least-connections+{order}"
        on_bench(test, policy, TWO_MODELS, TWO_MODELS, holding_cost=holding_cost)
        assert len(started) == 1
        return started[0]

    assert first("fcfs", {}) == "a of light"
    assert first("drf", {}) == "b of heavy"  # light holds 3 of 8 slots, heavy 4 at a weight of 3
    assert first("cmu", {}) == "a of light"
    assert first("cmu", {"b": 5.0}) == "b of heavy"
