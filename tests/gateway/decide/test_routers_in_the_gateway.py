"""Routers of language models in the gateway: they see prompts and KV memory, but no iterations."""

from __future__ import annotations

import pytest

from support.gateway.dispatch_bench import Bench, on_bench

NODE = {"max_requests": 8}


@pytest.mark.parametrize("policy", ["kv-cost", "scorers", "cache-aware"])
def test_requests_spread_over_nodes_that_report_alike(policy: str) -> None:
    """Own requests count at once: the reports are the same all the time."""

    async def test(bench: Bench) -> None:
        for node_idx in (0, 1):
            await bench.report(node_idx, {"kv_used_frac": 0.3, "kv_tokens": 40_000.0})
        await bench.settle()
        went = [bench.submit().node for _ in range(8)]
        assert 3 <= went.count("n0") <= 5

    on_bench(test, policy, NODE, NODE)


@pytest.mark.parametrize("policy", ["kv-cost", "scorers"])
def test_a_node_whose_kv_memory_is_full_comes_last(policy: str) -> None:
    async def test(bench: Bench) -> None:
        await bench.report(0, {"kv_used_frac": 0.95, "kv_tokens": 40_000.0})
        await bench.report(1, {"kv_used_frac": 0.05, "kv_tokens": 40_000.0})
        await bench.settle()
        assert bench.one_by_one(10) == {"n1": 10}

    on_bench(test, policy, NODE, NODE)


def test_prompts_count_as_waiting_until_tokens_come() -> None:
    async def test(bench: Bench) -> None:
        def waiting() -> list[float]:
            return bench.view().engines.waiting_tokens.tolist()

        asked = bench.submit()
        assert waiting() == [int(asked.facts.prompt_tokens)] != [0]
        for chunks in (1, 5):
            bench.dispatcher.progress(asked, chunks)
            assert waiting() == [0]
        bench.done(asked)
        bench.done(bench.submit())  # without a stream
        assert waiting() == [0]

    on_bench(test, "kv-cost", NODE)
