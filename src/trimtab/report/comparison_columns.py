"""Cells of a comparison table, in one format and with one set of marks for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trimtab.metrics import RANKED_FROM, Estimate, Metric
from trimtab.report.number_formats import style_of, title_of
from trimtab.report.paired import AgainstBest, Verdict, against_best
from trimtab.validation.names import nearest

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, PolicyResult

MARKS: Final = {
    Verdict.BEST: "*",
    Verdict.SAME: "=",
    Verdict.BEHIND: " ",
    Verdict.NONE: " ",
}
LEGEND: Final = "* marks the best, = values not distinguishable from it (paired differences, 95 %)"
UNRANKED: Final = " †"  # after the name of a policy without a rank
DISTANCE: Final = Metric(
    "distance_to_bound_frac",
    "frac",
    "How far above the lower bound, for as much work as was finished.",
    "lower",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of one policy."""

    text: str
    value: float  # what the column sorts by; nan where undefined
    verdict: Verdict
    remark: str  # the difference to the best, in words; "" where there is none

    @property
    def marked(self) -> str:
        """The text with its mark, so that best and undecided show without colour."""
        return self.text + MARKS[self.verdict]


@dataclass(frozen=True, slots=True)
class Column:
    """One metric of all policies."""

    metric: Metric
    title: str
    unit: str  # "" for a plain number
    cells: tuple[Cell, ...]  # [policies]


def shown_name(result: PolicyResult) -> str:
    """The name of a policy, marked if it has no rank."""
    return result.policy if result.is_ranked else result.policy + UNRANKED


def legend(comparison: Comparison) -> str:
    """The legend of a comparison's marks."""
    if all(r.is_ranked for r in comparison.results):
        return LEGEND
    return f"{LEGEND}; † no rank: it served less than {100 * RANKED_FROM:g} % of the {comparison.kind.items}"


def interval_text(comparison: Comparison) -> str:
    """The kind of confidence intervals of a comparison, in words."""
    if all(result.is_seedless for result in comparison.results):
        return "One run, which no seed changes: ± is 95 % by batch means, for p99 by a block bootstrap"
    seeds = len(comparison.seeds)
    if seeds > 1:
        some = "; from one run, of policies that no seed changes"
        is_mixed = any(result.is_seedless for result in comparison.results)
        return f"Mean ± 95 % confidence over {seeds} seeds{some if is_mixed else ''}"
    if any(result.is_seedless for result in comparison.results):
        return "One seed: ± is 95 % from this run, of policies that no seed changes"
    return "One seed: no intervals"


def metric_column(results: Sequence[PolicyResult], metric: Metric) -> Column:
    """Column of one metric of the catalogue, one cell per result."""
    estimates = [result.metrics[metric.name] for result in results]
    return _column(metric, estimates, against_best(results, metric))


def distance_column(results: Sequence[PolicyResult]) -> Column | None:
    """Column of the distances above the lower bound; None if no policy has a bound."""
    estimates = [result.distance_frac for result in results]
    if not any(math.isfinite(estimate.mean) for estimate in estimates):
        return None
    return _column(DISTANCE, estimates, [AgainstBest(Verdict.NONE, None)] * len(estimates))


def _column(metric: Metric, estimates: Sequence[Estimate], comparisons: Sequence[AgainstBest]) -> Column:
    style = style_of(estimates, metric.unit)
    blank = metric is DISTANCE

    def cell(estimate: Estimate, against: AgainstBest) -> Cell:
        defined = math.isfinite(estimate.mean)
        text = "" if blank and not defined else style.estimate(estimate)
        remark = "" if against.difference is None else f"{style.estimate(against.difference)} {style.unit}"
        return Cell(text, estimate.mean, against.verdict, remark.strip())

    cells = tuple(cell(*pair) for pair in zip(estimates, comparisons, strict=True))
    title = "above bound" if blank else title_of(metric)
    return Column(metric, title, style.unit, cells)


def named_metrics(names: Sequence[str], metrics: Mapping[str, Metric]) -> tuple[Metric, ...]:
    """Metrics by name. Raises UsageError for an unknown one, with the nearest names."""
    return tuple(_named(name, metrics) for name in names)


def _named(name: str, metrics: Mapping[str, Metric]) -> Metric:
    if name in metrics:
        return metrics[name]
    from trimtab.errors import UsageError

    raise UsageError("no such metric", field="metric", value=name, expected=nearest(name, metrics))


def bound_text(bound: Mapping[str, Any], objective: Metric, title: str) -> str:
    """The lower bound of a comparison or run in one line; `title` is the objective in words."""
    if bound[objective.name] is None:
        return "No lower bound holds for this scenario."
    estimate = Estimate(bound[objective.name], bound.get("ci95"))
    style = style_of([estimate], objective.unit)
    return f"Lower bound on {title}: {style.estimate(estimate)} {style.unit} ({bound['method']})."


def comparison_bound_text(comparison: Comparison) -> str:
    """The lower bound of a comparison in one line."""
    kind = comparison.kind
    return bound_text(comparison.bound, kind.metrics[kind.objective], kind.objective_title)


def assumptions_text(bound: Mapping[str, Any]) -> str:
    """The assumptions of the bound, in one line; "" without a bound."""
    return f"It assumes: {'; '.join(bound['assumptions'])}." if bound["assumptions"] else ""
