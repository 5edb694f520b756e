"""Room for what plans place: what is unloaded for it, and what never is."""

from __future__ import annotations

import numpy as np

from support.gateway.dispatch_bench import Asked, Bench, benched
from trimtab.domain.view import empty_plan
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.load_hooks import VLLM_MODELS, LoadHooks

SIZES = {"a": 30.0, "b": 30.0, "c": 20.0, "m": 40.0}
NODE = {"models": ("a", "b", "c", "m"), "hooks": LoadHooks(VLLM_MODELS), "resources": {"gpu_gib": 80.0}}


class _Loader:
    """Takes plans and loads nothing."""

    def place(self, node: Node, items: tuple[str, ...]) -> None:
        """Nothing."""


def place(bench: Bench, *items: str) -> None:
    shape = bench.dispatcher.registry.shape
    placement = np.array([[item in items for item in shape.items]], np.uint8)
    (policy,) = bench.dispatcher.pools
    bench.dispatcher.placements.follow(_Loader())  # type: ignore[arg-type]
    bench.dispatcher.log.plan_changed(policy, empty_plan()._replace(placement=placement))


@benched("least-connections", NODE, declared=Declared(model_gib=SIZES))
async def test_what_was_used_least_lately_goes_and_what_is_placed_or_in_use_stays(bench: Bench) -> None:
    fleet, placements = bench.fleet, bench.dispatcher.placements
    (node,) = fleet.nodes
    assert placements.victims(node, "m") == [], "all fits an empty node"
    for item in ("a", "b", "c"):  # 80 of 80 GiB
        fleet.set_held(node, item, is_held=True)
    for k, item in enumerate(("b", "a", "c")):
        placements._used_s[0, item] = float(k)
    assert placements.victims(node, "m") == ["b", "a"]
    place(bench, "b", "m")
    assert placements.victims(node, "m") == ["a", "c"], "what is placed goes last"
    running = bench.submit(Asked("a"))
    assert running.node == "n0"
    assert placements.victims(node, "m") == ["c", "b"], "what is in use never goes"
    more = bench.submit(Asked("b"))
    assert more.node == "n0"
    assert placements.victims(node, "m") == [], "there is no room: nothing goes in vain"


@benched("least-connections", NODE, declared=Declared(model_gib=SIZES))
async def test_policies_see_what_a_node_holds_and_its_memory(bench: Bench) -> None:
    items = bench.dispatcher.registry.shape.items
    bench.fleet.set_held(bench.fleet.nodes[0], "b", is_held=True)
    view = bench.view()
    assert [item for item, held in zip(items, view.resident[0], strict=True) if held] == ["b"]
    assert view.load_s[:, 0].tolist() == [10.0] * 4, "the first guess"
    placements = bench.dispatcher.placements
    bench.dispatcher._pools.set_load_time("b", "same", 4.5)
    assert bench.view().load_s[items.index("b"), 0] == 4.5
    assert placements.placed(bench.fleet.nodes[0]) == ()
