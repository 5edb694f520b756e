"""The page of weighted-goodput beside the published allocators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.training.cases import BESIDE, HIGHER, OURS, Case, paired
from bench.training.gaps import DUE, GPUS, JOBS, LISTS, MEAN
from bench.training.round_time import ROUND_TIME, SIZES

HEAD = """<!-- Made by `python -m bench.training` from what it measured; `--docs` writes it anew. -->

# weighted-goodput beside the published allocators

`weighted-goodput` is trimtab's own allocator of training jobs. Its parameters were fixed on generated workloads
(below): `keep_s` 300, `fair_ratio` 1.25, `long_frac` 0.8, `norm` 1; they are the same everywhere. Each published workload follows the
rules of the study that it comes from.

The formulation changed four times after published lists had been run, each time for a fault that generated workloads or
tests by hand show too; parameters were fixed anew on generated workloads alone:

1. Overdue jobs stood behind all others, and a fair time counted the fastest type of GPU only.
2. On Shockwave's list the worst ratio of finish times was 2.55 and Sia's lists saturn and newtrace were lost. A profile by
   application of two of saturn's lists showed short jobs with twice the GPU seconds and restarts that they need. Generated jobs
   that adapt their batch, with noise that jumps, show the cause: a new job was taken to scale as an older one of its model, whatever
   its own measurements said. Generated jobs that change their batch show two more: the time alone of a fixed job mixed
   two units of work, and one ratio for all loads (2) bound either no job or more than could be kept. Now the least stretch that
   all can keep is looked for.
3. That stretch held jobs that scale, too. It made them take turns, and restart; on Pollux's lists mean completion was 2,362 s, before
   it 2,131 s. Of generated jobs on one type of GPU one of two seeds
   shows the same loss. It counts for fixed jobs only.
4. On philly the makespan was 36 % longer than Sia's in the mean, and the 99th percentile too. The last jobs of one list show the cause: on
   an almost empty cluster two jobs kept 4 of 64 GPUs each for five hours, because a restart of 250 s was charged over `keep_s`, 300 s,
   whatever the job's past. A change now counts as lasting as long as the job's changes did so far, `keep_s` at least; that has no
   parameter. A test by hand shows the fault; means of generated jobs change by -2 % to +1 %.

So Pollux's lists, philly and saturn were run twice in full for versions 2 and 3, newtrace once and a half. Of version 4, newtrace and
ElasticFlow's clusters (Fig 8(b)) are not measured yet: their rows are version 3's, and have no 99th percentile beside the mean.

Against the better of Pollux and Sia on each of Pollux's three lists and philly's four, in the mean over the seven:

| | mean completion | 99th percentile | makespan | worst of a list: p99, makespan |
| --- | --- | --- | --- | --- |
| version 3 | 0.99 | 1.17 | 1.23 | 1.70, 1.60 |
| version 4 | 0.92 | 0.96 | 1.04 | 1.13, 1.07 |
| version 4, `norm` 1.1 | 0.94 | 0.93 | 1.03 | 1.10, 1.09 |
| Sia | 1.00 | 1.00 | 1.00 | 1.01, 1.01 |
| Pollux | 1.30 | 1.22 | 1.13 | 1.46, 1.30 |

`norm` is the price of the tail: the sum of completion^norm counts in place of the mean.

A difference is that of the mean over seeds, paired, with its 95 % interval; "worse" says that the interval lies on the wrong side
of 0 against the best published allocator of that metric. Allocators that are told the truth stand beside the others and are not
compared.
"""
GENERATED = """
## Generated workloads

`python -m bench.training --generated` repeats them, three seeds each; `--varied` varies the parameters one at a time. The jobs are
150 like those of the built-in scenario `elastic-training`; 160 of six random applications that adapt their batch, with
a learning rate that falls twice (`bench/training/generated_adaptive.py`); or 120 fixed ones whose batch changes by epoch
(`bench/training/generated_epochs.py`).
"""
BOUNDS = """
Bounds hold for every schedule. On mean completion: the larger of every job alone at its fastest, and of all GPUs as one machine that
serves the shortest remaining work first, where a GPU does as much work in a second as the weight of its type, and a job
needs the least of its weighted GPU seconds over types; speeds are those of the best batch and number of GPUs measured, without
restarts. On deadlines: of the jobs due by any time, those that fit into the GPU seconds until then.
"""
LOSSES = """
Every allocator whose mean over seeds is better, on any workload below, without those that are told the truth. Only rows in bold
lie beyond their interval. The others are ties of wide intervals, not wins: on Shockwave's list the worst ratio of finish times is that of
one job, and five shifts of the list are too few to tell the two allocators apart.

"""
GAP_TEXT = f"""
## Gap to the optimum of small lists

`python -m bench.training --gaps`: {LISTS} lists of {JOBS} jobs on {GPUS} GPUs, all there at the start, in rounds, without restarts and
with true estimates. HiGHS proves the best schedule of whole rounds: with any numbers of GPUs ("free"), or with those asked for ("fixed"; only for
allocators that keep them). Gaps of mean completion are relative; gaps of deadlines are jobs of {JOBS} that could have been on time too. In
parentheses the worst list, and lists of {LISTS} without a gap. Deadlines are there only where they count. Gavel's shares and other allocators that aim at
fairness or the makespan are not made for either. Measured at commit {{}}.

"""
NOT_MEASURED = "\nNot measured: {}.\n"


def page(
    generated: Sequence[Case], published: Sequence[Case], saved: dict[str, Any], gaps: dict[str, Any]
) -> str:
    parts = [HEAD, "\n## Verdicts\n\n", _verdicts(published, saved)]
    parts += ["\n## Losses\n", LOSSES, _losses([*published, *generated], saved), "\n## Published workloads\n"]
    parts += [BOUNDS, *(_section(case, saved.get(case.name, {})) for case in published)]
    parts += [_round_times(saved.get(ROUND_TIME, {})), _gaps(gaps)]
    parts += [GENERATED, *(_section(case, saved.get(case.name, {})) for case in generated)]
    return "".join(parts)


def _round_times(found: dict[str, list[float]]) -> str:
    rows = [
        "| GPUs | jobs | median, ms CPU | largest, ms CPU | demanded |",
        "| --- | --- | --- | --- | --- |",
    ]
    for gpus, times_ms in found.items():
        most = "200" if gpus == "2048" else ""
        jobs = SIZES[int(gpus)]
        rows.append(f"| {gpus} | {jobs} | {np.median(times_ms):.1f} | {max(times_ms):.1f} | {most} |")
    head = (
        "\n## Time of a decision\n\n`python -m bench.training --rounds`: three types of GPU in the shares of Sia's "
        "evaluation, tables of speeds, three in ten jobs with deadlines; fifteen instances each.\n\n"
    )
    return head + "\n".join(rows) + "\n"


def _gaps(saved: dict[str, Any]) -> str:
    if not saved:
        return ""
    found = saved["gaps"]
    heads = [f"{MEAN}, free", f"{MEAN}, fixed", f"{DUE}, free", f"{DUE}, fixed"]
    rows = [f"| allocator | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name in sorted(found, key=lambda name: _mean(found[name][heads[0]])):
        cells = [_cell(found[name].get(head), is_due=head.startswith(DUE)) for head in heads]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return GAP_TEXT.format(saved["commit"]) + "\n".join(rows) + "\n"


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _cell(gaps: list[float] | None, *, is_due: bool) -> str:
    if gaps is None:
        return ""
    best = sum(abs(gap) < 1e-4 for gap in gaps)
    if is_due:
        return f"{_mean(gaps):.2f} (most {max(gaps):.0f}, none in {best})"
    return f"{_mean(gaps):.1%} (most {max(gaps):.0%}, none in {best})"


def _values(found: dict[str, Any], spec: str, metric: str, seeds: Sequence[int]) -> np.ndarray:
    return np.array([found[spec][str(seed)][metric] for seed in seeds])


def _seeds(case: Case, found: dict[str, Any], spec: str) -> list[int]:
    """Seeds that both ours and this allocator were run with."""
    return [s for s in case.seeds if str(s) in found.get(spec, {}) and str(s) in found.get(OURS, {})]


def _best(case: Case, found: dict[str, Any], metric: str) -> str | None:
    whole = [s for s in case.rivals if len(_seeds(case, found, s)) == len(case.seeds)]
    sign = -1.0 if metric in HIGHER else 1.0
    return min(whole, key=lambda s: sign * _values(found, s, metric, case.seeds).mean(), default=None)


def _verdicts(cases: Sequence[Case], saved: dict[str, Any]) -> str:
    rows = ["| workload | metric | weighted-goodput | best published | difference | verdict |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for case in cases:
        found = saved.get(case.name, {})
        for metric in case.metrics:
            best = _best(case, found, metric)
            if best is None:
                rows.append(f"| {case.name} | `{metric}` |  |  |  | not measured |")
                continue
            ours = _values(found, OURS, metric, case.seeds)
            theirs = _values(found, best, metric, case.seeds)
            difference, half = paired(ours, theirs)
            rows.append(
                f"| {case.name} | `{metric}` | {ours.mean():.5g} | {theirs.mean():.5g} ({best}) "
                f"| {difference:+.4g} ± {half:.2g} | {_verdict(metric, difference, half, theirs.mean())} |"
            )
    return "\n".join(rows) + "\n"


def _losses(cases: Sequence[Case], saved: dict[str, Any]) -> str:
    rows = ["| workload | metric | allocator | seeds | its mean | weighted-goodput | difference |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for case in cases:
        found = saved.get(case.name, {})
        for spec in case.rivals:
            if seeds := _seeds(case, found, spec):
                rows += [
                    row for metric in case.metrics if (row := _loss(case.name, metric, found, spec, seeds))
                ]
    return "\n".join(rows) + "\n"


def _loss(name: str, metric: str, found: dict[str, Any], spec: str, seeds: Sequence[int]) -> str:
    """A row, where the other allocator is better."""
    ours, theirs = _values(found, OURS, metric, seeds), _values(found, spec, metric, seeds)
    difference, half = paired(ours, theirs)
    if (difference >= 0) if metric in HIGHER else (difference <= 0):
        return ""
    told = f"{difference:+.4g} ± {half:.2g}"
    told = f"**{told}**" if abs(difference) > half else told
    means = f"{theirs.mean():.5g} | {ours.mean():.5g}"
    return f"| {name} | `{metric}` | {spec} | {len(seeds)} | {means} | {told} |"


def _verdict(metric: str, difference: float, half: float, theirs: float) -> str:
    worse = -difference if metric in HIGHER else difference
    if worse > half:
        return "**worse**"
    if worse < -half:
        return "better"
    tie = "no difference beyond the interval"
    return f"{tie}, which is wide: {worse / theirs:.0%} worse in the mean" if worse > 0 else tie


def _section(case: Case, found: dict[str, Any]) -> str:
    text = f"\n### {case.name}\n\n" + (f"{case.note[0].upper()}{case.note[1:]}.\n\n" if case.note else "")
    head = "".join(f" `{metric}` | ours − it |" for metric in case.metrics)
    beside = [name for name in BESIDE if name not in case.metrics]
    head += "".join(f" `{metric}` |" for metric in beside)
    rows = [f"| allocator | seeds |{head} restarts | CPU s |"]
    rows.append("| --- | --- |" + " --- | --- |" * len(case.metrics) + " --- |" * (len(beside) + 2))
    missing = []
    others = sorted(set(found) - {OURS, *case.rivals, *case.oracles})
    for spec in (OURS, *case.rivals, *case.oracles, *others):
        seeds = _seeds(case, found, spec)
        if seeds:
            rows.append(_row(case, found, spec, seeds))
        else:
            missing.append(spec)
    bounds = _bounds(case, found)
    text += "\n".join(rows) + "\n" + bounds
    return text + (NOT_MEASURED.format(", ".join(missing)) if missing else "")


def _row(case: Case, found: dict[str, Any], spec: str, seeds: list[int]) -> str:
    cells = []
    for metric in case.metrics:
        theirs, ours = _values(found, spec, metric, seeds), _values(found, OURS, metric, seeds)
        difference, half = paired(ours, theirs)
        cells.append(f" {theirs.mean():.5g} |")
        cells.append("  |" if spec == OURS else f" {difference:+.4g} ± {half:.2g} |")
    for metric in BESIDE:
        if metric not in case.metrics:
            known = [found[spec][str(seed)].get(metric, math.nan) for seed in seeds]
            mean = float(np.mean(known))
            cells.append("  |" if math.isnan(mean) else f" {mean:.5g} |")
    restarts = _values(found, spec, "restarts_mean", seeds).mean()
    cpu_s = _values(found, spec, "cpu_s", seeds).mean()
    told = " (told the truth)" if spec in case.oracles else ""
    return f"| {spec}{told} | {len(seeds)} |{''.join(cells)} {restarts:.2f} | {cpu_s:.1f} |"


def _bounds(case: Case, found: dict[str, Any]) -> str:
    seeds = _seeds(case, found, OURS)
    if case.bound is None or not seeds:
        return ""
    lines = []
    for metric in case.metrics:
        known = [found[OURS][str(s)].get(f"bound_{metric}", math.nan) for s in seeds]
        if not np.isnan(known).any():
            ours = float(_values(found, OURS, metric, seeds).mean())
            away = abs(ours / float(np.mean(known)) - 1.0)
            side = "above" if metric in HIGHER else "below"
            lines.append(
                f"\nNo allocator has a mean `{metric}` {side} {np.mean(known):.5g}; "
                f"weighted-goodput is {away:.1%} away from it.\n"
            )
    return "".join(lines)
