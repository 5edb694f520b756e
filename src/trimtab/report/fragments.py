"""HTML fragments of the page, made from results. This module escapes all text from outside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from trimtab.metrics import Estimate, Metric
from trimtab.report.comparison_columns import (
    DISTANCE,
    MARKS,
    Column,
    distance_column,
    metric_column,
    shown_name,
)
from trimtab.report.figure_parts import Ink, inks
from trimtab.report.number_formats import metric_groups, style_of, title_of
from trimtab.report.paired import Verdict, against_best
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, PolicyResult
    from trimtab.experiments.compare.kind import AnyKind

HEADLINE: Final = "Headline"
SAME_NAMED: Final = 3  # policies named as indistinguishable from the best; of more, only the number
DASH_ARRAYS: Final = {
    "solid": "",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "11 4",
    "longdashdot": "11 3 2 3",
}


@dataclass(frozen=True, slots=True)
class FigureCard:
    """A figure with its title and explanation; `policies`: the reader chooses one at a time."""

    id: str
    title: str
    how: str
    policies: tuple[str, ...] = ()


def facts(pairs: Mapping[str, str]) -> str:
    """Pairs of term and value, in a row."""
    items = (f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in pairs.items())
    return f'<dl class="facts">{"".join(items)}</dl>'


def notes(lines: Iterable[str]) -> str:
    """The notes in a box; empty without notes."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<aside class="card notes"><strong>Note</strong><ul>{items}</ul></aside>' if items else ""


def folded_notes(lines: Sequence[str]) -> str:
    """The notes in a box that opens, for pages whose answer comes first; empty without notes."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    summary = f"<summary>{counted(len(lines), 'note')}</summary>"
    return f'<details class="card notes">{summary}<ul>{items}</ul></details>' if items else ""


def sentences(lines: Iterable[str]) -> str:
    """Sentences, each on a line of its own."""
    return "".join(f'<p class="how">{escape(line)}</p>' for line in lines)


def section(id_: str, title: str, how: str, *parts: str) -> str:
    """A section of the page with a heading."""
    lead = f'<p class="how">{escape(how)}</p>' if how else ""
    heading = f'<h2 id="{id_}">{escape(title)}</h2>'
    return f'<section aria-labelledby="{id_}">{heading}{lead}{"".join(parts)}</section>'


def stat(what: str, value: str, unit: str, who: str, also: str = "") -> str:
    """One number in large type, with its policy."""
    number, sign, half = value.partition(" ± ")
    small = f"{sign.strip()} {half} {unit}"
    return (
        f'<div class="card stat"><div class="what">{escape(what)}</div>'
        f'<div class="value">{escape(number)} <small>{escape(small)}</small></div>'
        f'<div class="who">{escape(who)}</div><div class="also">{escape(also)}</div></div>'
    )


def stats_of(comparison: Comparison) -> str:
    """The best policy in each of a few metrics, and the lower bound."""
    cards = [_best(comparison, comparison.kind.metrics[name]) for name in comparison.kind.figures.stats]
    return f'<div class="grid stats">{"".join(cards)}{_bound_stat(comparison)}</div>'


def _best(comparison: Comparison, metric: Metric) -> str:
    ranked = comparison.ranked(metric.name)
    estimate = ranked[0].metrics[metric.name]
    style = style_of([result.metrics[metric.name] for result in ranked], metric.unit)
    verb = "Highest" if metric.better == "higher" else "Lowest"
    what = f"{verb} {title_of(metric)}"
    if not ranked[0].is_ranked:
        return stat(what, "–", "", "no policy served enough")
    if not math.isfinite(estimate.mean):
        return stat(what, "–", "", "undefined for this scenario")
    return stat(what, style.estimate(estimate), style.unit, ranked[0].policy, _same_text(ranked, metric))


def _same_text(results: Sequence[PolicyResult], metric: Metric) -> str:
    comparisons = against_best(results, metric)
    same = [r.policy for r, a in zip(results, comparisons, strict=True) if a.verdict is Verdict.SAME]
    if not same:
        return ""
    named = ", ".join(same) if len(same) <= SAME_NAMED else f"{len(same)} other policies"
    return f"not distinguishable: {named}"


def _bound_stat(comparison: Comparison) -> str:
    bound, best = comparison.bound, comparison.ranked()[0]
    objective = comparison.kind.metrics[comparison.kind.objective]
    if bound[objective.name] is None:
        return ""
    estimate = Estimate(bound[objective.name], bound["ci95"])
    style, above = style_of([estimate], objective.unit), style_of([best.distance_frac], "frac")
    also = f"{best.policy} is {above.number(best.distance_frac.mean)} % above it" if best.is_ranked else ""
    who = "no policy can be better"
    return stat(f"Lower bound, {title_of(objective)}", style.estimate(estimate), style.unit, who, also)


def comparison_table(comparison: Comparison) -> str:
    """Sortable table of all metrics of all policies; the headline metrics are visible first."""
    results = comparison.ranked()
    kind = comparison.kind
    groups = _groups_of_metrics(kind)
    columns = [metric_column(results, metric) for metric in kind.metrics.values()]
    distance = distance_column(results)
    if distance is not None:
        columns.insert(1, distance)
    tags = [groups[column.metric.name] for column in columns]
    heads = "".join(_head(column, tag, kind.objective) for column, tag in zip(columns, tags, strict=True))
    rows = "".join(_row(result, i, columns, tags) for i, result in enumerate(results))
    return (
        f"{_group_buttons(kind)}"
        '<div class="card scroll" tabindex="0" role="region" aria-label="Metrics of all policies">'
        '<table class="comparison"><thead><tr>'
        '<th scope="col" data-first="ascending">'
        '<button type="button"><span class="title">policy</span></button></th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _groups_of_metrics(kind: AnyKind) -> dict[str, tuple[str, ...]]:
    """The groups of columns that show each metric."""
    groups: dict[str, tuple[str, ...]] = {
        metric.name: (HEADLINE, name) if metric.headline else (name,)
        for name, members in metric_groups(kind.metrics).items()
        for metric in members
    }
    return groups | {DISTANCE.name: (HEADLINE, groups[kind.objective][-1])}


def _group_buttons(kind: AnyKind) -> str:
    def button(name: str) -> str:
        pressed = "true" if name == HEADLINE else "false"
        return f'<button type="button" data-group="{name}" aria-pressed="{pressed}">{name}</button>'

    buttons = map(button, (HEADLINE, *metric_groups(kind.metrics)))
    return f'<div class="tools" role="group" aria-label="Columns">{"".join(buttons)}</div>'


def _head(column: Column, groups: Sequence[str], objective: str) -> str:
    first = "descending" if column.metric.better == "higher" else "ascending"
    sorted_by = ' aria-sort="ascending"' if column.metric.name == objective else ""
    unit = f'<span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    return (
        f'<th scope="col" data-groups="{",".join(groups)}" data-first="{first}"{sorted_by}{_hidden(groups)}>'
        f'<button type="button" data-tip="{escape(explained(column.metric))}">'
        f'<span class="title">{escape(column.title)}</span>{unit}</button></th>'
    )


def _hidden(groups: Sequence[str]) -> str:
    return "" if HEADLINE in groups else " hidden"


def explained(metric: Metric) -> str:
    """What a metric says: definition, formula and better direction."""
    formula = f" {metric.formula}." if metric.formula else ""
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    return f"{metric.definition}{formula}{better}"


def _row(result: PolicyResult, i: int, columns: Sequence[Column], tags: Sequence[Sequence[str]]) -> str:
    cells = "".join(_cell(column, i, groups) for column, groups in zip(columns, tags, strict=True))
    return f'<tr><th scope="row">{breakable(shown_name(result))}</th>{cells}</tr>'


def _cell(column: Column, i: int, groups: Sequence[str]) -> str:
    cell = column.cells[i]
    mean, sign, half = cell.text.partition(" ± ")
    interval = f' <span class="ci">± {half}</span>' if sign else ""
    value = f"{cell.value:.9g}" if math.isfinite(cell.value) else ""
    tip = f' data-difference="{escape(cell.remark)}"' if cell.remark else ""
    return (
        f'<td class="{cell.verdict.value}" data-value="{value}"{tip}{_hidden(groups)}>'
        f"<b>{mean}</b>{interval}<i>{MARKS[cell.verdict].strip()}</i></td>"
    )


def breakable(policy: str) -> str:
    """The name of a policy, with a possible line break."""
    return escape(policy).replace("+", "<wbr>+")


def policy_legend(comparison: Comparison) -> str:
    """One legend for all figures; its buttons hide and show policies."""
    own = inks([result.policy for result in comparison.results])
    chips = "".join(_chip(result.policy, own[result.policy]) for result in comparison.ranked())
    every = "".join(
        f'<button type="button" data-all="{value}">{text}</button>'
        for value, text in (("true", "all"), ("false", "none"))
    )
    label = "Policies shown in the figures"
    return f'<div class="tools chips" role="group" aria-label="{label}">{chips}{every}</div>'


def _chip(policy: str, ink: Ink) -> str:
    sample = (
        '<svg viewBox="0 0 28 8" aria-hidden="true"><line x1="1" x2="27" y1="4" y2="4" stroke-width="3" '
        f'stroke="{ink.colour}" stroke-dasharray="{DASH_ARRAYS[ink.dash]}"/></svg>'
    )
    name = escape(policy)
    return f'<button type="button" data-policy="{name}" aria-pressed="true">{sample}{name}</button>'


def figure_card(card: FigureCard) -> str:
    """Placeholder of a figure, with its title and explanation."""
    label = escape(f"{card.title}: {card.how}")
    return (
        f'<figure class="card figure"><div class="figure-head"><h3>{escape(card.title)}</h3>'
        f'{_choice(card)}</div><p class="how">{escape(card.how)}</p>'
        f'<div class="plot" id="{card.id}" role="img" aria-label="{label}"></div>'
        "</figure>"
    )


def _choice(card: FigureCard) -> str:
    if len(card.policies) < 2:
        return ""
    options = "".join(f"<option>{escape(policy)}</option>" for policy in card.policies)
    return f'<select data-plot="{card.id}" aria-label="Policy of {escape(card.title)}">{options}</select>'


def grid(cards: Iterable[FigureCard], least: str = "26rem") -> str:
    """Figures side by side, as many as fit at their least width."""
    return f'<div class="grid" style="--least:{least}">{"".join(map(figure_card, cards))}</div>'


def grouped_rows(groups: Mapping[str, Iterable[tuple[str, str, str]]], tips: Mapping[str, str]) -> str:
    """Small tables of (name, value, unit), one per group; `tips` explains names."""
    return f'<div class="groups">{"".join(_group(title, rows, tips) for title, rows in groups.items())}</div>'


def _group(title: str, rows: Iterable[tuple[str, str, str]], tips: Mapping[str, str]) -> str:
    def row(name: str, value: str, unit: str) -> str:
        tip = f' tabindex="0" data-tip="{escape(tips[name])}"' if name in tips else ""
        cells = f'<td><b>{escape(value)}</b></td><td class="word unit">{escape(unit)}</td>'
        return f'<tr><th scope="row"{tip}>{escape(name)}</th>{cells}</tr>'

    body = "".join(row(*values) for values in rows)
    return f'<div class="card"><h3>{escape(title)}</h3><table><tbody>{body}</tbody></table></div>'


def glossary(metrics: Mapping[str, Metric]) -> str:
    """Definitions of all metrics, collapsed."""
    items = "".join(
        f"<dt><code>{metric.name}</code></dt><dd>{escape(explained(metric))}</dd>"
        for metric in metrics.values()
    )
    summary = "<summary>What the metrics mean</summary>"
    return f'<details class="card">{summary}<dl class="glossary">{items}</dl></details>'
