"""Significant differences of policies: paired over the same seeds, with common random numbers.

An interval of the difference that holds zero leaves two policies undecided, even where their own intervals
overlap little; and narrow differences show where their own intervals overlap much. Each pair is tested at
95 % by itself: with many policies, expect one in twenty of the undecided to be called different.
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


class Standing(Enum):
    """How a policy stands against the best one in a metric."""

    BEST = "best"
    SAME = "same"  # not distinguishable from the best
    BEHIND = "behind"
    NONE = "none"  # the metric has no better direction, is undefined, or is the same for all


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One policy against the best of a metric; the difference has the metric's unit and sign (own − best)."""

    standing: Standing
    difference: Estimate | None


_NOWHERE = AgainstBest(Standing.NONE, None)


def against_best(results: Sequence[PolicyResult], metric: Metric) -> list[AgainstBest]:
    """Each result against the ranked one with the best mean, in the order given."""
    ranked = [result for result in results if result.is_ranked]
    best_mean = _best_mean(ranked, metric)
    if best_mean is None:
        return [_NOWHERE] * len(results)
    best = next(result for result in ranked if result.metrics[metric.name].mean == best_mean)
    return [_against(r, best, metric.name) if r.is_ranked else _NOWHERE for r in results]


def _best_mean(results: Sequence[PolicyResult], metric: Metric) -> float | None:
    means = [r.metrics[metric.name].mean for r in results if math.isfinite(r.metrics[metric.name].mean)]
    if metric.better is None or len(set(means)) < 2:
        return None
    return max(means) if metric.better == "higher" else min(means)


def _against(result: PolicyResult, best: PolicyResult, metric: str) -> AgainstBest:
    mean = result.metrics[metric].mean
    if not math.isfinite(mean):
        return _NOWHERE
    if mean == best.metrics[metric].mean:
        return AgainstBest(Standing.BEST, None)
    difference = paired_difference_ci95(_per_seed(result, metric), _per_seed(best, metric))
    if difference.ci95 is None:  # one seed: nothing is known of the spread
        return AgainstBest(Standing.BEHIND, None)
    undecided = abs(difference.mean) <= difference.ci95
    return AgainstBest(Standing.SAME if undecided else Standing.BEHIND, difference)


def _per_seed(result: PolicyResult, metric: str) -> list[float]:
    return [run.metrics[metric] for run in sorted(result.runs, key=lambda run: run.seed)]
