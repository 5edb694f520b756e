"""Prefix policies in the gateway: a prompt goes back to the node that had it, until that is too busy."""

from __future__ import annotations

from dataclasses import replace

from support.gateway.dispatch_bench import Asked, Bench, benched
from trimtab.gateway.api.units import BLOCK_TOKENS

POLICY = "prefix-affinity"


def asks(first_block: int) -> Asked:
    return Asked(prefix_blocks=tuple(range(first_block, first_block + 40)))


@benched(slots=1, type_name="", policy=POLICY, prefix_blocks=10000)
async def test_a_prompt_goes_back_to_its_node(bench: Bench) -> None:
    first, second = bench.submit(asks(0)), bench.submit(asks(1000))
    assert [first.nodes, second.nodes] == [["n0"], ["n1"]]
    bench.done(first)
    bench.done(second)
    for begin, node in ((1000, "n1"), (0, "n0"), (1000, "n1")):
        again = bench.submit(asks(begin))
        assert again.nodes == [node]
        bench.done(again)


@benched(slots=1, type_name="", policy=POLICY, prefix_blocks=10000)
async def test_a_busy_node_is_not_waited_for(bench: Bench) -> None:
    first = bench.submit(asks(0))
    assert [first.nodes, bench.submit(asks(0)).nodes] == [["n0"], ["n1"]]


def of_length(first_block: int, shared: int = 40) -> Asked:
    """A prompt of 40 blocks, the first `shared` of them from another one."""
    asking = Asked(prefix_blocks=(*range(first_block, first_block + shared), *range(5000, 5040 - shared)))
    assert asking.facts is not None
    asking.facts = replace(asking.facts, prompt_tokens=40 * BLOCK_TOKENS)
    return asking


@benched(slots=1, type_name="", policy="e2", prefix_blocks=10000)
async def test_e2_knows_how_long_prompts_are(bench: Bench) -> None:
    """A prompt of which n0 has a quarter goes to the node of less load, not to where that quarter is."""

    for first_block, node in ((0, "n0"), (1000, "n1"), (0, "n0")):
        asking = bench.submit(of_length(first_block))
        assert asking.nodes == [node]
        bench.done(asking)
    assert bench.submit(of_length(0, shared=10)).nodes == ["n1"]
