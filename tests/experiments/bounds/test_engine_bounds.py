"""Bounds for engines: against measured runs of many small cases, and against cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.chains import Stage, chained
from support.engines import engine_cluster, measured_type, model_type, shared_type, token_requests
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, OnFailure, Options
from trimtab.domain.requests import Prefixes, Requests
from trimtab.engine.simulator import run
from trimtab.experiments.bounds import bound_of
from trimtab.experiments.bounds.bound import Bound
from trimtab.policies import find

POLICIES = ("round-robin", "least-connections", "kv-cost", "jiq+sjf")
BLOCK = 8


def bound(c: Cluster, r: Requests) -> Bound:
    found = bound_of(c, r, Options())
    assert found is not None
    return found


def _case(seed: int) -> tuple[Cluster, Requests, Options]:
    """Language models beside shared nodes and slots; preemptions, failures, slow-downs, prefixes."""
    g = np.random.default_rng(seed)
    kinds = [
        model_type(
            step_s=g.uniform(0.001, 0.05),
            row_s=g.uniform(0.0001, 0.01),
            token_s=g.uniform(0.0001, 0.003),
            context_s=g.choice([0.0, 1e-5, 1e-3]),
            pair_s=g.choice([0.0, 1e-5]),
            mixed_s=g.choice([0.0, 0.004]),
            mixed_row_s=g.choice([0.0, 0.001]),
            mixed_context_s=g.choice([0.0, 1e-5]),
            batch_max=int(g.integers(1, 9)),
            token_budget=int(g.integers(9, 80)),
            kv_tokens=int(g.integers(110, 300)),
        )
        for _ in range(2)
    ]
    kinds += [shared_type(np.maximum(1.0, np.arange(9) / g.uniform(1.0, 3.0)))] if seed % 3 == 0 else []
    kinds += [{}] if seed % 4 == 0 else []
    if seed % 5 == 1:
        measured_s = np.cumsum(np.cumsum(g.exponential(0.2, (6, 2)), axis=0), axis=1)
        kinds += [measured_type((5.0, 30.0), measured_s)]
    nodes = [0, *g.integers(0, len(kinds), int(g.integers(0, 4))).tolist()]
    c, n = engine_cluster(kinds, nodes), int(g.integers(1, 40))
    prompt, output = g.integers(1, 60, n), g.integers(1, 45, n)
    arrival_s = np.cumsum(g.exponential(1.0, n)) * g.choice([0.0, 0.01, 0.1, 1.0])
    prefixes = None
    if seed % 2:
        counts = prompt // BLOCK
        first = np.concatenate([[0], np.cumsum(counts)])
        shared = np.arange(first[-1]) - np.repeat(first[:-1], counts)  # all prompts begin alike
        prefixes = Prefixes(shared.astype(np.int32), first, prompt.astype(float), float(BLOCK))
    faults = np.zeros(2, FAULT)
    faults["factor"], faults["start_s"], faults["end_s"] = [0.0, 0.5], [0.2, 0.5], [0.6, 1.5]
    faults["mtbf_s"] = np.inf
    on_failure = OnFailure.RESUME if seed % 5 else OnFailure.RESTART
    options = Options(faults=faults if seed % 3 else None, on_failure=on_failure, max_retries=5)
    return c, token_requests(c, arrival_s, prompt, output, prefixes), options


@pytest.mark.parametrize("part", range(6))
def test_no_policy_is_below_the_bound(part: int) -> None:
    preempted = 0
    for seed in range(part, 120, 6):
        c, r, options = _case(seed)
        found = bound_of(c, r, options)
        assert found is not None
        for policy in POLICIES:
            state = run(c, r, options, find(policy), seed=seed, mode="interpreted").state
            took_s = state.requests["finish_s"][: len(r)] - r.work["arrival_s"]
            is_done = np.isfinite(took_s)
            assert took_s[is_done].sum() >= found.totals_s[is_done.sum()], (seed, policy)
            preempted += state.counts["preemptions"][0]
    assert preempted > 0


def test_a_request_alone_takes_what_the_bound_says() -> None:
    """Eight tokens are read in one iteration of 1.8 s; then four, each 1.1 s."""
    c = engine_cluster([model_type(step_s=1.0, token_s=0.1, row_s=0.1, token_budget=8)], [0])
    r = token_requests(c, [3.0], [8], [5])
    found = bound(c, r)
    assert found.method == "alone"
    assert found.mean_s == pytest.approx(1.8 + 4 * 1.1)
    finish_s = run(c, r, Options(), find("round-robin"), mode="interpreted").state.requests["finish_s"][0]
    assert finish_s - 3.0 == pytest.approx(found.mean_s)


def test_it_takes_the_fastest_type() -> None:
    fast, slow = model_type(step_s=1.0), model_type(step_s=2.0)
    alone = bound(engine_cluster([fast], [0]), token_requests(engine_cluster([fast], [0]), [0.0], [1], [9]))
    both = engine_cluster([slow, fast], [0, 1])
    assert bound(both, token_requests(both, [0.0], [1], [9])).mean_s == alone.mean_s


def test_a_batch_serves_no_faster_than_its_best_throughput() -> None:
    """A row of four costs 0.125 s a token. Beside three, five prompt tokens take the other 0.325 s."""
    c = engine_cluster([model_type(step_s=0.3, token_s=0.05, row_s=0.05, batch_max=4, token_budget=8)], [0])
    r = token_requests(c, np.zeros(40), np.ones(40), np.full(40, 101))
    found = bound(c, r)
    assert found.method == "B2 pooled SRPT"
    work_s = 100 * 0.125 + 0.065  # one after the other, the mean one ends at 20.5 times that
    assert found.mean_s == pytest.approx(20.5 * work_s)
    took_s = run(c, r, Options(), find("round-robin"), mode="interpreted").state.requests["finish_s"]
    assert took_s.mean() > found.mean_s


def test_shared_nodes_by_hand() -> None:
    """Units take half a second. Two processors serve 1 and 3 units, then 3 again: 0.5, 1.5, 2 s at best."""
    c = engine_cluster([shared_type(np.maximum(1.0, np.arange(5) / 2))], [0])
    r = token_requests(c, np.zeros(3), np.ones(3), [1, 3, 3])
    assert bound(c, r).totals_s.tolist() == pytest.approx([0.0, 0.5, 2.0, 3.5])


def test_measured_nodes_by_hand() -> None:
    """Alone one and six seconds, among two three and twelve: a share of one and six seconds."""
    c = engine_cluster([measured_type((1.0, 3.0), ((1.0, 1.0), (1.0, 6.0), (3.0, 12.0)))], [0])
    r = token_requests(c, np.zeros(2), np.ones(2), [1, 3])
    assert bound(c, r).totals_s.tolist() == pytest.approx([0.0, 1.0, 8.0])
    assert bound(c, token_requests(c, np.zeros(2), np.ones(2), [1, 4])).totals_s.size == 2  # 4 is not served


def test_what_fits_no_memory_is_left_out() -> None:
    c = engine_cluster([model_type(kv_tokens=50)], [0])
    assert bound(c, token_requests(c, [0.0, 0.0], [10, 40], [5, 20])).totals_s.size == 2
    assert bound_of(c, token_requests(c, [0.0], [40], [20]), Options()) is None


def test_stages_on_engines_have_no_bound() -> None:
    c = engine_cluster([model_type()], [0])
    r = token_requests(c, [0.0], [1], [1])
    stages = chained(c, replace(r), {"a": Stage()})
    assert bound_of(c, stages, Options()) is None
