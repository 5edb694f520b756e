"""Adapters in what policies see: which nodes hold them, and a policy that goes there.

The policy is `least-expected-completion`: all else being equal it takes the first node, so whenever it takes
another, it is for the adapter that this one holds.
"""

from __future__ import annotations

from test_dispatcher import Asking, Bench, at

from trimtab.gateway.decide.dispatch_rules import DispatchRules, policy_choice
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.model import Cause
from trimtab.gateway.nodes.node_spec import Listing, NodeSpec
from trimtab.gateway.nodes.node_state import Hold

POLICY = "least-expected-completion"


class Served(Bench):
    """Two nodes of one model; both are declared to serve the adapter `law`."""

    def __init__(self) -> None:
        super().__init__(POLICY, nodes=0, slots=4)
        for name in ("n0", "n1"):
            self.fleet.add(
                NodeSpec(name, f"http://{name}:1", ("m",), 4, adapters=("law",), adapter_load_s=2.5)
            )

    @property
    def pool(self) -> PolicyPool:
        (pool,) = self.dispatcher.pools.values()
        return pool

    def holders(self, adapter: str) -> list[str]:
        view = self.pool.live.view()
        i = self.dispatcher.registry.shape.items.index(adapter)
        return [node.name for node in self.fleet.nodes if view.resident[node.idx, i] == 1]

    def serve(self, model: str) -> str:
        """The node that a request was sent to, once it was served."""
        exchange = self.submit(Asking(model))
        self.done(exchange)
        return exchange.nodes[-1]


def test_a_request_for_an_adapter_needs_its_model_and_the_adapter() -> None:
    async def test(_: Bench) -> None:
        bench = Served()
        asked = bench.submit(Asking("law")).spec
        work, items = bench.pool.live.view(), bench.dispatcher.registry.shape.items
        assert list(work.load_s[:, 0]) == [2.5 if name == "law" else 0.0 for name in items]
        assert (items[asked.model_idx], items[asked.adapter_idx]) == ("m", "law")
        plain = bench.submit(Asking("m")).spec
        assert (items[plain.model_idx], plain.adapter_idx) == ("m", -1)
        assert [bench.dispatcher.registry.adapter_of(name) for name in ("law", "m", "none")] == [
            "law",
            "",
            "",
        ]
        bench.close()

    at(test)


def test_a_policy_goes_where_the_adapter_is_by_what_nodes_list_report_and_have_served() -> None:
    async def test(_: Bench) -> None:
        bench = Served()
        first, second = bench.fleet.nodes
        assert bench.holders("law") == []
        bench.fleet.set_listing(second, Listing(("m",), {"law": "m"}))
        assert (bench.holders("law"), bench.serve("law"), bench.serve("m")) == (["n1"], "n1", "n0")
        bench.fleet.set_listing(second, Listing(("m",), {}))  # unloaded; it may still load it
        assert bench.holders("law") == []
        bench.fleet.report_adapters(second, ("law", "unheard-of"))
        assert (bench.holders("law"), bench.serve("law")) == (["n1"], "n1")
        bench.fleet.hold(second, Hold.BREAKER, "it is gone")  # and may come back as another process
        assert bench.serve("law") == "n0"
        bench.fleet.release(second, Hold.BREAKER)
        assert bench.holders("law") == ["n0"]
        assert bench.fleet.state(first).held_adapters == {"law"}
        bench.close()

    at(test)


def test_what_nodes_hold_outlives_a_new_state_and_what_runs_keeps_its_items() -> None:
    async def test(_: Bench) -> None:
        bench = Served()
        bench.fleet.hold(bench.fleet.nodes[0], Hold.DRAINING, "for the test")
        running = bench.submit(Asking("law"))
        bench.fleet.release(bench.fleet.nodes[0], Hold.DRAINING)
        assert running.nodes == ["n1"]
        bench.fleet.add(NodeSpec("n2", "http://n2:1", ("a", "m"), 4))  # items have other positions now
        assert bench.holders("law") == ["n1"], "it works with it"
        bench.done(running)
        bench.dispatcher.use(DispatchRules(policy_choice(POLICY), held_max=7))
        assert (bench.holders("law"), bench.serve("law")) == (["n1"], "n1")
        last = bench.submit(Asking("law"))
        bench.fleet.set_listing(bench.fleet.nodes[2], Listing((), {}))
        bench.dispatcher.lost(last, Cause.RESET)
        assert last.nodes == ["n1", "n0"]
        bench.close()

    at(test)


def test_a_name_that_is_a_model_elsewhere_is_no_adapter_and_one_without_a_model_stands_alone() -> None:
    async def test(bench: Bench) -> None:
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

    at(test)
