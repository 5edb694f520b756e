"""A recorded trace without randomness is one run, with intervals by batch means."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import trimtab as tt
from trimtab.metrics.statistics import batch_means_ci95, p99_ci95, student_t95
from trimtab.report.comparison_columns import interval_text


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 requests with all that would else be drawn."""
    draw = np.random.default_rng(0)
    arrival_s = np.sort(draw.uniform(0.0, 2_000.0, 1_000))
    rows = [f"{at:.3f},{size:.3f}" for at, size in zip(arrival_s, draw.exponential(1.0, 1_000), strict=True)]
    path = tmp_path_factory.mktemp("trace") / "own.csv"
    path.write_text("\n".join(["arrival_s,size", *rows]) + "\n")
    return path


def scenario(trace: Path, **workload: float) -> tt.Scenario:
    return tt.Scenario.model_validate(
        {
            "name": "recorded",
            "cluster": {"types": {"node": {"memory_gib": 1}}, "nodes": [{"type": "node", "count": 2}]},
            "classes": {"work": {"unit_s": 1.0}},
            "workload": {"trace": {"file": str(trace)}, "load": 0.5, **workload},
        }
    )


def test_one_run_with_batch_means(trace: Path) -> None:
    policies = ["round-robin", "least-expected-wait"]
    compared = tt.compare(scenario(trace), policies, seeds=3, sweep=(0.4,), jobs=1)
    assert compared.seeds == (0,)
    assert [len(r.runs) for r in compared.results] == [1, 1]
    metrics = compared.results[0].metrics
    assert metrics["completion_mean_s"].ci95 is not None
    assert metrics["completion_mean_s"].ci95 > 0.0
    assert metrics["completion_p99_s"].ci95 is None
    assert metrics["utilisation_var"].ci95 is None
    assert any(note.startswith("a recorded trace without randomness") for note in compared.notes())
    assert "for p99 by a block bootstrap" in interval_text(compared)
    kinds = [r["intervals"] for r in compared.to_dict()["results"]]
    means = ("completion_mean_s", "queueing_mean_s", "slowdown_mean")
    assert kinds == [dict.fromkeys(means, "batch means")] * 2  # too few requests for p99


def test_a_policy_that_draws_keeps_its_seeds(trace: Path) -> None:
    compared = tt.compare(scenario(trace), ["random", "round-robin"], seeds=3, sweep=(), jobs=1)
    assert compared.seeds == (0, 1, 2)
    assert [r.is_seedless for r in compared.results] == [False, True]
    assert compared.results[1].metrics["completion_mean_s"].ci95
    one = tt.compare(scenario(trace), ["random", "round-robin"], seeds=1, sweep=(), jobs=1)
    assert [bool(r.metrics["completion_mean_s"].ci95) for r in one.results] == [False, True]
    assert interval_text(one) == "One seed: ± is 95 % from this run, of policies that no seed changes"


def test_drawn_errors_and_generated_work_keep_their_seeds(trace: Path) -> None:
    for settings in (scenario(trace, service_cv=0.2), "tiny"):
        compared = tt.compare(settings, ["round-robin"], seeds=2, sweep=(), jobs=1)
        assert compared.seeds == (0, 1)
        assert not compared.results[0].is_seedless


def test_batch_means_cover_the_mean_of_dependent_values() -> None:
    draw, covered = np.random.default_rng(1), 0
    for _ in range(200):
        noise = draw.normal(size=4_000)
        series = np.zeros(4_000)
        for i in range(1, 4_000):
            series[i] = 0.9 * series[i - 1] + noise[i]
        half = batch_means_ci95(series)
        assert half is not None
        covered += abs(series.mean()) <= half
    assert 0.88 <= covered / 200 <= 0.99
    assert batch_means_ci95(np.zeros(100)) is None


def test_the_block_bootstrap_covers_the_p99_of_a_queue() -> None:
    """Time in an M/M/1 queue of load 0.5 is exponential with rate 0.5."""
    draw, true_s, covered = np.random.default_rng(1), math.log(100.0) / 0.5, 0
    for _ in range(200):
        service_s, gap_s = draw.exponential(1.0, 10_000), draw.exponential(2.0, 10_000)
        steps = np.cumsum(np.concatenate([[0.0], service_s[:-1] - gap_s[1:]]))
        completion_s = steps - np.minimum.accumulate(steps) + service_s  # Lindley, from an empty queue
        half = p99_ci95(completion_s)
        assert half is not None
        covered += abs(np.quantile(completion_s, 0.99) - true_s) <= half
    assert 0.88 <= covered / 200 <= 0.99
    assert p99_ci95(np.zeros(4_999)) is None


def test_the_bootstrap_of_one_busy_block_finds_p99_in_the_others_where_it_is_not_drawn() -> None:
    """Against np.quantile of each resample, laid out in full: the p99 is far below the top 5 % in a third."""
    values = np.random.default_rng(2).random(5_000)
    values[:500] += 100.0
    times = np.random.default_rng(0).multinomial(10, np.full(10, 0.1), 200)
    blocks = values.reshape(10, 500)
    of_each = [np.quantile(blocks.repeat(time, axis=0), 0.99, method="inverted_cdf") for time in times]
    assert np.min(of_each) < 1.0
    half = p99_ci95(values)
    assert half == pytest.approx(student_t95(9) * np.std(of_each, ddof=1), rel=0.01)
