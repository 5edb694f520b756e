"""Objectives of tuning: as they are written, and what they make of two runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.experiments.tuning import Goal
from trimtab.experiments.tuning.request_values import measured_names, resampled, statistic
from trimtab.metrics import METRICS


def test_an_objective_is_read_with_its_short_names() -> None:
    goal = Goal.parsed("wait_p90 s.t. mean<=+1%, goodput>=-0.5%")
    assert str(goal) == "queueing_p90_s s.t. completion_mean_s<=+1%, slo_attained_frac>=-0.5%"
    assert Goal.parsed(str(goal)) == goal
    assert goal.metrics[-1] == "completion_p99_s"


def test_the_score_is_the_change_and_a_missed_bound_costs_more() -> None:
    goal, base = Goal.parsed("mean s.t. p99<=+10%"), {"completion_mean_s": 10.0, "completion_p99_s": 100.0}
    score = goal.score({"completion_mean_s": 9.0, "completion_p99_s": 110.0}, base)
    assert score == pytest.approx(math.log(0.9))
    assert goal.score({"completion_mean_s": 9.0, "completion_p99_s": 121.0}, base) == pytest.approx(
        math.log(0.9) + 5.0 * math.log(1.1)
    )
    assert goal.score({"completion_mean_s": math.nan, "completion_p99_s": 1.0}, base) == math.inf


def test_more_is_better_of_a_share() -> None:
    goal = Goal.parsed("goodput")
    found = {"slo_attained_frac": 0.9}
    assert goal.score(found, {"slo_attained_frac": 0.8}) < 0.0


def test_statistics_are_those_of_the_metrics() -> None:
    values = np.array([3.0, 1.0, np.nan, 2.0])
    assert statistic("completion_mean_s", values) == 2.0
    assert statistic("queueing_p50_s", values) == 2.0
    assert set(measured_names()) <= METRICS.keys()
    assert "utilisation_var" not in measured_names()


def test_the_interval_of_the_mean_is_that_of_block_means() -> None:
    """Blocks of equal values: the mean deviates as one block over the root of their number."""
    of_blocks = np.random.default_rng(1).normal(10.0, 2.0, 20)
    values = np.repeat(of_blocks, 25)
    drawn = resampled("completion_mean_s", [[values], [2.0 * values]], 0)
    assert drawn[1] == pytest.approx(2.0 * drawn[0])  # the same draws for both policies
    assert np.std(drawn[0]) == pytest.approx(np.std(of_blocks) / np.sqrt(20), rel=0.1)
