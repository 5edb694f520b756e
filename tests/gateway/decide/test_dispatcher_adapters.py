"""Adapters in what policies see: which nodes hold them, and a policy that goes there.

The policy is `least-expected-completion`: all else being equal it takes the first node, so whenever it takes
another, it is for the adapter that this one holds.
"""

from __future__ import annotations

from functools import partial

from support.gateway.dispatch_bench import Asked, Bench, benched
from trimtab.gateway.decide.dispatch_rules import DispatchRules, policy_choice
from trimtab.gateway.model import Cause
from trimtab.gateway.nodes.node_state import Hold, Listing, NodeSpec

POLICY = "least-expected-completion"


LAW = {"adapters": ("law",), "adapter_load_s": 2.5}  # of both nodes
served = partial(benched, POLICY, LAW, LAW, slots=4, type_name="")


def holders(bench: Bench, adapter: str) -> list[str]:
    resident, i = bench.pool.live.view().resident, bench.dispatcher.registry.shape.items.index(adapter)
    return [node.name for node in bench.fleet.nodes if resident[node.idx, i] == 1]


def serve(bench: Bench, model: str) -> str:
    """The node that a request was sent to, once it was served."""
    exchange = bench.submit(Asked(model))
    bench.done(exchange)
    return exchange.node


@served()
async def test_a_request_for_an_adapter_needs_its_model_and_the_adapter(bench: Bench) -> None:
    asked = bench.submit(Asked("law")).spec
    work, items = bench.pool.live.view(), bench.dispatcher.registry.shape.items
    assert list(work.load_s[:, 0]) == [2.5 if name == "law" else 0.0 for name in items]
    assert (items[asked.model_idx], items[asked.adapter_idx]) == ("m", "law")
    plain = bench.submit(Asked("m")).spec
    assert (items[plain.model_idx], plain.adapter_idx) == ("m", -1)
    assert [bench.dispatcher.registry.adapter_of(name) for name in ("law", "m", "none")] == [
        "law",
        "",
        "",
    ]


@served()
async def test_a_policy_goes_where_the_adapter_is_by_what_nodes_list_report_and_have_served(
    bench: Bench,
) -> None:
    first, second = bench.fleet.nodes
    assert holders(bench, "law") == []
    bench.fleet.set_listing(second, Listing(("m",), {"law": "m"}))
    assert (holders(bench, "law"), serve(bench, "law"), serve(bench, "m")) == (["n1"], "n1", "n0")
    bench.fleet.set_listing(second, Listing(("m",), {}))  # unloaded; it may still load it
    assert holders(bench, "law") == []
    bench.fleet.report_adapters(second, ("law", "unheard-of"))
    assert (holders(bench, "law"), serve(bench, "law")) == (["n1"], "n1")
    bench.fleet.hold(second, Hold.BREAKER, "it is gone")  # and may come back as another process
    assert serve(bench, "law") == "n0"
    bench.fleet.release(second, Hold.BREAKER)
    assert holders(bench, "law") == ["n0"]
    assert bench.fleet.state(first).held_adapters == {"law"}


@served()
async def test_what_nodes_hold_outlives_a_new_state_and_what_runs_keeps_its_items(bench: Bench) -> None:
    bench.fleet.hold(bench.fleet.nodes[0], Hold.DRAINING, "for the test")
    running = bench.submit(Asked("law"))
    bench.fleet.release(bench.fleet.nodes[0], Hold.DRAINING)
    assert running.nodes == ["n1"]
    bench.fleet.add(NodeSpec("n2", "http://n2:1", ("a", "m"), 4))  # items have other positions now
    assert holders(bench, "law") == ["n1"], "it works with it"
    bench.done(running)
    bench.dispatcher.use(DispatchRules(policy_choice(POLICY), held_max=7))
    assert (holders(bench, "law"), serve(bench, "law")) == (["n1"], "n1")
    last = bench.submit(Asked("law"))
    bench.fleet.set_listing(bench.fleet.nodes[2], Listing((), {}))
    bench.dispatcher.lost(last, Cause.RESET)
    assert last.nodes == ["n1", "n0"]


@benched(slots=1, type_name="")
async def test_a_name_that_is_a_model_elsewhere_is_no_adapter_and_one_without_a_model_stands_alone(
    bench: Bench,
) -> None:
    bench.add("a", models=("m", "merged"))
    node, registry = bench.add("b", models=()), bench.dispatcher.registry
    bench.fleet.set_listing(node, Listing(("m", "other"), {"merged": "m", "verse": "m", "stray": ""}))
    shape = registry.shape
    assert shape.items == ("m", "merged", "other", "stray", "verse")
    assert shape.bases == {"verse": "m", "stray": ""}
    assert shape.items_needed == {
        "m": (0, -1), "merged": (1, -1), "other": (2, -1), "stray": (3, -1), "verse": (0, 4)
    }  # fmt: skip
    assert list(registry.cluster({}).item_is_adapter) == [0, 0, 0, 1, 1]
