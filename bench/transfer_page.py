"""docs/benchmarks/transfer.md from bench/transfer.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.page import markdown_table
from bench.transfer_choice import (
    ANEW,
    PRICE,
    RESAMPLES,
    SHARE,
    Pair,
    choices,
    fitted,
    pairs_of,
    pooled,
    resampled,
    samples_to,
)
from trimtab.metrics import mean_ci95
from trimtab.metrics.statistics import paired_difference_ci95

HEAD = """<!-- Made by `python -m bench.transfer` from what it measured; `--docs` writes it anew. -->

# Transfer

What weights bring that were trained on other clusters, as `trimtab learn transfer` takes them: as they are, trained on (fine-tuned),
or trained anew. `learned-dispatch` by evolution strategies on generated clusters of four families; every family is source and target, and no
cluster of a target is one of a source. Loss is log(mean) + 0.5 log(tail) against `least-expected-completion`, the rule without weights, on
clusters that no training saw; below 0 is better, and -0.01 is about one percent. A sample is one simulated run of the target.
"""


READ = """Samples that a source was trained with are not counted: weights of the same family go on where that training ended, on other clusters of
it. Every training has one seed, so intervals are about clusters, not about the luck of a search; trainings are short, and what many times as long
reaches was not measured. Thresholds belong to fine-tuning with as few samples as here.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, targets, by = results["machine"], results["targets"], results["setting"]
    where = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}, load average {on['load_average']}."
    )
    cpu_s = sum(figures["cpu_s"] for of in targets.values() for figures in of.values())
    how = (
        f"{by['requests']} requests a cluster, {by['judged']} unseen clusters a target, {by['samples_each']} samples a generation; sources "
        f"were trained for {by['trained']} generations. {cpu_s:.0f} CPU seconds without the sources."
    )
    pairs, again = pairs_of(targets, by["budget"]), resampled(targets)
    parts = (
        HEAD,
        f"{where} {how}\n",
        _in_short(targets, again, pairs, by),
        READ,
        _curves(targets, again, by),
        _samples(targets, again, by),
        _choice(pairs),
        _pairs(pairs, targets, by),
    )
    return "\n".join(parts)


def _in_short(
    targets: Mapping[str, Any], again: Sequence[Any], pairs: Sequence[Pair], by: Mapping[str, Any]
) -> str:
    """What holds, computed, so that it can't outlive the figures."""
    curves, mark = pooled(targets), str(by["budget"])
    lines = []
    for name in ("same family", "other families"):
        at = [_interval(curves[name][m], [drawn[name][m] for drawn in again]) for m in ("0", mark)]
        less = [drawn[name][mark] - drawn[ANEW][mark] for drawn in again]
        lines.append(
            f"- Weights of the {name}: loss {at[0]} as they are, without a guard, and {at[1]} fine-tuned with "
            f"{by['budget'] * by['samples_each']:,} samples, which is {_interval(curves[name][mark] - curves[ANEW][mark], less)} against "
            "training anew with as many."
        )
    found = choices(pairs)
    regrets = {name: [pair.regret(way) for pair, way in each] for name, each in found.items()}
    mine = regrets.pop("by the distance")
    best = min(regrets, key=lambda name: math.fsum(regrets[name]))
    apart = paired_difference_ci95(mine, regrets[best])
    lines.append(
        f"- Choosing by the distance: regret {math.fsum(mine) / len(mine):.4f}, {apart.mean:+.4f} ± {apart.ci95 or math.nan:.4f} against the "
        f"best constant choice, *{best}*."
    )
    return "## In short\n\n" + "\n".join(lines) + "\n"


def _curves(targets: Mapping[str, Any], again: Sequence[Any], by: Mapping[str, Any]) -> str:
    curves = pooled(targets)
    rows = [
        (
            f"{int(mark) * by['samples_each']:,}",
            *(
                _interval(curve[mark], [drawn[name][mark] for drawn in again]) if mark in curve else "–"
                for name, curve in curves.items()
            ),
        )
        for mark in curves[ANEW]
    ]
    head = ("samples", *(name if name == ANEW else f"weights of the {name}" for name in curves))
    return (
        "## Loss by samples\n\nMeans over the targets, with 95 % intervals over clusters (bootstrap).\n\n"
        f"{markdown_table(head, rows)}"
    )


def _samples(targets: Mapping[str, Any], again: Sequence[Any], by: Mapping[str, Any]) -> str:
    """Samples to the declared share of the best end of all curves."""
    curves, each = pooled(targets), by["samples_each"]
    starts = {name: samples_to(curve, SHARE * _best_gain(curves), each) for name, curve in curves.items()}
    rows = []
    for name, found in starts.items():
        drawn = sorted(samples_to(one[name], SHARE * _best_gain(one), each) for one in again)
        low, high = (drawn[round(q * (len(drawn) - 1))] for q in (0.025, 0.975))
        most = max(map(int, curves[name])) * each
        rows.append((name, _count(found, most), f"{_count(low, most)} to {_count(high, most)}"))
    return (
        f"## Samples to {100 * SHARE:.0f} % of the final result\n\nThe final result is the lowest loss that one of the curves ends with: "
        f"{_interval(-_best_gain(curves), [-_best_gain(one) for one in again])}. Over {RESAMPLES:,} resamples of the clusters. It was to be what training anew ends with; that gained nothing, so this was chosen after the first results.\n\n"
        f"{markdown_table(('start', 'samples', '95 % interval'), rows)}"
    )


def _best_gain(curves: Mapping[str, Mapping[str, float]]) -> float:
    """The gain of the curve that ends best."""
    return max(-curve[max(curve, key=int)] for curve in curves.values())


def _choice(pairs: Sequence[Pair]) -> str:
    rows = []
    for name, found in choices(pairs).items():
        regrets = [pair.regret(way) for pair, way in found]
        losses = mean_ci95([pair.losses[way] for pair, way in found])
        regret = mean_ci95(regrets)
        right = sum(regret <= 0.0 for regret in regrets)
        trained = sum(way != "as-is" for _, way in found)
        rows.append(
            (
                name,
                f"{right} of {len(found)}",
                f"{regret.mean:.4f} ± {regret.ci95 or math.nan:.4f}",
                f"{max(regrets):.4f}",
                f"{losses.mean:+.4f} ± {losses.ci95 or math.nan:.4f}",
                f"{trained} of {len(found)}",
            )
        )
    below, anew = fitted(pairs)
    head = ("choice", "right", "mean regret", "worst regret", "mean loss", "trainings")
    corr = _correlation(pairs)
    return (
        "## The choice\n\nA way costs its loss, and a training besides "
        f"{PRICE:g}: it must gain half a percent. Regret is what the best of the three ways would have cost less. Thresholds on the total distance "
        "were fitted on pairs without the target's family, and judged on those of it. ± is a 95 % interval over pairs, which share "
        f"targets and sources, so it is too narrow.\n\n{markdown_table(head, rows)}\n"
        f"Fitted on all pairs, as the command has them: as it is below {_end(below)}, anew from {_end(anew)}. The rank correlation of the distance with "
        f"the loss of the weights as they are is {corr['as-is']:+.2f}, with what fine-tuning gains over training anew {corr['gain']:+.2f}.\n"
    )


def _correlation(pairs: Sequence[Pair]) -> dict[str, float]:
    from scipy.stats import spearmanr

    totals = [pair.total for pair in pairs]
    gains = [pair.losses["anew"] - pair.losses["fine-tuned"] for pair in pairs]
    given = {"as-is": [pair.losses["as-is"] for pair in pairs], "gain": gains}
    return {name: float(spearmanr(totals, values).statistic) for name, values in given.items()}


def _pairs(pairs: Sequence[Pair], targets: Mapping[str, Any], by: Mapping[str, Any]) -> str:
    rows = []
    for pair in pairs:
        of, mark = targets[pair.target], str(by["budget"])
        figures = of[pair.source]
        ways = (figures["as_is"], figures["curve"][mark], of[ANEW]["curve"][mark])
        rows.append((pair.target, pair.source, f"{pair.total:.2f}", *(_change(rows) for rows in ways)))
    samples = f"{by['budget'] * by['samples_each']:,}"
    head = (
        "target",
        "source",
        "distance",
        "as it is",
        f"fine-tuned, {samples} samples",
        f"anew, {samples} samples",
    )
    return (
        "## All pairs\n\nChange of the mean / of p99 against the rule, in percent, geometric means over unseen clusters.\n\n"
        f"{markdown_table(head, rows)}"
    )


def _change(rows: Sequence[Sequence[float]]) -> str:
    _, mean, p99 = np.mean(rows, axis=0).tolist()
    return f"{100 * math.expm1(mean):+.1f} / {100 * math.expm1(p99):+.1f}"


def _interval(value: float, drawn: Sequence[float]) -> str:
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _count(samples: float, most: int) -> str:
    return f"more than {most:,}" if math.isinf(samples) else f"{samples:,.0f}"


def _end(threshold: float) -> str:
    return "any distance" if math.isinf(threshold) else f"{threshold:.2f}" if threshold else "0, so never"
