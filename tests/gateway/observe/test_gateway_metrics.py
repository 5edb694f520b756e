"""What is counted, how labels stay bounded, and that the books of two processes add up."""

from __future__ import annotations

import gc
import math
from collections import deque

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.gateway.observe_builders import make_exchange, make_node
from trimtab.gateway.model import Attempt, Cause, Health, Outcome, Refusal, Usage
from trimtab.gateway.nodes.node_resources import resource_use
from trimtab.gateway.observe import summaries
from trimtab.gateway.observe.decision_records import DecisionRecords
from trimtab.gateway.observe.exposition import exposition
from trimtab.gateway.observe.metric_store import BALANCE, FAMILIES, MetricStore
from trimtab.gateway.observe.metrics import MOST_CODES, MOST_KEPT, MOST_TENANTS, Metrics, Sources
from trimtab.gateway.observe.status import node_figures, observed
from trimtab.gateway.observe.window import Second, percentiles_s, variance_s2
from trimtab.gateway.stalled_streams import StreamGaps
from trimtab.metrics.statistics import coefficient_of_variation, variance


class Clock:
    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def make_metrics(sources: Sources | None = None, clock: Clock | None = None) -> Metrics:
    metrics = Metrics(clock or Clock(), sources)
    metrics.know_models(["llama"])
    return metrics


class Seen(dict[tuple[str, tuple[str, ...]], float]):
    """Samples by name and values of labels, in whatever order the labels are printed."""

    def __getitem__(self, key: tuple[str, tuple[str, ...]]) -> float:
        return super().__getitem__((key[0], tuple(sorted(key[1]))))


def samples(store: MetricStore) -> Seen:
    found = Seen()
    for family in text_string_to_metric_families(exposition(store).decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.values()))] = sample.value
    return found


def test_one_answer_is_counted_everywhere() -> None:
    metrics = make_metrics()
    exchange = make_exchange(estimate_s=1.5, usage=Usage(10, 20, 5), response_bytes=99, streamed_chunks=3)
    metrics.arrived(exchange)
    metrics.started(exchange, exchange.attempts[0])
    metrics.ended([exchange])
    seen = samples(metrics.store())
    assert seen["trimtab_requests_total", ("llama", "chat", "done", "2xx")] == 1
    assert seen["trimtab_request_duration_seconds_sum", ("llama", "chat")] == 2.5
    assert seen["trimtab_request_duration_seconds_bucket", ("llama", "chat", "2.5")] == 1
    assert seen["trimtab_request_duration_seconds_bucket", ("llama", "chat", "1.0")] == 0
    assert seen["trimtab_request_duration_seconds_count", ("llama", "chat")] == 1
    assert seen["trimtab_time_to_first_byte_seconds_sum", ("llama", "chat")] == 1.0
    assert seen["trimtab_queue_seconds_sum", ("llama", "chat")] == 0.5
    assert seen["trimtab_prediction_error_ratio_sum", ("llama/chat",)] == 0.25  # |2 - 1.5| / 2
    assert seen["trimtab_predicted_seconds_total", ("llama/chat",)] == 1.5
    assert seen["trimtab_actual_seconds_total", ("llama/chat",)] == 2.0
    assert seen["trimtab_tokens_total", ("t", "prompt")] == 10
    assert seen["trimtab_tokens_total", ("t", "completion")] == 20
    assert seen["trimtab_response_bytes_total", ()] == 99
    assert seen["trimtab_stream_chunks_total", ()] == 3


def test_failures_retries_hedges_and_refusals() -> None:
    metrics, node = make_metrics(Sources(shadow=lambda: (2, 1))), make_node()
    exchange = make_exchange(node)
    lost = Attempt(node, 100.1, cause=Cause.BUSY)
    exchange.attempts.insert(0, lost)
    metrics.lost(exchange, lost)
    metrics.started(exchange, exchange.attempts[-1])
    metrics.started(exchange, Attempt(node, 100.2, hedge=True))
    refused = make_exchange(attempts=[], refusal=Refusal(429, "rate_limit", "x"), outcome=Outcome.REFUSED)
    metrics.ended([refused])
    metrics.ended([make_exchange(outcome=Outcome.FAILED, response_status=502)])
    metrics.policy_failed("jsq")
    seen = samples(metrics.store())
    assert seen["trimtab_attempts_lost_total", ("busy",)] == 1
    assert seen["trimtab_retries_total", ("busy",)] == 1
    assert seen["trimtab_hedges_total", ()] == 1
    assert seen["trimtab_refusals_total", ("rate_limit",)] == 1
    assert seen["trimtab_requests_total", ("llama", "chat", "refused", "4xx")] == 1
    assert seen["trimtab_requests_total", ("llama", "chat", "failed", "5xx")] == 1
    assert (
        seen["trimtab_request_duration_seconds_count", ("llama", "chat")] == 1
    )  # refused ones have no duration
    assert seen["trimtab_policy_failures_total", ("jsq",)] == 1
    assert seen["trimtab_shadow_disagreements_total", ()] == 1


def test_plans_are_counted_by_role_and_outcome() -> None:
    counts = {("live", "made"): 3, ("live", "late"): 1, ("shadow", "raised"): 2}
    seen = samples(make_metrics(Sources(plans=lambda: counts)).store())
    assert {how: seen["trimtab_plans_total", how] for how in counts} == counts


def test_what_waits_to_be_counted_is_counted_when_it_is_read() -> None:
    clock = Clock()
    metrics = make_metrics(clock=clock)
    count = MOST_KEPT + MOST_KEPT // 2
    for k in range(count):
        exchange = make_exchange(usage=Usage(1, 2, 0), response_bytes=10)
        metrics.ended([exchange])
        if k == 9:
            metrics.know_models([])  # those so far keep their label
    clock.now_s += 1.0
    for _ in range(2):
        seen = samples(metrics.store())
        assert seen["trimtab_requests_total", ("llama", "chat", "done", "2xx")] == 10
        assert seen["trimtab_requests_total", ("other", "chat", "done", "2xx")] == count - 10
        assert seen["trimtab_tokens_total", ("t", "completion")] == 2 * count
        assert seen["trimtab_response_bytes_total", ()] == 10 * count
    metrics.tick()
    metrics.ended([make_exchange()])
    first, second = metrics.store().seconds.values()
    assert (first.requests, second.requests) == (count, 1)  # each in the second in which it ended


def test_what_is_kept_holds_no_body() -> None:
    metrics, receipts = make_metrics(), DecisionRecords(Clock())
    exchange = make_exchange(body=b"x" * 1000)
    for observer in (metrics, receipts):
        observer.arrived(exchange)
        observer.ended([exchange])
    assert not [one for one in gc.get_referrers(exchange) if isinstance(one, list | tuple | dict | deque)]


def test_labels_are_bounded() -> None:
    metrics = make_metrics()
    for i in range(1000):
        refusal = Refusal(404, f"code-{i}", "x")
        metrics.ended([make_exchange(model=f"m-{i}", tenant=f"t-{i}", attempts=[], refusal=refusal)])
    metrics.ended([make_exchange(facts=None, endpoint=None, tenant=None, attempts=[], outcome=None)])
    tables = metrics.store().tables
    assert {labels[0] for labels in tables["trimtab_requests_total"]} == {"other"}
    assert len(tables["trimtab_tenant_requests_total"]) == MOST_TENANTS + 1
    assert tables["trimtab_tenant_requests_total"]["other",][0] == 1000 - MOST_TENANTS
    assert len(tables["trimtab_refusals_total"]) == MOST_CODES + 1


def test_balance_is_that_of_the_metrics_room() -> None:
    clock, nodes = Clock(), [make_node("a"), make_node("b"), make_node("c")]
    down = make_node("down")
    down.health = Health.DOWN
    metrics = make_metrics(Sources(lambda: [*nodes, down]), clock)
    for _ in range(40):
        clock.now_s += 0.25
        for node, load in zip(nodes, (4, 2, 0), strict=True):
            node.in_flight = load
        metrics.tick()
    used = np.array([1.0, 0.5, 0.0])
    found = summaries.balance(metrics.store())
    assert tuple(found) == BALANCE
    assert found["utilisation_allocated_mean_frac"] == pytest.approx(0.5)
    assert found["idle_frac"] == found["idle_node_frac"] == pytest.approx(0.5)
    assert found["utilisation_allocated_var"] == pytest.approx(variance(used))
    assert found["utilisation_allocated_cv"] == pytest.approx(coefficient_of_variation(used))
    use = summaries.node_use(metrics.store())
    assert [use[name].busy_frac for name in "abc"] == pytest.approx([1.0, 1.0, 0.0])
    assert math.isnan(use["down"].utilisation_frac)


def test_gaps_between_chunks_by_hand() -> None:
    """First byte at 101 s, last at 102.5: 3 chunks have 2 gaps of 0.75 s, 31 chunks 30 of 0.05 s."""
    metrics = make_metrics()
    metrics.ended([make_exchange(streamed_chunks=n) for n in (0, 1, 3, 31)])
    broken = make_exchange(streamed_chunks=9, outcome=Outcome.FAILED)
    metrics.ended([broken])
    seen, name = samples(metrics.store()), "trimtab_inter_token_latency_seconds"
    assert seen[f"{name}_count", ("llama", "chat")] == 32
    assert seen[f"{name}_sum", ("llama", "chat")] == pytest.approx(3.0)
    for le, below in (("0.04", 0), ("0.05", 30), ("0.5", 30), ("1.0", 32)):
        assert seen[f"{name}_bucket", ("llama", "chat", le)] == below


def test_gaps_that_were_measured_one_by_one_are_counted_as_they_were() -> None:
    """Of 31 chunks in 1.5 s 20 came alone: 19 gaps of 0.01 s and one of 0.4 s; the rest has 10 of 0.091 s."""
    metrics, gaps = make_metrics(), StreamGaps()
    gaps.add([0.01] * 19)
    gaps.add([0.4])
    metrics.ended([make_exchange(streamed_chunks=31, gaps=gaps)])
    metrics.ended([make_exchange(streamed_chunks=9, gaps=gaps, outcome=Outcome.FAILED)])
    seen, name = samples(metrics.store()), "trimtab_inter_token_latency_seconds"
    assert seen[f"{name}_count", ("llama", "chat")] == 30
    assert seen[f"{name}_sum", ("llama", "chat")] == pytest.approx(1.5)
    for le, below in (("0.0075", 0), ("0.01", 19), ("0.075", 19), ("0.1", 29), ("0.3", 29), ("0.5", 30)):
        assert seen[f"{name}_bucket", ("llama", "chat", le)] == below


def test_queues_are_counted_by_model() -> None:
    waiting = {"llama": 3, "unknown": 2, "": 1}
    metrics = make_metrics(Sources(queue_by_model=lambda: waiting))
    seen = samples(metrics.store())
    assert seen["trimtab_model_queue_length", ("llama",)] == 3
    assert seen["trimtab_model_queue_length", ("other",)] == 3
    waiting.clear()
    assert samples(metrics.store())["trimtab_model_queue_length", ("llama",)] == 0


def test_resources_are_summed_as_the_simulator_does() -> None:
    """Two nodes: 8 cores of which 4, then 8 are in use, and 24 of which 6; one more is down, one silent."""
    clock, nodes = Clock(), [make_node(name) for name in ("a", "b", "down", "silent")]
    declared = [{"cpu_cores": 8.0}, {"cpu_cores": 24.0}, {"cpu_cores": 1000.0}, {"cpu_cores": 1000.0}]
    nodes[2].health = Health.DOWN
    for node, busy in zip(nodes, (0.5, 0.25, 0.5), strict=False):
        node.reported = {"cpu_busy_frac": busy}
    metrics = make_metrics(Sources(resources=lambda: resource_use(zip(nodes, declared, strict=True))), clock)
    for busy in (0.5, 1.0):
        nodes[0].reported["cpu_busy_frac"] = busy
        for _ in range(5 * 4):
            clock.now_s += 0.25
            metrics.tick()
    store = metrics.store()
    found = observed(store)["balance"]
    assert found["utilisation_cpu_frac"] == pytest.approx((6 + 6) / 32)
    assert found["idle_cpu_frac"] == pytest.approx(20 / 32)
    assert found["utilisation_cpu_var"] == pytest.approx(np.var([0.75, 0.25]))
    assert found["utilisation_gpu_frac"] is None
    seen = samples(store)
    assert seen["trimtab_utilisation_cpu_frac", ()] == pytest.approx(12 / 32)
    assert seen["trimtab_idle_cpu_frac", ()] == pytest.approx(20 / 32)
    assert seen["trimtab_utilisation_cpu_var", ()] == pytest.approx(0.0625)
    clock.now_s += 120.0
    metrics.tick()
    metrics.tick()
    assert len(store.resources) <= 1


def test_percentiles_and_variance_of_the_window() -> None:
    clock = Clock()
    metrics = make_metrics(clock=clock)
    durations_s = np.random.default_rng(1).lognormal(0.0, 0.7, 5000)
    for duration_s in durations_s.tolist():
        exchange = make_exchange()
        exchange.attempts[0].ended_s = 100.0 + duration_s
        metrics.ended([exchange])
    clock.now_s += 1.0
    metrics.tick()
    store = metrics.store()
    (second,) = summaries.last_seconds(store, 10)
    assert second.requests == second.timed == 5000
    for rank, found_s in zip((50, 95, 99), percentiles_s(second.durations, 50, 95, 99), strict=True):
        assert found_s == pytest.approx(np.percentile(durations_s, rank), rel=0.03)
    assert variance_s2(second) == pytest.approx(durations_s.var())
    found = summaries.balance(store)
    assert found["completion_var_s2"] == pytest.approx(durations_s.var())
    assert found["completion_mean_s"] == pytest.approx(durations_s.mean())
    assert found["queueing_mean_s"] == pytest.approx(0.5)  # as `make_exchange` has it
    assert found["rejected_frac"] == 0.0
    assert summaries.traffic(store)["requests_per_s"] == 5000
    assert [point["requests_per_s"] for point in summaries.history(store)] == [5000]


def test_the_window_forgets() -> None:
    clock = Clock()
    metrics = make_metrics(Sources(lambda: [make_node()]), clock)
    for _ in range(1000):
        clock.now_s += 1.0
        metrics.tick()
    assert len(metrics.store().seconds) == 120
    assert len(metrics.store().use) == 6


def test_nothing_happened_yet() -> None:
    store = make_metrics().store()
    assert summaries.traffic(store)["p99_s"] is None
    assert observed(store)["balance"]["utilisation_allocated_cv"] is None
    assert math.isnan(variance_s2(Second()))
    assert "trimtab_utilisation_allocated_cv" not in {name for name, _ in samples(store)}


def test_the_counts_of_the_whole_window_are_counted_without_ticks() -> None:
    metrics = make_metrics()
    for _ in range(10_000):
        metrics.ended([make_exchange()])
    assert samples(metrics.store())["trimtab_request_duration_seconds_count", ("llama", "chat")] == 10_000


def test_a_removed_node_leaves_no_state() -> None:
    nodes = [make_node("a"), make_node("b")]
    nodes[1].reported = {"waiting": 2.0, "cpu_frac": 0.5}
    metrics = make_metrics(Sources(lambda: nodes))
    seen = samples(metrics.store())
    assert seen["trimtab_node_reported", ("b", "cpu_frac")] == 0.5
    figures_b = node_figures(metrics.store(), nodes, 0.0)[1]
    assert (figures_b["queued"], figures_b["health"], figures_b["utilisation_frac"]) == (2, "up", None)
    nodes.pop()
    assert not [labels for _, labels in samples(metrics.store()) if "b" in labels[:1]]


def test_every_family_is_described() -> None:
    text = exposition(make_metrics().store()).decode()
    assert [name for name in FAMILIES if f"# HELP {name} " not in text] == []
    with pytest.raises(KeyError):
        MetricStore().table("trimtab_nonsense")
