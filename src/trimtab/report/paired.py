"""Significant differences of policies: paired over the same seeds, with common random numbers.

Two policies are undecided if the interval of their difference contains zero, even if their own intervals
overlap little. Differences can be significant although the own intervals overlap much. Each pair is tested at
95 % by itself: with many policies, one in twenty of the equal pairs is expected to look different.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from trimtab.metrics import Estimate, Metric, paired_difference_ci95

if TYPE_CHECKING:
    from trimtab.experiments.compare import PolicyResult


class Verdict(Enum):
    """How a policy compares with the best one in a metric."""

    BEST = "best"
    SAME = "same"  # not distinguishable from the best
    BEHIND = "behind"
    NONE = "none"  # the metric has no better direction, is undefined, or is the same for all


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One policy against the best of a metric; the difference has the metric's unit and sign (own − best)."""

    verdict: Verdict
    difference: Estimate | None


_UNDECIDED = AgainstBest(Verdict.NONE, None)


def against_best(results: Sequence[PolicyResult], metric: Metric) -> list[AgainstBest]:
    """Each result against the ranked one with the best mean, in the order given."""
    ranked = [result for result in results if result.is_ranked]
    best_mean = _best_mean(ranked, metric)
    if best_mean is None:
        return [_UNDECIDED] * len(results)
    best = next(result for result in ranked if result.metrics[metric.name].mean == best_mean)
    return [_against(r, best, metric.name) if r.is_ranked else _UNDECIDED for r in results]


def _best_mean(results: Sequence[PolicyResult], metric: Metric) -> float | None:
    means = [r.metrics[metric.name].mean for r in results if math.isfinite(r.metrics[metric.name].mean)]
    if metric.better is None or len(set(means)) < 2:
        return None
    return max(means) if metric.better == "higher" else min(means)


def _against(result: PolicyResult, best: PolicyResult, metric: str) -> AgainstBest:
    mean = result.metrics[metric].mean
    if not math.isfinite(mean):
        return _UNDECIDED
    if mean == best.metrics[metric].mean:
        return AgainstBest(Verdict.BEST, None)
    difference = paired_difference_ci95(_per_seed(result, metric), _per_seed(best, metric))
    if difference.ci95 is None:  # one seed: nothing is known of the spread
        return AgainstBest(Verdict.BEHIND, None)
    undecided = abs(difference.mean) <= difference.ci95
    return AgainstBest(Verdict.SAME if undecided else Verdict.BEHIND, difference)


def _per_seed(result: PolicyResult, metric: str) -> list[float]:
    return [run.metrics[metric] for run in sorted(result.runs, key=lambda run: run.seed)]
