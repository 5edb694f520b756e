"""The report page of a comparison, for any kind of work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from trimtab.report import policy_figures, time_figures
from trimtab.report.advice_texts import verdict
from trimtab.report.comparison_columns import assumptions_text, comparison_bound_text, interval_text, legend
from trimtab.report.curve_cards import CDF, HEAT, curve_figures, time_cards, wide
from trimtab.report.fragments import (
    FigureCard,
    comparison_table,
    folded_notes,
    glossary,
    grid,
    policy_legend,
    section,
    sentences,
    stats_of,
)
from trimtab.report.number_formats import capital, load_text, title_of
from trimtab.report.page import Page, html_of, origin
from trimtab.version import versions
from trimtab.words import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare import Comparison, Curves
    from trimtab.experiments.compare.kind import SeriesText


def comparison_page(comparison: Comparison, made_at: datetime | None = None) -> str:
    """The page of a comparison as HTML text."""
    return html_of(_comparison_page(comparison, made_at or datetime.now(UTC)))


def _comparison_page(comparison: Comparison, made_at: datetime) -> Page:
    curves = _curves(comparison)
    body = "".join(
        (
            section("answer", "In words", "", sentences(verdict(comparison))),
            stats_of(comparison),
            _table_section(comparison),
            folded_notes(comparison.notes()),
            _figures_section(comparison, curves),
            _load_section(comparison),
            _balance_section(comparison),
            glossary(comparison.kind.metrics),
        )
    )
    policies = counted(len(comparison.results), "policy", "policies")
    return Page(
        title=comparison.scenario.name,
        lead=f"{policies} on the same {comparison.kind.items}, seed by seed.",
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
    return {
        comparison.kind.items.capitalize(): f"{comparison.n_items:,} per seed",
        "Offered load": load_text(comparison.offered_load),
        "Seeds": ", ".join(map(str, comparison.seeds)),
        "Computed in": f"{comparison.elapsed_s:.1f} s",
        **origin(comparison.scenario.hash(), versions(), made_at),
    }


def _table_section(comparison: Comparison) -> str:
    how = f"{interval_text(comparison)}; {legend(comparison)}. Choose a heading to sort by it."
    limits = comparison.kind.limits(comparison.scenario)
    texts = (comparison_bound_text(comparison), assumptions_text(comparison.bound), limits)
    bound = " ".join(text for text in texts if text)
    return section(
        "metrics", "Metrics", how, comparison_table(comparison), f'<p class="how">{escape(bound)}</p>'
    )


def _figures_section(comparison: Comparison, curves: Mapping[str, Curves]) -> str:
    how = "Choose policies here for all figures below. Drag to zoom, double-click to zoom out."
    objective = FigureCard(
        "objective",
        capital(comparison.kind.objective_title),
        "Whiskers are 95 % intervals; the dashed line is a bound that no policy can beat.",
    )
    parts = [policy_legend(comparison), grid([objective, *([CDF] if curves else [])])]
    if curves:
        ranked = tuple(r.policy for r in comparison.ranked() if r.policy in curves)
        figures = comparison.kind.figures
        parts += [
            wide(replace(HEAT, title=figures.rows_title, how=figures.rows_text, policies=ranked)),
            grid([*time_cards(curves, comparison.kind.items), *_series_cards(figures.series)]),
        ]
        how += f" Curves over time are those of seed {comparison.seeds[0]}."
    return section("figures", "Speed and use of the cluster", how, *parts)


def _series_cards(series: Mapping[str, SeriesText]) -> list[FigureCard]:
    return [FigureCard(f"series-{name}", text.title, text.how) for name, text in series.items()]


def _load_section(comparison: Comparison) -> str:
    if not comparison.sweep:
        return ""
    cards = _metric_cards(comparison, "load", comparison.kind.figures.over_load)
    items = comparison.kind.items
    how = f"Offered load 100 % is the highest rate that the cluster could sustain for this mix of {items}."
    return section("load", "Policy against load", how, grid(cards, "24rem"))


def _balance_section(comparison: Comparison) -> str:
    chosen = comparison.kind.figures
    parts = []
    if chosen.trade_off is not None and len(comparison.results) > 1:
        parts.append(wide(FigureCard("trade-off", "Evenness against speed", chosen.trade_off_text)))
    parts.append(grid(_metric_cards(comparison, "bar", _bars(comparison)), "24rem"))
    how = "Best policy on top; whiskers are 95 % intervals."
    return section("balance", chosen.bars_title, how, *parts)


def _bars(comparison: Comparison) -> dict[str, str]:
    """The metrics with a figure of bars: those that are not 0, or undefined, for all policies."""
    bars = comparison.kind.figures.bars
    means = {name: [result.metrics[name].mean for result in comparison.results] for name in bars}
    return {n: how for n, how in bars.items() if any(math.isfinite(m) and m != 0.0 for m in means[n])}


def _metric_cards(comparison: Comparison, prefix: str, texts: Mapping[str, str]) -> list[FigureCard]:
    metrics = comparison.kind.metrics
    return [
        FigureCard(f"{prefix}-{name}", capital(title_of(metrics[name])), how) for name, how in texts.items()
    ]


def _comparison_figures(comparison: Comparison, curves: Mapping[str, Curves]) -> dict[str, Figure]:
    kind, chosen = comparison.kind, comparison.kind.figures
    drawn = {"objective": policy_figures.metric_bars(comparison, kind.objective)}
    if curves:
        ranked = {r.policy: curves[r.policy] for r in comparison.ranked() if r.policy in curves}
        rows = kind.items if any(curve.rows_unit for curve in ranked.values()) else "nodes"
        drawn |= curve_figures(curves, kind.items)
        drawn |= {"heat": time_figures.utilisation_heatmap(ranked, rows)}
        drawn |= {
            f"series-{name}": time_figures.series_over_time(curves, name, text.axis, is_frac=text.is_frac)
            for name, text in chosen.series.items()
        }
    if comparison.sweep:
        drawn |= {f"load-{name}": policy_figures.load_lines(comparison, name) for name in chosen.over_load}
    if chosen.trade_off is not None and len(comparison.results) > 1:
        drawn["trade-off"] = policy_figures.trade_off(comparison, *chosen.trade_off)
    return drawn | {f"bar-{name}": policy_figures.metric_bars(comparison, name) for name in _bars(comparison)}
