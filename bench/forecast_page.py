"""docs/benchmarks/forecast.md from bench/forecast.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

MIXTURE, NAIVE = "mixture", "naive"
FAR = 1.05  # ratio beyond which the mixture is too far behind
LINE = (("above", False), ("below", True))  # where a row is, by whether it was held out
BEHIND = "More than 5 % behind the best in hindsight"
INSTEAD = {"seasonal naive": "naive", "triple": "double"}  # what a seasonal method is without a season

HEAD = """<!-- Made by `python -m bench.forecast` from what it measured; `--docs` writes it anew. -->

# Forecasts and queueing

Accuracy and speed of `trimtab.forecast`; [Forecast and plan capacity](../guides/forecast.md) says how to use it.
"""

ACCURACY = """## Accuracy on recorded traces

The measure is MASE: the mean absolute error over all steps up to the horizon and all origins of the second half, over
that of the one-step naive forecast within the first half. A series that grew has a MASE above 1 for every method. Simple,
double, triple and ARIMA are fitted to the first half (ARIMA(2,1,1): measured before its order was found by AICc). *Ratio* is the mixture over the best single method, which is
known only afterwards. † marks series on which the mixture loses to naive. The first half of openb is nearly empty, so all
its values are large.

Methods are weighed by their error halfway to the horizon to the power of −32, in units of the error of all methods. Two
memories of errors, discounted by 0.993 and 0.999 a step, give two mixtures, which are weighed in turn by their own
errors (Dangl and Halling, Journal of Financial Economics 106, 2012).

The parameters of the mixture were chosen on the series above the line. Those below the line were measured afterwards;
only the choice of two memories has seen them.
"""

FURTHER = """## Accuracy on further series

Series that no choice was made on, except for two memories instead of one: rates of the 12 largest ServeGen clients, jobs
of the 8 largest virtual clusters of Philly, the ITP clusters in steps of 20 min and of 4 h, and four counters of GenTD26.
ARIMA is left out. They say what to expect of a new series.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = f"{on['cpu']}, {on['cores']} cores, {on['system']}"
    accuracy = (ACCURACY, _accuracy(results["accuracy"]), FURTHER, _further(results["further"]))
    rest = (_speed(results["speed"], where), _stations(results["stations"]))
    return "\n".join([HEAD, *accuracy, _intervals(results["accuracy"]), *rest])


def _mase(row: Mapping[str, Any]) -> dict[str, float]:
    return {method["method"]: method["mase"] for method in row["methods"]}


def _accuracy(rows: list[Mapping[str, Any]]) -> str:
    methods = [*dict.fromkeys(name for row in rows for name in _mase(row) if name != MIXTURE), MIXTURE]
    seen = [row for row in rows if not row["is_held_out"]]
    unseen = [row for row in rows if row["is_held_out"]]
    table = [_accuracy_row(row, methods) for row in seen]
    table += [_mean_row("mean of these", seen, methods)]
    if unseen:
        table += [["—"] * (len(methods) + 2), *(_accuracy_row(row, methods) for row in unseen)]
        table += [_mean_row("mean of these", unseen, methods)]
    return (
        markdown_table(["series, step, horizon", *methods, "ratio"], table) + "\n" + _verdict(rows, methods)
    )


def _accuracy_row(row: Mapping[str, Any], methods: list[str]) -> list[str]:
    mase = _mase(row)
    best = min(mase[name] for name in mase)
    cells = [
        f"**{mase[m]:.3f}**" if mase.get(m) == best else f"{mase[m]:.3f}" if m in mase else ""
        for m in methods
    ]
    mark = " †" if _lost(row) else ""
    return [f"{row['series']}, {row['step']}, {row['horizon']}{mark}", *cells, f"{_ratio(row):.3f}"]


def _ratio(row: Mapping[str, Any]) -> float:
    mase = _mase(row)
    return mase[MIXTURE] / min(value for name, value in mase.items() if name != MIXTURE)


def _means(rows: list[Mapping[str, Any]], methods: list[str]) -> dict[str, float]:
    """Means over the series; a seasonal method without a season is its plain one."""
    each = [_mase(row) for row in rows]
    return {m: sum(one.get(m, one.get(INSTEAD.get(m, m))) for one in each) / len(each) for m in methods}


def _mean_row(title: str, rows: list[Mapping[str, Any]], methods: list[str]) -> list[str]:
    means = _means(rows, methods)
    ratio = means[MIXTURE] / min(value for name, value in means.items() if name != MIXTURE)
    return [title, *(f"{means[m]:.3f}" for m in methods), f"{ratio:.3f}"]


def _verdict(rows: list[Mapping[str, Any]], methods: list[str]) -> str:
    means = _means(rows, methods)
    best = min((name for name in means if name != MIXTURE), key=means.__getitem__)
    blocks = [(where, [r for r in rows if r["is_held_out"] == held]) for where, held in LINE]
    return _listed(
        f"Mean over all {len(rows)}: mixture {means[MIXTURE]:.3f}; best single, {best}, {means[best]:.3f}.",
        *(_summary(f"Rows {where} the line", block) for where, block in blocks if block),
        f"{BEHIND}: {_far(rows)}.",
        f"Behind naive: {', '.join(_name(row) for row in rows if _lost(row)) or 'none'}.",
        *(_doubt(row) for row in rows if "origins" in row),
    )


def _further(rows: list[Mapping[str, Any]]) -> str:
    return _listed(_summary("Rows", rows), f"{BEHIND}: {_far(rows)}.")


def _listed(*lines: str) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _summary(title: str, rows: list[Mapping[str, Any]]) -> str:
    worst = max(rows, key=_ratio)
    mean, far = sum(map(_ratio, rows)) / len(rows), sum(_ratio(row) > FAR for row in rows)
    return (
        f"{title}: {len(rows)}; mean ratio {mean:.3f}; worst {_ratio(worst):.3f} ({_name(worst)}); "
        f"{far} over {FAR}; {sum(map(_lost, rows))} behind naive."
    )


def _far(rows: list[Mapping[str, Any]]) -> str:
    """Those far behind the best, the farthest first."""
    far = sorted((row for row in rows if _ratio(row) > FAR), key=_ratio, reverse=True)
    return ", ".join(f"{_name(row)} ({_ratio(row):.3f})" for row in far) or "none"


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['series']} {row['step']} {row['horizon']}"


def _lost(row: Mapping[str, Any]) -> bool:
    return _mase(row)[MIXTURE] > _mase(row)[NAIVE]


def _doubt(row: Mapping[str, Any]) -> str:
    """A sentence on a ratio that is far behind, with its spread."""
    drawn = f"{row['ratio_5']:.2f} to {row['ratio_95']:.2f}"
    return (
        f"{_name(row)}: without the one origin of {row['origins']} where the mixture loses most, the ratio "
        f"is {row['ratio_without_worst']:.3f}; over origins drawn anew in blocks of a day 90 % of ratios are "
        f"from {drawn}."
    )


def _intervals(rows: list[Mapping[str, Any]]) -> str:
    table = []
    for row in rows:
        by_name = {method["method"]: method for method in row["methods"]}
        mixture, naive = by_name[MIXTURE], by_name[NAIVE]
        covered = [f"{100 * mixture[f'coverage_{level}_frac']:.1f}" for level in (80, 90)]
        name = f"{row['series']}, {row['step']}, {row['horizon']}"
        table.append([name, *covered, f"{mixture['pinball']:.3f}", f"{naive['pinball']:.3f}"])
    head = [
        "series, step, horizon",
        "% in the 80 % interval",
        "% in the 90 % interval",
        "pinball",
        "pinball of naive",
    ]
    text = (
        "## Intervals of the mixture\n\n"
        "Pinball loss over the 5, 10, 50, 90 and 95 % quantiles, on the scale of MASE. Intervals are too\n"
        "narrow where the traffic changes its nature within the second half.\n"
    )
    return f"{text}\n{markdown_table(head, table)}"


def _speed(rows: list[Mapping[str, Any]], where: str) -> str:
    table = []
    for r in rows:
        sizes = (f"{r['series']:,}", str(r["horizon"]), str(r["period"]), str(r["experts"]))
        table.append([*sizes, f"{r['update_ms']:.3f}", f"{r['forecast_ms']:.1f}"])
    head = ["series", "horizon", "period", "experts", "update ms", "forecast ms"]
    text = (
        f"## Speed\n\nMedians on {where}. An update scores, learns and looks ahead for all series;\n"
        "a forecast with quantiles is made on demand."
    )
    return f"{text}\n\n{markdown_table(head, table)}"


def _stations(rows: list[Mapping[str, Any]]) -> str:
    names = ("whitt wait", "allen-cunneen wait", "whitt waits", "allen-cunneen waits")
    table = [
        [
            r["gaps"],
            r["services"],
            f"{r['wait_s']:.3f}",
            f"{r['wait_frac']:.3f}",
            *(f"{100 * r[n]:+.0f} %" for n in names),
        ]
        for r in rows
    ]
    head = [
        "gaps",
        "services",
        "mean wait",
        "share that waits",
        "Whitt",
        "Allen–Cunneen",
        "share: Whitt",
        "share: Erlang C",
    ]
    text = """## Queueing

Errors of the approximations for G/G/c against simulation, at 16 servers and load 0.9, with services of mean 1."""
    return f"{text}\n\n{markdown_table(head, table)}"
