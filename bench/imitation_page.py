"""docs/benchmarks/imitation.md from bench/imitation.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

HEAD = """<!-- Made by `python -m bench.imitation` from what it measured; `--docs` writes it anew. -->

# Networks that make plans

`learned-matching` imitates teachers that know true sizes: *imitate-plans* optimal matchings, *imitate-schedules* schedules that know
what comes as well. `learned-pointer` (*rnn*) and `learned-transformer` learn from optimal schedules of small instances. Here they are beside
the optimum, `hungarian`, and what decides without learning. The number after a name is the seed of its training.
"""
SMALL = """## Small instances

{instances} instances of each size that no training saw: requests that wait, slots that become free, services that depend on both,
models to be loaded. The cost is the sum of completions; the table has its excess over the optimum, which dynamic programming gives: mean
with its 95 % interval, worst, and the share of instances that are solved to the optimum. `hungarian` and the set network match one request
a slot, the request whose slot is free first starts, and what is left is matched again.
"""
LOOP = """## In the loop, at 64 to 128 nodes

{clusters} generated clusters with 1,500 requests each, whose seeds no training draws. Change of the geometric mean over clusters against
`late-binding`, with its 95 % interval; below 0 is better. *Worst* is the largest change of the mean on one cluster. Everything that matches
plans once a second, a tenth of a usual service. Completion is real, estimates are wrong as the family has them. CPU seconds are of all
runs together, those of `late-binding` included.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    verdicts = "\n".join(verdict(results))
    parts = [HEAD, where, f"## In short\n\n{verdicts}\n", _small(results), _loop(results)]
    return "\n".join([*parts, _training(results["trained"]), _plans(results["plan_ms"])])


def verdict(results: Mapping[str, Any]) -> list[str]:
    """What holds, computed, so that it can't outlive the figures."""
    sizes, policies = results["small"], results["policies"]
    learned = list(results["trained"])
    nearer = {
        name: sum(size[name]["mean"] < size["hungarian"]["mean"] for size in sizes.values())
        for name in learned
    }
    lines = [
        f"- Small instances: {name} is nearer to the optimum than `hungarian` in the mean of {nearer[name]} of {len(sizes)} sizes."
        for name in learned
    ]
    better = [
        n for n in learned if policies[n]["mean"]["high_frac"] < 0 and policies[n]["p99"]["low_frac"] <= 0
    ]
    worse = [n for n in learned if policies[n]["mean"]["low_frac"] > 0 or policies[n]["p99"]["low_frac"] > 0]
    lines.append(
        f"- In the loop: a lower mean than `late-binding` beyond its interval, at a p99 that is not higher beyond its own: "
        f"{', '.join(better) or 'none'}. A higher mean or p99 beyond its interval: {', '.join(worse) or 'none'}."
    )
    rule = policies["hungarian"]["mean"]["frac"]
    below = [n for n in learned if policies[n]["mean"]["frac"] < rule]
    lines.append(
        f"- In the loop: a lower mean than `hungarian`, whose place they take: {', '.join(below) or 'none'}."
    )
    return lines


def _small(results: Mapping[str, Any]) -> str:
    sizes = results["small"]
    names = list(next(iter(sizes.values())))
    rows = [(_code(name), *(_excess(size[name]) for size in sizes.values())) for name in names]
    return f"{SMALL.format(**results)}\n{markdown_table(('schedules by', *sizes), rows)}"


def _excess(found: Mapping[str, float]) -> str:
    mean, ci, worst, optimal = (100 * found[key] for key in ("mean", "ci95", "worst", "optimal"))
    return f"{mean:+.1f} ± {ci:.1f} %, worst {worst:+.0f} %, {optimal:.0f} % optimal"


def _loop(results: Mapping[str, Any]) -> str:
    rows = (
        (
            _code(name),
            _change(p["mean"]),
            _change(p["p99"]),
            f"{100 * p['mean']['worst_frac']:+.0f} %",
            f"{100 * p['worse_share']:.0f} %",
            f"{p['cpu_s']:.0f}",
        )
        for name, p in results["policies"].items()
    )
    head = ("policy", "mean %", "p99 %", "worst", "> 5 % worse", "CPU s")
    return f"{LOOP.format(**results)}\n{markdown_table(head, rows)}"


def _change(c: Mapping[str, float]) -> str:
    return f"{100 * c['frac']:+.1f} ({100 * c['low_frac']:+.1f} to {100 * c['high_frac']:+.1f})"


def _code(name: str) -> str:
    return f"`{name}`" if name in ("hungarian", "auto") else name


def _training(trained: Mapping[str, Any]) -> str:
    rows = (
        (
            name,
            f"`{t['policy']}`",
            str(t["generations"]),
            str(t["hidden"]),
            f"{t['cpu_s']:.0f}",
            f"{t['curve'][0]:+.3f} → {sum(t['curve'][-5:]) / len(t['curve'][-5:]):+.3f}",
        )
        for name, t in trained.items()
    )
    head = ("weights", "policy", "generations", "width", "CPU s", "loss of the first → mean of the last five")
    return (
        "## Training\n\nImitation: six runs of 200 requests on 8 to 32 nodes a generation; the loss is that of the student's mean against "
        "`hungarian`, as a logarithm, and in the first generation that of the teacher, who acts. Sequences: 512 new instances of 3 to 10 "
        "requests on 2 to 6 slots a generation; the loss is the logarithm of their cost over the optimum.\n\n"
        f"{markdown_table(head, rows)}\n"
        "So the first loss of an imitation tells what a student could gain that does all that its teacher does.\n"
    )


def _plans(plan_ms: Mapping[str, Mapping[str, float]]) -> str:
    names = list(next(iter(plan_ms.values())))
    rows = [(_code(name), *(f"{found[name]:.2f}" for found in plan_ms.values())) for name in names]
    return (
        "## Milliseconds of a plan\n\nOf one plan of such a size, on one core. A decision between plans is that of `hungarian` for all of "
        f"them ([Policies](policies.md)).\n\n{markdown_table(('plan by', *plan_ms), rows)}"
    )
