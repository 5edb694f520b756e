"""Plans place models and adapters, nodes load them by their own calls, and wrong placements are undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway.loading_backend import LoadingBackend
from support.gateway.served_gateway import serving_here
from support.waiting import until
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.decide.registry import SignalFigures
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.observe.exposition import exposition

CHAT = "/v1/chat/completions"
PLACES = """
from dataclasses import dataclass
import numpy as np
from trimtab import Need, Policy
from trimtab.domain.view import empty_plan

@dataclass(frozen=True)
class Places(Policy):
    \"\"\"Places all items on node 1, or nothing; prefers a node that holds what is needed.\"\"\"

    name = "places"
    needs = frozenset({Need.PLACEMENT})
    plan_period_s: float = 0.2
    places: str = "always"  # or never; or idle: until a request has ended

    def plan(self, view, history, waiting, rollout):
        placement = np.zeros((view.context.n_nodes, len(view.item_gib)), np.uint8)
        is_idle = not np.isfinite(history.finish_s).any()
        placement[1] = self.places == "always" or (self.places == "idle" and is_idle)
        return empty_plan()._replace(placement=placement)

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        item = work.adapter_idx if work.adapter_idx >= 0 else work.model_idx
        n = 0
        for held in (1, 0):
            for j in range(view.context.n_nodes):
                if view.resident[j, item] == held and view.nodes.up[j] == 1:
                    ranking[n] = j
                    n += 1
        return n
"""
NODES = """
insecure_no_auth: true
policy: {policy}
polling: {{period_s: 0.05, timeout_s: 5}}
health: {{period_s: 0.1, timeout_s: 5}}
nodes:
  - {{name: n0, url: '{a}', models: [m], adapters: {adapters}, type: same, capacity: 4, loading: {loading}}}
  - {{name: n1, url: '{b}', models: [m], adapters: {adapters}, type: same, capacity: 4, loading: {loading}}}
"""


class Bench:
    """Two backends and a gateway."""

    def __init__(
        self, gateway: GatewayCore, url: str, backends: tuple[LoadingBackend, LoadingBackend]
    ) -> None:
        self.gateway, self.url, self.backends = gateway, url, backends
        self.session = aiohttp.ClientSession()

    async def ask(self, model: str = "m") -> tuple[int, str]:
        """Status and node of a request."""
        async with self.session.post(f"{self.url}{CHAT}", json={"model": model, "messages": []}) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-trimtab-node", "")

    def figures(self) -> dict[str, SignalFigures]:
        return self.gateway.dispatcher.registry.signal_figures()

    def resident(self, name: str) -> list[str]:
        return self.figures()[name]["resident"]

    def load_times(self) -> dict[str, float]:
        return {one["item"]: one["load_s"] for one in self.gateway.dispatcher.registry.load_times.figures()}


@asynccontextmanager
async def bench(
    tmp_path: Path, loading: str, adapters: str = "[]", places: str = "", **backend: Any
) -> AsyncIterator[Bench]:
    (tmp_path / "places.py").write_text(PLACES)
    policy = f'"{tmp_path}/places.py:Places({places})"'
    async with LoadingBackend(**backend) as a, LoadingBackend(**backend) as b:
        text = NODES.format(policy=policy, a=a.url, b=b.url, adapters=adapters, loading=loading)
        async with serving_here(text) as (gateway, url):
            made = Bench(gateway, url, (a, b))
            yield made
            await made.session.close()


@pytest.mark.parametrize(
    ("loading", "adapters", "items"),
    [
        ("{models: vllm}", "[]", ["m"]),
        ("{models: ollama}", "[]", ["m"]),
        ("{adapters: vllm, adapter_path: '/files/{adapter}'}", "[x]", ["x"]),
        (
            "{models: {load: {path: /api/generate, body: {model: '{model}', keep_alive: 5}}}}",
            "[]",
            ["m"],
        ),
    ],
)
async def test_a_plan_has_the_node_load_before_a_request_comes(
    tmp_path: Path, loading: str, adapters: str, items: list[str]
) -> None:
    async with bench(tmp_path, loading, adapters) as made:
        idle, placed = made.backends
        await until(lambda: made.resident("n1") == items)
        assert made.resident("n0") == []
        assert placed.calls == [("load", items[0])]
        assert await made.ask(items[0]) == (200, "n1")
        assert (placed.cold, placed.served, idle.calls) == ([], items, [])
        assert made.load_times()[items[0]] >= placed.load_s
        text = exposition(made.gateway.metrics.store()).decode()
        assert 'trimtab_loads_total{action="load",node="n1",outcome="done"} 1' in text
        assert f'trimtab_item_load_seconds{{item="{items[0]}",type="same"}}' in text
        assert f'trimtab_node_item_resident{{item="{items[0]}",node="n1"}} 1' in text


async def test_what_no_plan_places_any_more_is_unloaded_where_that_is_wanted(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm, unload_unplaced: true}", places="places='idle'") as made:
        await until(lambda: made.resident("n1") == ["m"])
        assert await made.ask() == (200, "n1")
        await until(lambda: made.backends[1].calls == [("load", "m"), ("unload", "m")])
        assert made.resident("n1") == []


async def test_a_load_that_fails_leaves_the_item_absent_and_backs_off(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm, backoff_s: 0.5}") as made:
        placed = made.backends[1]
        placed.fails = True
        await until(lambda: placed.calls)
        begun_s = asyncio.get_running_loop().time()
        await asyncio.sleep(0.25)  # several plans later
        assert (placed.calls, made.resident("n1")) == ([("load", "m")], [])
        placed.fails = False
        await until(lambda: made.resident("n1") == ["m"])
        assert asyncio.get_running_loop().time() - begun_s > 0.4
        assert placed.calls == [("load", "m")] * 2


async def test_a_load_that_takes_too_long_is_undone(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm, timeout_s: 0.2, backoff_s: 60}") as made:
        placed = made.backends[1]
        placed.hangs = True
        await until(lambda: ("unload", "m") in placed.calls)
        assert placed.calls == [("load", "m"), ("unload", "m")]
        assert made.resident("n1") == []
        text = exposition(made.gateway.metrics.store()).decode()
        assert 'trimtab_loads_total{action="load",node="n1",outcome="timeout"} 1' in text


async def test_a_lost_node_holds_nothing_and_is_placed_again_when_it_is_back(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm, backoff_s: 0.1}") as made:
        fleet, node = made.gateway.fleet, made.gateway.fleet.nodes[1]
        await until(lambda: made.resident("n1") == ["m"])
        made.backends[1].held.clear()  # its process ended
        fleet.hold(node, Hold.BREAKER, "for the test", 0.3)
        assert made.resident("n1") == []
        await until(lambda: made.resident("n1") == ["m"])
        assert made.backends[1].calls == [("load", "m")] * 2


async def test_a_request_waits_for_the_load_that_it_needs_once_for_all(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm}", places="places='never'") as made:
        first = made.backends[0]
        answers = await asyncio.gather(*(made.ask() for _ in range(3)))
        assert answers == [(200, "n0")] * 3
        assert (first.calls, first.cold) == ([("load", "m")], [])
        estimates = made.gateway.dispatcher.registry.estimates
        (of,) = made.gateway.dispatcher.registry.classes
        fixed_s, unit_s = estimates.of(of.key, "same")
        assert fixed_s + unit_s < first.load_s, "the load is no part of the service"


async def test_a_request_goes_elsewhere_when_its_node_cannot_load(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: vllm, backoff_s: 60}", places="places='never'") as made:
        made.backends[0].fails = True
        assert await made.ask() == (200, "n1")
        made.backends[1].fails = True
        made.backends[1].held.clear()
        await until(lambda: made.resident("n1") == [])
        status, _ = await made.ask()
        assert status == 503


async def test_the_first_answer_of_a_cold_node_teaches_the_load_time(tmp_path: Path) -> None:
    async with bench(tmp_path, "{models: ollama}", places="places='never'", load_s=0.6) as made:
        assert await made.ask() == (200, "n0")
        assert made.backends[0].cold == ["m"]
        assert made.load_times() == {}, "nothing to compare with yet"
        # What spans a stall of a busy machine is not timed: then the model leaves once more.
        while len(made.backends[0].cold) < 50 and "m" not in made.load_times():
            for _ in range(12):
                await made.ask()
            if "m" not in made.load_times():
                made.backends[0].held.clear()
                await until(lambda: "m" not in made.resident("n0"), "the model has left")
        assert 0.3 < made.load_times()["m"] < 1.5
        view = next(iter(made.gateway.dispatcher.pools.values())).live.view()
        assert view.load_s[0, 0] == made.load_times()["m"]
        assert made.backends[0].calls == []
