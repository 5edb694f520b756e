"""Routers of language models in the gateway: they see prompts, KV memory and iterations."""

from __future__ import annotations

import pytest

from support.gateway.dispatch_bench import Asked, Bench, on_bench
from trimtab.gateway.api.units import BLOCK_TOKENS

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


def test_cached_beginnings_of_prompts_do_not_wait() -> None:
    async def test(bench: Bench) -> None:
        def waiting() -> list[float]:
            return bench.view().engines.waiting_tokens.tolist()

        long = {"prefix_blocks": (1, 2, 3)}
        first = bench.submit(Asked(**long))
        first.facts.prompt_tokens = prompt = 1000.0
        bench.done(first)
        second = Asked(**long)
        second.facts.prompt_tokens = prompt
        bench.submit(second)
        assert waiting() == [prompt - 3 * BLOCK_TOKENS]
        bench.dispatcher.progress(second, 1)
        assert waiting() == [0]
        bench.done(second)
        third = Asked(**long)
        third.facts.prompt_tokens = 10.0
        bench.submit(third)
        assert waiting() == [1], "the last token is read"
        bench.done(third)
        assert waiting() == [0]

    on_bench(test, "kv-cost", NODE, prefix_blocks=100)


TOLD = {"kv_used_frac": 0.5, "kv_tokens": 40_000.0}


async def tell(bench: Bench, running: int, token_s: float = 0.0, node_idx: int = 0) -> None:
    """A page of the node; without `token_s` it has no figure of its own."""
    node = bench.fleet.nodes[node_idx]
    node.reported.pop("token_s", None)
    await bench.report(
        node_idx, TOLD | {"running": running} | ({"token_s": token_s} if token_s else {}), "backend"
    )


def test_iterations_lengthen_with_the_batch_as_learned_by_type() -> None:
    async def test(bench: Bench) -> None:
        def shown(name: str, node_idx: int = 0) -> float:
            return float(bench.view().engines[name][node_idx])

        assert shown("step_s") == 0.0
        assert shown("load_factor") == 1.0
        assert shown("batch_max") == 8
        await tell(bench, 4, 0.02)
        assert (shown("step_s"), shown("row_s")) == (0.02, 0.0)
        await tell(bench, 8, 0.024)  # with 6 requests in the mean: 2 ms for each
        assert shown("row_s") == pytest.approx(0.002)
        assert shown("step_s") == pytest.approx(0.028)
        assert shown("decoding") == 8
        assert shown("kv_used") + shown("kv_per_s") * 0.25 == pytest.approx(20_000, rel=0.01)
        assert shown("kv_per_s") == pytest.approx(8 / 0.028)
        await tell(bench, 2)  # no tokens since
        assert shown("step_s") == pytest.approx(0.016)
        await tell(bench, 3, 0.018, node_idx=1)  # of the same type
        assert shown("row_s", 1) == pytest.approx(0.002)

    on_bench(test, "predicted-latency", NODE, NODE)


def test_own_requests_count_at_once_in_the_load_factor() -> None:
    async def test(bench: Bench) -> None:
        def factor() -> float:
            return float(bench.view().engines.load_factor[0])

        for running, token_s in ((2, 0.016), (8, 0.022), (0, 0.021)):
            await tell(bench, running, token_s)
        usual_s = bench.dispatcher.signals.engines.told[0].usual_step_s
        assert factor() == pytest.approx(0.014 / usual_s)
        running = [bench.submit() for _ in range(3)]
        assert factor() == pytest.approx(0.020 / usual_s)
        for asked in running:
            bench.done(asked)
        assert factor() == pytest.approx(0.014 / usual_s)

    on_bench(test, "least-expected-completion", NODE)


def test_gaps_of_streams_stand_for_a_figure_that_the_page_lacks() -> None:
    async def test(bench: Bench) -> None:
        node = bench.fleet.nodes[0]
        await tell(bench, 1)
        assert bench.view().engines.step_s.tolist() == [0.0]
        node.gap_s, node.gaps = 3.0, 100
        await tell(bench, 1)
        assert bench.view().engines.step_s.tolist() == pytest.approx([0.03])
        node.gap_s, node.gaps = 4.0, 120
        await tell(bench, 1)
        assert bench.view().engines.step_s.tolist() == pytest.approx([0.05])

    on_bench(test, "predicted-latency", NODE)


def test_a_report_that_is_too_old_counts_no_more() -> None:
    async def test(bench: Bench) -> None:
        await tell(bench, 4, 0.02)
        assert bench.view().engines.kv_tokens.tolist() == [40_000.0]
        bench.fleet.nodes[0].reported.clear()
        bench.fleet.reports(bench.fleet.nodes[0], "backend", {})
        await bench.settle()
        engines = bench.view().engines
        for name in ("kv_tokens", "kv_used", "kv_per_s", "step_s", "row_s", "decoding"):
            assert engines[name].tolist() == [0], name
        assert engines.load_factor.tolist() == [1.0]

    on_bench(test, "predicted-latency", NODE)


def test_without_kv_memory_iterations_alone_count() -> None:
    """As of llama.cpp today, whose page has no figure of it."""

    async def test(bench: Bench) -> None:
        for node_idx, token_s in ((0, 0.5), (1, 0.01)):
            await bench.report(node_idx, {"running": 0.0, "token_s": token_s}, "backend")
        assert bench.one_by_one(6) == {"n1": 6}

    for policy in ("predicted-latency(ttft_slo_s=0.2)", "llm-headroom"):
        on_bench(test, policy, {"type_name": "a"}, {"type_name": "b"})
