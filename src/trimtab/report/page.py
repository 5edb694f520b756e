"""One self-contained page per comparison, run or trace: it opens offline and asks the network for nothing.

Style, script and plotly.js are embedded, and the page's own security policy forbids any request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from trimtab.metrics import METRICS, Estimate
from trimtab.report import plots
from trimtab.report.comparison_columns import assumptions_text, bound_text, legend
from trimtab.report.fragments import (
    STAT_METRICS,
    FigureCard,
    comparison_table,
    facts,
    figure_card,
    glossary,
    grid,
    grouped_rows,
    notes,
    policy_legend,
    section,
    stat,
    stats_of,
)
from trimtab.report.number_formats import style_of, title_of
from trimtab.report.summary_rows import run_groups, trace_groups
from trimtab.report.whole_files import write_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.serving.curves import Curves
    from trimtab.experiments.serving.run import Run
    from trimtab.traces import TraceSummary

Floats = npt.NDArray[np.float64]

LOAD_METRICS: Final = {
    "completion_mean_s": "How mean completion grows with the load; the band is the 95 % interval.",
    "completion_p99_s": "The slowest hundredth of requests: where policies differ most.",
    "slo_attained_frac": "Share of requests that finished in time; higher is better.",
}
BALANCE_METRICS: Final = {
    "utilisation_var": "How unevenly nodes are used: 0 is perfectly even.",
    "utilisation_cv": "The same relative to the mean utilisation.",
    "idle_frac": "Share of slots that did nothing, over the window of the run.",
    "queueing_mean_s": "How long requests waited for a slot.",
    "rejected_frac": "Share of requests turned away; the metrics above give the reasons.",
    "jain_nodes": "Evenness of utilisation between 0 and 1; higher is better.",
}
_TRADE_OFF = FigureCard(
    "trade-off",
    "Evenness against speed",
    "Further left is more even, further down is faster. On unequal nodes the two pull apart: fast nodes "
    "should do more, so the most even policy is seldom the fastest.",
)
_CDF = FigureCard(
    "cdf", "Completion times", "Further left is faster; read off which share had finished within a time."
)
_QUEUE = FigureCard(
    "queue", "Queue over time", "Requests waiting anywhere; peaks are bursts that took time to drain."
)
_HEAT_HOW: Final = (
    "One row per node, grouped by type: dark is idle, bright is fully used; even rows mean balanced work."
)


@dataclass(frozen=True, slots=True)
class Page:
    """What the template is filled with."""

    title: str
    lead: str
    facts: dict[str, str]
    body: str
    figures: Mapping[str, Figure]


def comparison_page(comparison: Comparison, made_at: datetime | None = None) -> str:
    """The page of a comparison as HTML text."""
    return _html(_comparison_page(comparison, made_at or datetime.now(UTC)))


def run_page(run: Run, made_at: datetime | None = None) -> str:
    """The page of one run as HTML text."""
    return _html(_run_page(run, made_at or datetime.now(UTC)))


def write_trace_report(
    summary: TraceSummary,
    rates: tuple[Floats, Floats] | None,
    path: Path,
    *,
    size: Floats | None = None,
    title: str = "Trace",
) -> Path:
    """Write the page of a trace: its summary, its rate over time, and its sizes where given.

    `rates` is what `traces.rate_series` gives: start of each bin in seconds and requests per second in it;
    None where all requests arrive at once. `size` [requests], in work units. Raises UsageError where the file
    can't be written.
    """
    return write_text(path, _html(_trace_page(summary, rates, size, title)))


def _comparison_page(comparison: Comparison, made_at: datetime) -> Page:
    curves = _curves(comparison)
    body = "".join(
        (
            notes(comparison.notes()),
            stats_of(comparison),
            _table_section(comparison),
            _figures_section(comparison, curves),
            _load_section(comparison),
            _balance_section(comparison),
            glossary(),
        )
    )
    return Page(
        title=comparison.scenario.name,
        lead=f"{len(comparison.results)} policies on the same requests, seed by seed.",
        facts=_comparison_facts(comparison, made_at),
        body=body,
        figures=_comparison_figures(comparison, curves),
    )


def _curves(comparison: Comparison) -> dict[str, Curves]:
    """Curves of the first seed, by policy."""
    return {
        result.policy: run.curves
        for result in comparison.results
        for run in result.runs
        if run.curves is not None
    }


def _comparison_facts(comparison: Comparison, made_at: datetime) -> dict[str, str]:
    summary = comparison.to_dict()
    return {
        "Requests": f"{comparison.n_requests:,} per seed",
        "Offered load": f"{100 * comparison.offered_load:.3g} %",
        "Seeds": ", ".join(map(str, comparison.seeds)),
        "Computed in": f"{comparison.elapsed_s:.1f} s",
        **_origin(summary["scenario_hash"], summary["versions"], made_at),
    }


def _origin(scenario_hash: str, versions: Mapping[str, str], made_at: datetime) -> dict[str, str]:
    return {
        "Scenario hash": scenario_hash[:12],
        "Versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "Made": f"{made_at:%Y-%m-%d %H:%M} UTC",
    }


def _table_section(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    interval = f"Mean ± 95 % interval over {seeds} seeds" if seeds > 1 else "One seed, so no intervals"
    how = f"{interval}; {legend(comparison.results)}. Choose a heading to sort by it."
    bound = f"{bound_text(comparison.bound)} {assumptions_text(comparison.bound)}"
    return section(
        "metrics", "Metrics", how, comparison_table(comparison), f'<p class="how">{escape(bound)}</p>'
    )


def _figures_section(comparison: Comparison, curves: Mapping[str, Curves]) -> str:
    how = "Choose policies here for all figures below. Drag to zoom, double-click to zoom out."
    completion = FigureCard(
        "completion",
        "Mean completion time",
        "Shorter is faster; whiskers are 95 % intervals; no policy can be left of the dashed lower bound.",
    )
    parts = [policy_legend(comparison), grid([completion, *([_CDF] if curves else [])])]
    if curves:
        ranked = tuple(r.policy for r in comparison.ranked() if r.policy in curves)
        parts += [
            _wide(FigureCard("heat", "Utilisation of nodes over time", _HEAT_HOW, ranked)),
            grid([_QUEUE]),
        ]
        how += f" Curves over time are those of seed {comparison.seeds[0]}."
    return section("figures", "Speed and use of the cluster", how, *parts)


def _wide(card: FigureCard) -> str:
    """A figure over the whole width."""
    return f'<div class="grid" style="--least:100%">{figure_card(card)}</div>'


def _load_section(comparison: Comparison) -> str:
    if not comparison.sweep:
        return ""
    cards = [FigureCard(f"load-{name}", _capital(name), how) for name, how in LOAD_METRICS.items()]
    how = "Offered load 100 % is the highest rate that the cluster could sustain for this mix of requests."
    return section("load", "Policy against load", how, grid(cards, "24rem"))


def _balance_section(comparison: Comparison) -> str:
    parts = [_wide(_TRADE_OFF)] if len(comparison.results) > 1 else []
    cards = [FigureCard(f"bar-{name}", _capital(name), how) for name, how in BALANCE_METRICS.items()]
    how = "Best policy on top; whiskers are 95 % intervals."
    return section("balance", "Balance, waiting and rejection", how, *parts, grid(cards, "24rem"))


def _capital(metric: str) -> str:
    title = title_of(METRICS[metric])
    return title[0].upper() + title[1:]


def _comparison_figures(comparison: Comparison, curves: Mapping[str, Curves]) -> dict[str, Figure]:
    drawn = {"completion": plots.metric_bars(comparison, "completion_mean_s")}
    if curves:
        ranked = {r.policy: curves[r.policy] for r in comparison.ranked() if r.policy in curves}
        drawn |= _curve_figures(curves) | {"heat": plots.utilisation_heatmap(ranked)}
    if comparison.sweep:
        drawn |= {f"load-{name}": plots.load_lines(comparison, name) for name in LOAD_METRICS}
    if len(comparison.results) > 1:
        drawn["trade-off"] = plots.trade_off(comparison, "utilisation_var", "completion_p99_s")
    return drawn | {f"bar-{name}": plots.metric_bars(comparison, name) for name in BALANCE_METRICS}


def _curve_figures(curves: Mapping[str, Curves]) -> dict[str, Figure]:
    return {"cdf": plots.completion_cdf(curves), "queue": plots.queue_length(curves)}


def _run_page(run: Run, made_at: datetime) -> Page:
    curves = {run.policy: run.curves}
    summary = run.to_dict()
    heat = FigureCard("heat", "Utilisation of nodes over time", _HEAT_HOW)
    bound = f"{bound_text(summary['bound'])} {assumptions_text(summary['bound'])}"
    tips = {title_of(metric): metric.definition for metric in METRICS.values()}
    body = "".join(
        (
            notes(run.notes()),
            _run_stats(run),
            section("figures", "Over time", "", grid([_CDF, _QUEUE]), _wide(heat)),
            section("metrics", "Metrics", bound, grouped_rows(run_groups(run.metrics), tips)),
            glossary(),
        )
    )
    head = {
        "Policy": run.policy,
        "Seed": str(run.seed),
        "Requests": f"{summary['requests']:,}",
        "Offered load": f"{100 * summary['offered_load']:.3g} %",
        **_origin(summary["scenario_hash"], summary["versions"], made_at),
    }
    drawn = _curve_figures(curves) | {"heat": plots.utilisation_heatmap(curves)}
    return Page(run.scenario.name, f"One run of {run.policy}.", head, body, drawn)


def _run_stats(run: Run) -> str:
    cards = [_run_stat(name, run.metrics[name]) for name in STAT_METRICS]
    if run.bound is not None:
        least = style_of([Estimate(run.bound.mean_s, None)], "s")
        above = f"{run.policy} is {100 * run.distance_frac:.3g} % above it"
        cards.append(stat("Lower bound, completion mean", least.number(run.bound.mean_s), "s", "", above))
    return f'<div class="grid stats">{"".join(cards)}</div>'


def _run_stat(name: str, value: float) -> str:
    style = style_of([Estimate(value, None)], METRICS[name].unit)
    return stat(_capital(name), style.number(value), style.unit, "", METRICS[name].definition)


def _trace_page(
    summary: TraceSummary, rates: tuple[Floats, Floats] | None, size: Floats | None, title: str
) -> Page:
    drawn: dict[str, Figure] = {}
    cards = []
    if rates is not None:
        drawn["rate"] = plots.arrival_rate(*rates)
        cards.append(FigureCard("rate", "Arrival rate", "Requests per second over time; peaks are bursts."))
    if size is not None and len(size):
        drawn["size"] = plots.size_histogram(size)
        cards.append(FigureCard("size", "Sizes", "How many requests have which size, on a log axis."))
    body = section("figures", "Figures", "", grid(cards, "30rem")) if cards else ""
    body += section("summary", "Summary", "", grouped_rows(trace_groups(summary), {}))
    return Page(title, f"{summary.rows:,} requests.", {}, body, drawn)


def _html(page: Page) -> str:
    drawn = {name: json.loads(figure.to_json()) for name, figure in page.figures.items()}
    text = json.dumps(drawn, separators=(",", ":"), ensure_ascii=False)
    return Template(_asset("page.html")).substitute(
        title=escape(page.title),
        lead=escape(page.lead),
        facts=facts(page.facts) if page.facts else "",
        body=page.body,
        footer="Made by trimtab. This file is complete in itself: keep it, send it, open it offline.",
        css=_asset("page.css"),
        js=_asset("page.js"),
        plotly=_plotly_js(),
        figures=text.replace("<", "\\u003c"),  # no text of a figure can end the script element
    )


def _asset(name: str) -> str:
    return (resources.files("trimtab.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
