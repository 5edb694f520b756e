from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import ttest_rel

from support.synthetic import over_seeds, run_result
from trimtab.experiments.compare import PolicyResult
from trimtab.metrics import METRICS, Estimate
from trimtab.report.paired import Verdict, against_best

METRIC = "completion_mean_s"


def result(policy: str, values: list[float], metric: str = METRIC) -> PolicyResult:
    runs = tuple(
        replace(run, metrics={**run.metrics, metric: value})
        for run, value in zip([run_result(policy, 0, s) for s in range(len(values))], values, strict=True)
    )
    return PolicyResult(policy, over_seeds(runs), Estimate(0.1, 0.01), 1.0, runs)


def verdicts(*results: PolicyResult, metric: str = METRIC) -> list[Verdict]:
    return [against.verdict for against in against_best(results, METRICS[metric])]


def test_a_constant_gain_is_told_apart_where_the_intervals_overlap() -> None:
    seeds = [10.0, 20.0, 30.0, 40.0]
    slower = [value + 0.5 for value in seeds]
    assert verdicts(result("a", slower), result("b", seeds)) == [Verdict.BEHIND, Verdict.BEST]


def test_a_gain_that_changes_sign_over_the_seeds_is_undecided() -> None:
    assert verdicts(result("a", [10.0, 11.0, 12.0]), result("b", [10.1, 10.9, 12.1])) == [
        Verdict.BEST,
        Verdict.SAME,
    ]


def test_the_verdict_is_that_of_the_paired_t_test() -> None:
    best, other = [10.0, 11.0, 12.0, 13.0, 14.0], [10.3, 11.1, 12.6, 13.0, 14.4]
    own = against_best([result("a", best), result("b", other)], METRICS[METRIC])[1]
    interval = ttest_rel(other, best).confidence_interval(0.95)
    assert own.difference is not None
    assert own.difference.ci95 is not None
    assert own.difference.mean - own.difference.ci95 == pytest.approx(interval.low)
    assert own.difference.mean + own.difference.ci95 == pytest.approx(interval.high)
    assert (own.verdict is Verdict.SAME) == (interval.low <= 0.0 <= interval.high)


def test_the_highest_is_best_where_higher_is_better() -> None:
    metric = "slo_attained_frac"
    results = result("a", [0.8, 0.8], metric), result("b", [0.9, 0.9], metric)
    assert verdicts(*results, metric=metric) == [Verdict.BEHIND, Verdict.BEST]


def test_ties_are_all_best() -> None:
    assert verdicts(result("a", [1.0, 2.0]), result("b", [2.0, 1.0]), result("c", [101.0, 102.0])) == [
        Verdict.BEST,
        Verdict.BEST,
        Verdict.BEHIND,
    ]


@pytest.mark.parametrize("values", [[1.0, 1.0], [float("nan"), float("nan")]])
def test_nobody_is_best_where_all_are_alike_or_undefined(values: list[float]) -> None:
    assert verdicts(result("a", values), result("b", values)) == [Verdict.NONE, Verdict.NONE]


def test_a_metric_without_a_better_direction_has_no_best() -> None:
    metric = "idle_gpu_memory_frac"
    results = result("a", [0.1, 0.2], metric), result("b", [0.3, 0.4], metric)
    assert verdicts(*results, metric=metric) == [Verdict.NONE, Verdict.NONE]


def test_one_seed_tells_nothing_about_the_others() -> None:
    assert verdicts(result("a", [1.0]), result("b", [1.1])) == [Verdict.BEST, Verdict.BEHIND]
