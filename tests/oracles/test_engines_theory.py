"""Engines against closed forms: processor sharing by its formulas, a language model by its own arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.engines import engine_cluster, engines_of, finished, model_type, shared_type, token_requests
from support.formulas import mmc_wait_s
from support.stations import SCV, stream, times_s
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import true_service_s

SEEDS = range(20)
LOAD = 0.7
MOST = 2_000  # requests at once, more than ever come together here


def _shared(servers: int) -> Cluster:
    slowdown = np.maximum(1.0, np.arange(MOST + 1) / servers)
    return replace(cluster(1, slots=servers), engines=engines_of([shared_type(slowdown)]))


@pytest.mark.parametrize("sizes", SCV)
def test_a_shared_server_takes_the_same_mean_whatever_the_sizes(sizes: str) -> None:
    """M/G/1-PS: E[T] = E[S] / (1 − ρ). Kleinrock, Queueing Systems II, §4.4."""
    n = 300_000 if sizes == "hyper" else 100_000
    means = [times_s(stream(_shared(1), LOAD, n, seed, sizes=sizes)).mean() for seed in SEEDS]
    assert_agrees(means, 1.0 / (1.0 - LOAD))


def test_a_shared_server_slows_each_size_by_the_same_factor() -> None:
    """M/G/1-PS: E[T | size x] = x / (1 − ρ)."""
    runs = [stream(_shared(1), LOAD, 100_000, seed) for seed in SEEDS]
    for low, high in ((0.1, 0.2), (1.0, 1.2), (3.0, 4.0)):
        means = []
        for run in runs:
            units = run.state.truth["units"][-len(times_s(run)) :]
            chosen = (units >= low) & (units < high)
            means.append((times_s(run)[chosen] / units[chosen]).mean())
        assert_agrees(means, 1.0 / (1.0 - LOAD))


def test_shared_servers_have_as_many_requests_as_servers_with_a_queue() -> None:
    """M/M/c-PS: the number in the system, and so by Little the mean time, is that of M/M/c."""
    means = [times_s(stream(_shared(3), 3 * LOAD, 100_000, seed)).mean() for seed in SEEDS]
    assert_agrees(means, 1.0 + mmc_wait_s(3, 3 * LOAD, 1.0))


def test_a_request_alone_takes_what_its_tables_say() -> None:
    kind = model_type(context_s=1e-5, pair_s=1e-7, token_budget=100)
    c = engine_cluster([kind], [0])
    prompt, output = [1, 99, 100, 101, 1_000], [1, 2, 50, 300, 7]
    requests = token_requests(c, 1_000.0 * np.arange(5), prompt, output)
    run = finished(c, requests)
    took_s = run.state.requests["finish_s"] - requests.work["arrival_s"]
    assert took_s == pytest.approx(true_service_s(c, requests)[:, 0], rel=1e-12)
