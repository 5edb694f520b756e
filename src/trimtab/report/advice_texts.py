"""Answers in words: what the figures of a comparison say, and nothing that they do not support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trimtab.experiments.serving.objectives import met_by
from trimtab.report.number_formats import percent_text, rounded, time_unit, title_of
from trimtab.report.paired import Verdict, against_best

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, PolicyResult
    from trimtab.experiments.compare.comparison import OneMore
    from trimtab.experiments.serving.advice import AdviceFigures
    from trimtab.experiments.serving.objectives import Objective
    from trimtab.experiments.training.training_advice import Binding, TrainingAdvice

NAMED: Final = 4  # policies in a sentence
_WAITS: Final = 0.1  # share of completion that is waiting, from which a fleet is limited
_FREE: Final = 0.15  # share of GPUs that is free while jobs wait, from which it is their shape that binds
_RESTARTS: Final = 0.05  # share of GPU time, from which restarts are named
_HOT: Final = 1.2  # load of the busiest part over the mean, from which it is named


def verdict(comparison: Comparison) -> list[str]:
    """Which policy is best, by how much and how certain, and how much a better one could gain."""
    metric = comparison.kind.metrics[comparison.kind.objective]
    ranked = comparison.ranked()
    served = [result for result in ranked if result.is_ranked]
    if not served:
        return ["No policy served enough for a rank: the fleet is too small, or holds or refuses most work."]
    best = served[0]
    said = [_best_text(comparison, best)]
    others = dict(zip((r.policy for r in served), against_best(served, metric), strict=True))
    same = [name for name, against in others.items() if against.verdict is Verdict.SAME]
    behind = [r for r in served if others[r.policy].verdict is Verdict.BEHIND]
    if same:
        listed = ", ".join(same[:NAMED]) + (f" and {len(same) - NAMED} more" if len(same) > NAMED else "")
        said.append(f"Not distinguishable from it (paired differences, 95 %): {listed}.")
    if behind:
        said.append(_behind_text(best, behind, metric.name, metric.unit))
    if math.isfinite(best.distance_frac.mean):
        more_frac = 1.0 - 1.0 / (1.0 + best.distance_frac.mean)
        said.append(
            f"No policy can be more than {percent_text(more_frac, 2)} better than it on this work: it is "
            f"{percent_text(best.distance_frac.mean, 2)} above the lower bound."
        )
    return said


def _best_text(comparison: Comparison, best: PolicyResult) -> str:
    metric = comparison.kind.metrics[comparison.kind.objective]
    value = best.metrics[metric.name]
    half = f" ± {rounded(value.ci95, 2)}" if value.ci95 else ""
    how = f"{len(best.runs)} seeds" if len(best.runs) > 1 and not best.is_seedless else "one run"
    return (
        f"{best.policy} has the best {title_of(metric)} of {len(comparison.results)}: "
        f"{rounded(value.mean)}{half} {metric.unit} ({how})."
    )


def _behind_text(best: PolicyResult, behind: list[PolicyResult], name: str, unit: str) -> str:
    """The next one that is worse, and the worst."""
    base = best.metrics[name].mean
    next_one, worst = behind[0], behind[-1]

    def by(result: PolicyResult) -> str:
        mean = result.metrics[name].mean
        factor = mean / base if base > 0 else math.nan
        if not math.isfinite(factor):
            return f"{result.policy} has {rounded(mean)} {unit}"
        if factor < 2:
            return f"{result.policy} has {percent_text(factor - 1, 2, signed=True)}"
        return f"{result.policy} has {rounded(factor, 2)} times as much"

    is_one_run = len(best.runs) < 2 or (best.is_seedless and next_one.is_seedless)
    how = "On this one run, without an interval" if is_one_run else "Worse for certain (95 %, paired)"
    text = f"{how}: {by(next_one)}"
    return f"{text}; {by(worst)}." if worst is not next_one else f"{text}."


def advice(figures: AdviceFigures) -> dict[str, list[str]]:
    """All sentences, by topic."""
    return {
        "Policy": verdict(figures.comparison),
        "What limits the fleet": _limits(figures),
        "One node more": _one_more_texts(figures.comparison, figures.one_more),
        "Where the model does not hold": _doubts(figures),
    }


def objective_texts(comparison: Comparison, objectives: Sequence[Objective]) -> list[str]:
    """Which policies meet each objective, or how near the nearest comes."""
    said = []
    for objective, policies in zip(objectives, met_by(comparison, objectives).values(), strict=True):
        metric = comparison.kind.metrics[objective.metric]
        means = {r.policy: r.metrics[metric.name].mean for r in comparison.ranked() if r.is_ranked}
        told = {name: mean for name, mean in means.items() if math.isfinite(mean)}
        if policies:
            said.append(f"{objective}: met by {', '.join(policies)}.")
        elif not told:
            said.append(f"{objective}: met by no policy.")
        else:
            nearest = min(told, key=lambda name: objective.overshoot({metric.name: told[name]}))
            unit = f" {metric.unit}" if metric.unit == "s" else ""
            found = f"{rounded(told[nearest])}{unit}"
            said.append(f"{objective}: met by no policy; nearest is {nearest} with {found}.")
    return said


def _limits(figures: AdviceFigures) -> list[str]:
    metrics, load = figures.run.metrics, figures.run.inputs.offered_load
    waited_s, took_s = metrics["queueing_mean_s"], metrics["completion_mean_s"]
    share = waited_s / took_s if took_s > 0 else math.nan
    offered = f"The fleet is offered {percent_text(load)} of what it can sustain."
    said = [offered if math.isfinite(load) else "All requests arrive at once, so there is no load."]
    waits = f"Requests wait {rounded(waited_s, 2)} s on average, {percent_text(share, 2)} of their completion"
    if not share > _WAITS:
        return [*said, f"{waits}: slots do not limit it, service times do."]
    said.append(f"{waits}: slots limit it.")
    if len(figures.classes) > 1:
        most = max(figures.classes, key=lambda c: c.work_frac)
        longest = max(figures.classes, key=lambda c: c.queueing_mean_s)
        said.append(f"Class {most.name} is {percent_text(most.work_frac, 2)} of the work.")
        said.append(f"Class {longest.name} waits longest, {rounded(longest.queueing_mean_s)} s.")
    if len(figures.busy_frac) > 1:
        busy = ", ".join(f"{name} {percent_text(frac, 2)}" for name, frac in figures.busy_frac.items())
        said.append(f"Slots are busy: {busy}.")
    return said + _peak(figures)


def _peak(figures: AdviceFigures) -> list[str]:
    """When it is busiest, where the load is uneven enough."""
    if not figures.windows:
        return []
    hot = max(figures.windows, key=lambda w: w.load)
    mean = sum(w.load for w in figures.windows) / len(figures.windows)
    if not hot.load > _HOT * mean:
        return []
    unit, unit_s = time_unit(figures.windows[-1].end_s - figures.windows[0].start_s)
    when = f"from {rounded(hot.start_s / unit_s)} to {rounded(hot.end_s / unit_s)} {unit}"
    loads = f"load {percent_text(hot.load)} against {percent_text(mean)} on average"
    return [
        f"It is busiest {when}: {loads}; requests that arrive then wait {rounded(hot.queueing_mean_s)} s."
    ]


def _one_more_texts(comparison: Comparison, one_more: Sequence[OneMore]) -> list[str]:
    base = comparison.ranked()[0].metrics["completion_mean_s"].mean
    said = [_more_text(more, base) for more in one_more]
    helps = [m for m in one_more if _is_certain(m) and m.change_s.mean < 0 and m.usd_per_hour > 0]
    if len(helps) > 1:
        best = min(helps, key=lambda m: m.change_s.mean / m.usd_per_hour)
        said.append(f"For its price, one more {best.node_type} brings most.")
    return said


def _is_certain(more: OneMore) -> bool:
    """Whether the sign of the change is known; of one run it is only that run's."""
    return more.change_s.ci95 is None or abs(more.change_s.mean) > more.change_s.ci95


def _more_text(more: OneMore, base: float) -> str:
    price = f" ({rounded(more.usd_per_hour)} USD per hour)" if more.usd_per_hour > 0 else ""
    what, ci95 = f"One more {more.node_type}{price}", more.change_s.ci95
    if not _is_certain(more):
        return f"{what}: no change of mean completion beyond the noise of {rounded(ci95 or 0.0, 2)} s."
    half = "" if not ci95 else f" ± {rounded(ci95, 2)}"
    percent = f" ({percent_text(more.change_s.mean / base, 2, signed=True)})" if base > 0 else ""
    one = ", on this one run" if ci95 is None else ""
    change = rounded(more.change_s.mean, 2, signed=True)
    return f"{what}: mean completion changes by {change}{half} s{percent}{one}."


def _doubts(figures: AdviceFigures) -> list[str]:
    said = []
    load = figures.run.inputs.offered_load
    if math.isfinite(load) and load > 1.0:
        waits = "waits are as long as the trace, and say little"
        said.append(f"At {percent_text(load)} the queue grows until the trace ends: {waits}.")
    if not figures.has_own_times:
        said.append(
            "Service times are trimtab's defaults for this format, not yours: `trimtab fit` finds yours."
        )
    if len(figures.comparison.seeds) == 1 or figures.comparison.ranked()[0].is_seedless:
        said.append("One recorded trace without randomness: another day may rank policies otherwise.")
    return [*said, figures.comparison.kind.limits(figures.comparison.scenario)]


def advice_on_training(figures: TrainingAdvice) -> dict[str, list[str]]:
    """All sentences about training jobs, by topic."""
    return {
        "Allocator": [*verdict(figures.comparison), *_deadlines(figures.comparison)],
        "What binds the load": _bound_by(figures.binding),
        "One node more": _one_more_texts(figures.comparison, figures.one_more),
        "Where the model does not hold": _training_doubts(figures),
    }


def _deadlines(comparison: Comparison) -> list[str]:
    """The allocator that meets the most deadlines, where that is another one."""
    name = "deadline_satisfied_frac"
    best, most = comparison.ranked()[0], comparison.ranked(name)[0]
    shares = best.metrics[name].mean, most.metrics[name].mean
    if not shares[1] > shares[0]:
        return []
    met = f"{most.policy} meets the most deadlines, {rounded(100 * shares[1])} %"
    return [f"{met}; {best.policy} meets {rounded(100 * shares[0])} %."]


def _bound_by(found: Binding) -> list[str]:
    said = []
    if math.isfinite(found.offered_load) and found.offered_load > 0:
        said.append(f"Jobs ask for {rounded(100 * found.offered_load)} % of the GPU time of the cluster.")
    waits = (
        f"Jobs are without GPUs for {rounded(found.waited_mean_s, 2)} s on average, "
        f"{rounded(100 * found.waited_frac, 2)} % of their completion"
    )
    if not found.waited_frac > _WAITS:
        said.append(f"{waits}: their own run times bind it, not the number of GPUs.")
    elif found.free_frac > _FREE:
        said.append(
            f"{waits}, while {rounded(100 * found.free_frac, 2)} % of the GPUs are free: what is free is in "
            "pieces that waiting jobs do not fit, or the allocator holds it back. Smaller gangs, jobs that "
            "scale, or an allocator that lets jobs pass would use them."
        )
    else:
        held = rounded(100 * (1 - found.free_frac), 3)
        said.append(f"{waits}; meanwhile {held} % of the GPUs are held: the number of GPUs binds it.")
    if len(found.widths) > 1:
        longest = max(found.widths, key=lambda w: w.waited_mean_s)
        share = rounded(100 * longest.gpu_time_frac, 2)
        waited = rounded(longest.waited_mean_s)
        said.append(f"Jobs of {longest.name} wait longest, {waited} s; they have {share} % of the GPU time.")
    if found.restart_frac > _RESTARTS:
        said.append(f"Restarts take {rounded(100 * found.restart_frac, 2)} % of the GPU time.")
    if found.peak_frac > _HOT:
        unit, unit_s = time_unit(found.peak_s[1])
        when = f"from {rounded(found.peak_s[0] / unit_s)} to {rounded(found.peak_s[1] / unit_s)} {unit}"
        said.append(f"Most is submitted {when}: {rounded(found.peak_frac, 2)} times the mean of such a time.")
    return said


def _training_doubts(figures: TrainingAdvice) -> list[str]:
    said = []
    if figures.binding.offered_load > 1.0:
        said.append("More is asked for than there is: waits grow with the length of the trace.")
    if figures.is_told_work:
        said.append(
            f"{figures.best} reads the work that jobs have left, here exactly as recorded. A scenario with "
            "jobs.declared_cv shows what errors of it cost."
        )
    if not figures.has_profiles:
        said.append(
            "Without profiles jobs keep the GPUs that they asked for: what scaling would bring is not seen."
        )
    if len(figures.comparison.seeds) == 1 or figures.comparison.ranked()[0].is_seedless:
        said.append("One recorded list of jobs: another week may rank allocators otherwise.")
    return [*said, "Jobs do not slow each other down over the network, and no GPU is slower than its type."]
