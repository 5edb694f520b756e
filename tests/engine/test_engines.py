"""Engines: fast-forward equals step by step, compiled equals interpreted, and memory is conserved."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engines import (
    engine_cluster,
    finished,
    measured_type,
    model_type,
    shared_type,
    token_requests,
)
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Cancel, OnFailure, OnRefusal
from trimtab.domain.requests import Prefixes, Requests, Status
from trimtab.engine.bound_state import python_state
from trimtab.engine.driver import Driver
from trimtab.engine.service import settle_engines

POLICIES = (
    "round-robin",
    "least-connections",
    "power-of-d",
    "least-connections+sjf",
    "round-robin+edf",
    "least-expected-completion",
    "late-binding",
    "lwl",
)


class Case(NamedTuple):
    """A run with whatever can meet an engine."""

    cluster: Cluster
    requests: Requests
    policy: str
    options: dict[str, Any]


def _kinds(g: np.random.Generator, on_grid: bool) -> list[dict[str, Any]]:
    """A type with a language model, and another one of any kind. On a grid all times are whole."""
    seconds = {
        "step_s": 1.0 if on_grid else 0.1 + g.random(),
        "row_s": 0.25 if on_grid else 0.1 * g.random(),
        "context_s": float(g.choice([0.0, 2.0**-6])) if on_grid else 0.01 * g.random(),
        "token_s": 0.125 if on_grid else 0.01,
        "pair_s": 0.0 if on_grid else 1e-5,
    }
    kinds = [
        model_type(
            **seconds,
            batch_max=int(g.integers(1, 9)),
            token_budget=int(g.integers(4, 40)),
            kv_tokens=int(g.integers(60, 200)),
            kv_kept=int(g.choice([0, 10])),
            by_priority=int(g.integers(0, 2)),
        )
        for _ in range(2)
    ]
    if (other := g.random()) < 0.25:
        kinds[1] = {}
    elif other < 0.5:
        kinds[1] = shared_type(np.maximum(1.0, np.arange(9) / int(g.integers(1, 4))))
    elif other < 0.75:
        seconds = np.cumsum(1 + g.integers(0, 3, (9, 3)), axis=1) * (1.0 if on_grid else 0.3 + g.random())
        kinds[1] = measured_type([1, 8, 24], seconds)
    return kinds


def _prefixes(g: np.random.Generator, prompt: np.ndarray) -> Prefixes:
    """Prompts of blocks of four tokens that share beginnings."""
    counts = -(-prompt // 4)
    first = np.concatenate([[0], np.cumsum(counts)])
    blocks = np.zeros(first[-1], np.int32)
    numbers: dict[tuple[int, ...], int] = {}
    for i, many in enumerate(counts):
        seen: tuple[int, ...] = (int(g.integers(0, 3)),)
        for k in range(many):
            seen = (*seen, int(g.random() < 0.2 * k) * i)
            blocks[first[i] + k] = numbers.setdefault(seen, len(numbers))
    return Prefixes(blocks, first, prompt.astype(float), 4.0)


def _faults(g: np.random.Generator, n_nodes: int, on_grid: bool) -> np.ndarray:
    many = int(g.integers(1, 4))
    faults = np.zeros(many, FAULT)
    start_s = 40.0 * g.random(many)
    faults["start_s"] = np.floor(start_s) if on_grid else start_s
    faults["end_s"] = faults["start_s"] + (g.integers(1, 10, many) if on_grid else 10.0 * g.random(many))
    faults["factor"], faults["node_idx"] = g.choice([0.0, 0.5], many), g.integers(0, n_nodes, many)
    faults["mtbf_s"] = faults["mttr_s"] = np.inf
    return faults


def case_of(seed: int) -> Case:
    """Draw nodes, requests, faults, telemetry, cancellation and a policy."""
    g = np.random.default_rng(seed)
    on_grid = g.random() < 0.5
    kinds, n_nodes, n = _kinds(g, on_grid), int(g.integers(1, 4)), int(g.integers(5, 60))
    place = [0, *g.integers(0, 2, n_nodes - 1).tolist()]
    cluster = engine_cluster(kinds, place, queue_max=int(g.choice([0, 3, 1 << 20])))
    arrival_s = n * float(g.choice([0.3, 1.0, 3.0])) * g.random(n)
    arrival_s = np.sort(np.floor(arrival_s) if on_grid else arrival_s)
    prompt, output, work = g.integers(1, 30, n), g.integers(1, 28, n), {}
    if g.random() < 0.5:
        work["priority"] = g.integers(0, 3, n)
    if g.random() < 0.5:
        work["deadline_s"] = arrival_s + (g.integers(1, 40, n) if on_grid else 40.0 * g.random(n))
    prefixes = _prefixes(g, prompt) if g.random() < 0.5 else None
    options = {
        "cancel": Cancel(int(g.integers(0, 3))),
        "on_failure": OnFailure(int(g.integers(0, 2))),
        "on_refusal": OnRefusal(int(g.random() < 0.2)),
        "lookahead": int(g.integers(1, 4)),
    }
    if g.random() < 0.4:
        options["telemetry_period_s"] = float(g.choice([1.0, 2.5]))
        options["dispatchers"] = int(g.integers(1, 3))
    if g.random() < 0.6:
        options["faults"] = _faults(g, n_nodes, on_grid)
    requests = token_requests(cluster, arrival_s, prompt, output, prefixes, **work)
    return Case(cluster, requests, str(g.choice(POLICIES)), options)


def _run(case: Case, mode: str, fast_forward: bool) -> Driver:
    run = finished(
        case.cluster, case.requests, case.policy, mode, 7, **case.options, fast_forward=fast_forward
    )
    state, kv_tokens = run.state, case.cluster.engines.types["kv_tokens"][case.cluster.type_idx]
    counts, engines = state.counts[0], state.engines
    assert (engines["peak"] <= kv_tokens).all()
    for name in ("used", "kept", "context", "waiting", "decoding", "prefilling"):
        assert (engines[name] >= 0).all(), name
    ended = sum(int(counts[name]) for name in ("finished", "rejected", "cancelled", "lost"))
    assert ended + counts["in_system"] == counts["arrived"] == len(case.requests)
    if counts["in_system"] == 0:
        assert (state.nodes["in_flight"] == 0).all()
        assert (engines["waiting"] == 0).all()
        if counts["cancelled"] == 0:  # else a row may still be in an iteration that ends after the run
            assert (engines["used"] == 0).all()
            assert (state.nodes["running"] == 0).all()
            assert (state.pool_users == 0).all()
    return run


def _outcome(run: Driver) -> dict[str, bytes]:
    rows, sequences = run.state.requests, run.state.sequences
    settle_engines(python_state(run.state), run.now_s)  # a cancelled row may still be in an iteration
    times = ("start_s", "finish_s", "ended_s", "status", "node_idx", "retries")
    outcome = {name: rows[name].tobytes() for name in times}
    outcome |= {name: sequences[name].tobytes() for name in ("first_token_s", "preempted")}
    outcome["iterations"] = run.state.counts["iterations"].tobytes()
    outcome["distances"] = run.state.itl_count.tobytes()
    outcome["cached"] = run.state.counts["cached_tokens"].tobytes()
    return outcome


@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_one_event_for_many_iterations_changes_nothing(seed: int) -> None:
    case = case_of(seed)
    fast, slow = (_outcome(_run(case, "interpreted", forward)) for forward in (True, False))
    assert fast == slow


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_compiled_as_interpreted(seed: int) -> None:
    case = case_of(seed)
    assert _outcome(_run(case, "compiled", True)) == _outcome(_run(case, "interpreted", False))


def test_iterations_of_a_small_batch_by_hand() -> None:
    """Budget 64: the second prompt is read in two chunks beside the first request's tokens."""
    cluster = engine_cluster([model_type()], [0])
    run = finished(cluster, token_requests(cluster, [0.0, 0.0, 1.0], [10, 100, 5], [3, 4, 2]))
    assert run.state.sequences["first_token_s"] == pytest.approx([0.020, 0.142, 1.015])
    assert run.state.requests["finish_s"] == pytest.approx([0.142, 0.175, 1.026])
    assert (run.state.requests["status"] == Status.FINISHED).all()


def test_a_node_that_has_served_nothing_tells_its_iterations() -> None:
    c = engine_cluster([model_type(step_s=0.25), {}], [0, 0, 1])
    state = finished(c, token_requests(c, [0.0], [1], [1])).state
    assert state.requests["node_idx"].tolist() == [0]
    assert state.engine_load["step_s"].tolist() == [0.25, 0.25, 0.0]
