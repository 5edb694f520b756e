"""The tables of the case study, for the terminal, the page and the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trimtab.experiments.case import FACTORS, CaseStudy, Effect, effects, judged
from trimtab.metrics import METRICS, Estimate, mean_ci95
from trimtab.report.number_formats import title_of, with_unit

SHOWN: Final = (
    "completion_mean_s",
    "completion_p99_s",
    "completion_var_s2",
    "queueing_mean_s",
    "utilisation_mean_frac",
    "utilisation_var",
    "idle_frac",
    "rejected_frac",
    "slo_attained_frac",
    "usd_per_1k",
)
EFFECTS_ON: Final = ("completion_mean_s", "completion_p99_s", "utilisation_var", "slo_attained_frac")
_RELATIVE: Final = ("completion_mean_s", "completion_p99_s")


class TextTable(NamedTuple):
    """A table with what it says."""

    name: str
    title: str
    how: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def case_tables(study: CaseStudy) -> list[TextTable]:
    """Claims, strategies at each load, causes, switches."""
    return [
        claims_table(study),
        *(strategy_table(study, load) for load in reversed(study.strategies)),
        _causes(study),
        _effects(study, pairs=False),
        _effects(study, pairs=True),
    ]


def claims_table(study: CaseStudy) -> TextTable:
    """What is said of strategies, and what was measured."""
    how = (
        "A comparison holds at a load where the 95 % interval of its paired differences over "
        f"{study.scale.seeds} seeds says so; a claim holds where all of its comparisons do. Figures are "
        f"means at loads {', '.join(study.strategies)}."
    )
    rows = [(of.claim.text, of.verdict, "; ".join(of.measured)) for of in judged(study)]
    return TextTable("claims", "Claims", how, ("claim", "verdict", "measured"), rows)


def strategy_table(study: CaseStudy, load: str) -> TextTable:
    """All strategies at one load."""
    rows = [
        (name, *(_cell(mean_ci95(values[metric]), metric) for metric in SHOWN))
        for name, values in study.strategies[load].items()
    ]
    bound = mean_ci95(study.bound_s[load])
    how = (
        "± 95 % interval over seeds. Lower bound on the mean completion of whole images, which no policy can "
        f"beat: {bound.mean:.3g} s. Parts of a split image queue side by side: queueing is then that of runs."
    )
    head = ("strategy", *(with_unit(title_of(METRICS[m]), _unit(m)) for m in SHOWN))
    return TextTable(f"strategies-{load}", f"Strategies, load {load}", how, head, rows)


def _causes(study: CaseStudy) -> TextTable:
    metrics = ("completion_mean_s", "completion_p99_s", "queueing_mean_s", "utilisation_var", "idle_frac")
    rows = [
        (cause, policy, *(_cell(mean_ci95(values[metric]), metric) for metric in metrics))
        for cause, group in study.causes.items()
        for policy, values in group.items()
    ]
    head = ("cause", "policy", *(with_unit(title_of(METRICS[m]), _unit(m)) for m in metrics))
    how = "Each cause of imbalance alone, none of them and all of them, each at load 0.7 of its own nodes."
    return TextTable("causes", "Causes of imbalance", how, head, rows)


def _effects(study: CaseStudy, *, pairs: bool) -> TextTable:
    """Effects of single switches, or of pairs with the largest interactions first."""
    load = list(study.strategies)[-1]
    columns: dict[str, dict[str, Effect]] = {}
    for metric in EFFECTS_ON:
        of = effects(study.switches, FACTORS, metric, is_relative=metric in _RELATIVE)
        columns[metric] = {" × ".join(e.factors): e for e in of if (len(e.factors) == 2) == pairs}
    first = columns[EFFECTS_ON[0]]
    names: Sequence[str] = (
        sorted(first, key=lambda name: -abs(first[name].change.mean)) if pairs else [*first]
    )
    rows = [(name, *(_effect(columns[metric][name], metric) for metric in EFFECTS_ON)) for name in names[:8]]
    head = ("switches" if pairs else "switch", *(title_of(METRICS[m]) for m in EFFECTS_ON))
    if pairs:
        how = "What two switches change beyond the sum of both: the largest. * = its interval leaves out 0."
        return TextTable("interactions", "Interactions", how, head, rows)
    how = (
        f"A full design of 2^{len(FACTORS)} settings at load {load}, {study.scale.switch_seeds} seeds: "
        "what a switch changes on average over all settings of the others. Times in %, else points. * = its "
        "interval leaves out 0."
    )
    return TextTable("switches", "Switches", how, head, rows)


def _effect(effect: Effect, metric: str) -> str:
    half = "" if effect.change.ci95 is None else f" ± {100 * effect.change.ci95:.2g}"
    mark = "*" if effect.is_told else ""
    return f"{100 * effect.change.mean:+.3g}{half}{mark}{' %' if metric in _RELATIVE else ''}"


def _unit(metric: str) -> str:
    return {"frac": "%"}.get(METRICS[metric].unit, METRICS[metric].unit)


def _cell(value: Estimate, metric: str) -> str:
    factor = 100.0 if METRICS[metric].unit == "frac" else 1.0
    half = "" if value.ci95 is None else f" ± {factor * value.ci95:.2g}"
    return f"{factor * value.mean:.3g}{half}"
