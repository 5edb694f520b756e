"""docs/benchmarks/solvers.md from saved results."""

from __future__ import annotations

from typing import Any

HEAD = """<!-- Made by `python -m bench.solvers`; edit bench/solvers_page.py instead. -->

# Solvers

Quality and time of `trimtab.solvers`; [Assign by optimisation](../guides/assign.md) says how to use it. Times are wall
time. The load average says how busy the machine was with other work.
"""


def page(saved: dict[str, Any]) -> str:
    """The whole page."""
    return HEAD + "".join(_part(name, part) for name, part in saved["parts"].items())


def _percent(frac: float | None) -> str:
    return "–" if frac is None else f"{100 * frac:.3f}"


def _part(name: str, part: dict[str, Any]) -> str:
    on = part["machine"]
    where = (
        f"Measured {part['measured']} on {on['cpu']}, {on['cores']} cores, load average {on['load_average']}."
    )
    title, table = PARTS[name]
    return f"\n### {title}\n\n{where}\n\n{table(part['rows'])}"


def _published(rows: list[dict[str, Any]]) -> str:
    large = [r for r in rows if r["tasks"] >= 100]
    gaps = [r["gap_frac"] for r in large if r["gap_frac"] is not None]
    proved = sum(r["status"] == "optimal" for r in rows)
    small = [r for r in rows if r["tasks"] < 100]
    text = f"{len(rows)} instances, {sum(r['is_feasible'] for r in rows)} feasible, {proved} proved optimal. "
    if gaps:
        text += (
            f"From 100 tasks on: mean gap to the best known {_percent(sum(gaps) / len(gaps))} %, "
            f"worst {_percent(max(gaps))} %. "
        )
    if small:
        text += (
            f"The {len(small)} below 100 tasks: {sum(r['status'] == 'optimal' for r in small)} proved, "
            f"the slowest in {max(r['time_s'] for r in small):.1f} s."
        )
    head = (
        "| instance | value | best known | gap % | proven gap % | status | s | HiGHS gap % | CP-SAT gap % |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return f"{text}\n\n{head}" + "".join(_published_row(r) for r in large)


def _published_row(r: dict[str, Any]) -> str:
    others = [_other(r, key) for key in ("highs", "cp_sat")]
    value = "–" if r["value"] is None else f"{r['value']:.0f}"
    return (
        f"| {r['name'].split('/')[1]} | {value} | {r['best_known']:.0f} | {_percent(r['gap_frac'])} | "
        f"{_percent(r['proven_gap_frac'])} | {r['status']} | {r['time_s']:.1f} | {others[0]} | {others[1]} |\n"
    )


def _other(r: dict[str, Any], key: str) -> str:
    if f"{key}_s" not in r:
        return ""
    value = r[f"{key}_value"]
    return (
        "none found" if value is None else f"{_percent(value / r['best_known'] - 1)} in {r[f'{key}_s']:.1f} s"
    )


def _generated(rows: list[dict[str, Any]]) -> str:
    head = "| instance | value | proven gap % | status | s |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {r['name']} | {r['value']} | {_percent(r['proven_gap_frac'])} | {r['status']} | {r['time_s']:.1f} |\n"
        for r in rows
    )


def _large(rows: list[dict[str, Any]]) -> str:
    head = (
        "Warm: again after 1 % of the tasks have changed.\n\n"
        "| instance | s | proven gap % | warm s | warm / cold | warm gap % |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {r['name']} | {r['time_s']:.2f} | {_percent(r['proven_gap_frac'])} | {r['warm_s']:.2f} | "
        f"{r['warm_s'] / r['time_s']:.2f} | {_percent(r['warm_gap_frac'])} |\n"
        for r in rows
    )


def _others(rows: list[dict[str, Any]]) -> str:
    head = (
        f"What HiGHS and CP-SAT find in {rows[0]['limit_s']:g} s (time to build the model beside it), a thread each.\n\n"
        "| instance | bound | ours, % above it | s | HiGHS, % above it | s | CP-SAT, % above it | s |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {r['name']} | {r['bound']:.0f} | {_above(r, 'value')} | {r['time_s']:.1f} | {_above(r, 'highs_value')} | "
        f"{r['highs_s']:.1f} | {_above(r, 'cp_sat_value')} | {r.get('cp_sat_s', '–')} |\n"
        for r in rows
    )


def _above(r: dict[str, Any], key: str) -> str:
    """How far a value is above our bound."""
    if key not in r:
        return "not for fractional costs"
    return "nothing found" if r[key] is None else _percent(r[key] / r["bound"] - 1)


def _matching(rows: list[dict[str, Any]]) -> str:
    head = (
        "Linear assignment with a column for each place, the dual, and the transportation programme by HiGHS, "
        "all from the same problem, and the method that `solve` takes.\n\n"
        "| instance | linear assignment s | dual s | its gap % | HiGHS s | its gap % | `solve` took |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {r['name']} | {r['linear_s']:.2f} | {r['dual_s']:.2f} | {_percent(r['dual_gap_frac'])} | "
        f"{r['highs_s']:.2f} | {_percent(r['highs_gap_frac'])} | {r['chosen']} |\n"
        for r in rows
    )


PARTS = {
    "published": ("Published instances", _published),
    "generated": ("Generated instances", _generated),
    "large": ("Large instances", _large),
    "others": ("Large instances by other solvers", _others),
    "matching": ("Tasks of one size, nodes with places", _matching),
}
