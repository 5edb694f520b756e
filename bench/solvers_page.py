"""docs/benchmarks/solvers.md from saved results."""

from __future__ import annotations

from typing import Any

HEAD = """<!-- Made by `python -m bench.solvers`; edit bench/solvers_page.py instead. -->

# Solvers

Which task goes to which node, as an integer programme: Σ value x over tasks and nodes is to be least (or most),
each task is on one node (compulsory) or on at most one (optional), and no node has more than its capacity of any
resource.

```python
from trimtab.solvers import assignment_problem, solve

problem = assignment_problem(utility, demand, capacity, maximise=True)  # [tasks, nodes] twice, [nodes]
solution = solve(problem, time_limit_s=2.0)
solution.status, solution.objective, solution.bound, solution.gap_frac, solution.assignment
```

`trimtab solve gap FILE` does it for files in the format of the OR-Library. `solve` takes, by what the problem is:

| method | when | what it proves |
|---|---|---|
| matching: linear assignment | all tasks need the same of a node (`matching_problem`), and tasks × places are up to a million, or there are at most three tasks a node and the time is enough | the optimum |
| exact: HiGHS | up to 200 pairs | the optimum, if the time allows |
| dual smoothing, ejection chains; dual by resource, branch and bound, dives; core by HiGHS | up to 2,500 tasks and a million pairs | a bound by both relaxations; the optimum where branch and bound or the core closes the gap |
| dual smoothing, ejection chains | beyond | a bound; the search ends at .2 %, or at .3 % where it stands still |

Linear assignment needs a column for each place of a node. With one or two places a node it is the only way here to a
proof; from about ten places on, the dual and its core prove the same optimum sooner as soon as there are a million
cells, and where costs are like a scheduler's, many times sooner (table below). It can't be stopped either, so it is only
taken where its worst time is within the limit.

`Solution.method` names the parts that had a turn: what is proved at once needs no core, and so on.

Both relaxations are there. The one by task (prices of capacity) is the fast one and begins every solve. The one by
resource (a knapsack for each node, prices of tasks) is climbed where demands are whole numbers of one resource and
the tables are small enough: its bound is far better where nodes hold few tasks (type E with 20 nodes and 100 tasks:
8,356 becomes 8,431, optimum 8,436; type C: 1,219 becomes 1,242, optimum 1,243) and it says which pairs matter, so
that the core that HiGHS gets shrinks to a tenth to a half of the pairs.

Where costs are whole numbers too, branch and bound on that relaxation asks whether there is a solution at the
bound, then one above, and so on (Posta, Ferland and Michelon 2012): so near to the bound nearly all pairs are ruled
out. The first yes is the optimum. It proves b05200 in a tenth of a second of search, where HiGHS on the same core
takes ten.

Dives are the same search with questions between the bound and the best value, each given up after a while, a share
of the open tasks settled at each point, the surest first. They find what chains with kicks don't: of type D, where
these ended .8 % off, something within .3 %.

Where the chains have found nothing within the capacities after their first round (above 2,500 tasks: at half time), an
assignment is constructed that keeps to them (`construction`), and it is what a search ends with that has no time for better: with a limit far too
short for the size, the answer is late by about a second, or a few at 100,000 tasks × 1,000 nodes, but it is there.

A solution of a problem that differs a little is a start: `solve(problem, start=solution)`. In a large search
chains then begin only at tasks that are left with regret, and where that does not come within .3 %, prices are
climbed from the old ones and the search begins anew. Over 30 changes of 1 % each (100 × 10,000, of both kinds below)
every re-solve ends within .3 %; four of five take a fifth of a cold solve, the others as long as one. An infeasible
problem gets the status `infeasible` and a reason; a search that the time limit ends says so and gives its gap.

## The textbook example

GPUs of 10, 8 and 6 TFLOPS; tasks that need 5, 6, 4 and 3; most is to be in use. All four fit, 18 of 24 are in use:
{5, 4}, {6}, {3}. A formulation that is in print has three tasks only (the demand of 6 is missing), and gives the
first task the utility 5 on the first GPU but 6 on the others. Its optimum is 13: it counts 6 TFLOPS for a task that
uses 5, and 12 are in use. What is to be most has to be what is used: utility = demand. Both are tests
(tests/solvers/test_solve.py).

## Figures

Wall time; the load average beside each part says how busy the machine was with other work when it began.
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
