"""Prefix affinity in the gateway: a prompt goes back to the node that had it, until that is too busy."""

from __future__ import annotations

from test_dispatcher import Asking, Bench, at

POLICY = "prefix-affinity"


def asks(first_block: int) -> Asking:
    return Asking(prefix_blocks=tuple(range(first_block, first_block + 40)))


def test_a_prompt_goes_back_to_its_node() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.submit(asks(0)), bench.submit(asks(1000))
        assert [first.nodes, second.nodes] == [["n0"], ["n1"]]
        bench.done(first)
        bench.done(second)
        for begin, node in ((1000, "n1"), (0, "n0"), (1000, "n1")):
            again = bench.submit(asks(begin))
            assert again.nodes == [node]
            bench.done(again)

    at(test, policy=POLICY, prefix_blocks=10_000)


def test_a_busy_node_is_not_waited_for() -> None:
    async def test(bench: Bench) -> None:
        first = bench.submit(asks(0))
        assert [first.nodes, bench.submit(asks(0)).nodes] == [["n0"], ["n1"]]

    at(test, policy=POLICY, prefix_blocks=10_000)
