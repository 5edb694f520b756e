"""`predictive` has a node load a model as its demand begins to rise, and takes that back when it is over."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np

from support.gateway.dispatch_bench import Asked, Bench, benched
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.load_hooks import VLLM_MODELS, LoadHooks

NODE = {
    "models": ("a", "b"),
    "hooks": LoadHooks(VLLM_MODELS),
    "resources": {"gpu_gib": 40.0},
    "max_requests": 2,
}
SIZES = {"a": 30.0, "b": 30.0}  # a node holds one of them
SERVICE_S = 1.0
RISE_S, END_S, OVER_S = 300, 600, 900  # requests for b come, ever more of them, until `END_S`


class _Loads:
    """Loads at once what plans place, in the place of what was there. Notes when that changes."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self.placed_at_s = bench, list[tuple[float, tuple[str, ...]]]()
        for node in bench.fleet.nodes:
            node.loader = self  # type: ignore[assignment]
            bench.fleet.set_held(node, "a", is_held=True)

    def place(self, node: Node, items: tuple[str, ...]) -> None:
        if node.name == "n1" and (not self.placed_at_s or self.placed_at_s[-1][1] != items):
            self.placed_at_s.append((self._bench.loop.time(), items))
        for item in items:
            for held in self._bench.fleet.state(node).held() - {item}:
                self._bench.fleet.set_held(node, held, is_held=False)
            self._bench.fleet.set_held(node, item, is_held=True)


async def _client(bench: Bench, model: str, nodes: list[str]) -> None:
    asked = bench.submit(Asked(model))
    while not asked.node:
        await asyncio.sleep(0.1)
    nodes.append(asked.node)
    await asyncio.sleep(SERVICE_S)
    bench.done(asked, SERVICE_S)


@benched("predictive(admission=false)", NODE, NODE, declared=Declared(model_gib=SIZES))
async def test_a_model_is_loaded_as_its_demand_rises_and_given_up_when_it_is_over(bench: Bench) -> None:
    loads = _Loads(bench)
    bench.dispatcher.placements.follow(loads)  # type: ignore[arg-type]
    rng, clients = np.random.default_rng(1), set[asyncio.Task[None]]()
    served: dict[str, list[str]] = {"a": [], "b": []}
    begun_s = bench.loop.time()
    for second in range(OVER_S):
        rates = {"a": 0.5, "b": (second - RISE_S) / 150 if RISE_S <= second < END_S else 0.0}
        for model, rate in rates.items():
            if rng.random() < rate:
                clients.add(asyncio.create_task(_client(bench, model, served[model])))
        await asyncio.sleep(1.0)
    await asyncio.gather(*clients)
    times = [(at_s - begun_s, items) for at_s, items in loads.placed_at_s]
    spans = [(a, b, items) for (a, items), (b, _) in pairwise([*times, (float(OVER_S), ())])]
    (begin_s, end_s), *more = [(a, b) for a, b, items in spans if items == ("b",)]
    assert not more, "once, without going back and forth"
    assert RISE_S < begin_s <= RISE_S + 60, "while less than 0.4 requests come in a second, of 2 in the end"
    assert END_S < end_s <= END_S + 120
    assert served["b"].count("n1") / len(served["b"]) > 0.9
    assert served["a"].count("n0") / len(served["a"]) > 0.6
