"""docs/benchmarks/policies.md from bench/policies.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import Estimate, mean_ci95

GROUPS = {
    "loads": "Image generation by load",
    "variants": "Image generation: other nodes, reports and failures",
    "traces": "Recorded traces",
    "claims": "Scenarios of single questions",
}
MEAN, P99, UNEVEN = "completion_mean_s", "completion_p99_s", "utilisation_var"
GREEDY, AUTO = "least-expected-completion", "auto"
COMPOSITES = ("auto", "what-if")  # choose among the others, so they are no fixed policy

HEAD = """<!-- Made by `python -m bench.policies` from what it measured; `--docs` writes it anew. -->

# Every policy on every scenario

`make bench-policies` measures what is missing in `bench/policies.json` and writes this page.

- All policies see the same requests for each seed, and serve them first come, first served, with default parameters.
- ± is half the width of the 95 % confidence interval over the seeds.
- *Load* is the share of the fluid capacity.
- *Above bound* is the mean completion over a lower bound, less 1. No bound holds where work may be resumed or shared.
- *Var(U)* is the variance over nodes of busy utilisation; loading is not busy.
- A policy that refuses more than 0.1 % of the requests comes last in a table and is never called best.
- A policy that a table lacks was not measured there.
"""

WHICH = """## Which to choose

On unequal nodes, speed and evenness conflict, because fast nodes should do more work. Choose by what you pay for:

- Latency: the policies at the top of the tables below. They leave slow nodes idle when load is low.
- Even wear, even heat, or licences by node: `even-work` spreads work among nodes that are about equally fast for a
  request. The table of claims shows what that costs in p99.
- On equal nodes there is no conflict: any policy that reads backlogs does well.

`trimtab compare` draws the two against each other in its report ("Evenness against speed").
"""

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """The claims, and the measurements."""

    what: str
    value: Estimate | None  # None: not measured
    target: str
    is_met: bool
    note: str = ""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, cases = results["machine"], results["cases"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    parts = [HEAD, where, _claims_table(list(claims(cases))), WHICH]
    for group, title in GROUPS.items():
        of_group = {name: case for name, case in cases.items() if case["group"] == group}
        if of_group:
            parts += [f"## {title}\n", *(_case_section(name, case) for name, case in of_group.items())]
    return "\n".join(parts)


def values(case: Case, policy: str, metric: str) -> np.ndarray:
    """One value per seed; nan where undefined."""
    return np.array([np.nan if v is None else v for v in case["policies"][policy][metric]], float)


def estimate(case: Case, policy: str, metric: str) -> Estimate:
    return mean_ci95(values(case, policy, metric))


def ratio(case: Case, metric: str, policy: str, over: str) -> Estimate:
    """Of two policies seed by seed, with the interval of these ratios."""
    return mean_ci95(values(case, policy, metric) / values(case, over, metric))


def ranked(case: Case, metric: str, names: Sequence[str] | None = None) -> list[str]:
    """Policies, best first; those that did not serve nearly all come last, as their means flatter them."""

    def key(policy: str) -> tuple[bool, float]:
        mean = estimate(case, policy, metric).mean
        turned_away = estimate(case, policy, "rejected_frac").mean
        return (not turned_away <= 0.001, mean if np.isfinite(mean) else np.inf)

    return sorted(names or case["policies"], key=key)


def fixed(case: Case) -> list[str]:
    return [name for name in case["policies"] if name not in COMPOSITES]


def claims(cases: Mapping[str, Case]) -> Iterator[Claim]:
    """All claims whose cases were measured."""
    for name, made in CLAIMS.items():
        if name in cases:
            yield from made(cases[name])
    yield from _loads_claims(cases)
    yield from _auto_claims(cases)


def _at_most(what: str, value: Estimate, most: float, note: str = "") -> Claim:
    return Claim(what, value, f"≤ {most:g}", value.mean <= most, note)


def _at_least(what: str, value: Estimate, least: float, note: str = "") -> Claim:
    return Claim(what, value, f"≥ {least:g}", value.mean >= least, note)


def _speeds(case: Case) -> Iterator[Claim]:
    third = ranked(case, P99, fixed(case))[2]
    note = f"third best: `{third}`"
    yield _at_least(
        "speeds 4 to 1: p99, round robin over the third best",
        ratio(case, P99, "round-robin", third),
        10,
        note,
    )
    wrr = ratio(case, P99, "weighted-round-robin", third)
    yield _at_least("speeds 4 to 1: p99, weighted round robin over the third best", wrr, 3, note)
    yield _at_most("speeds 4 to 1: p99, even-work over greedy", ratio(case, P99, "even-work", GREEDY), 1.2)


def _evenness(case: Case) -> Iterator[Claim]:
    var = ratio(case, UNEVEN, "round-robin", "even-work")
    yield _at_least("speeds 4 to 1, load 0.35: Var(U), round robin over even-work", var, 20)
    yield _at_most("the same: p99, even-work over greedy", ratio(case, P99, "even-work", GREEDY), 1.2)


def _stale(name: str) -> Callable[[Case], Iterator[Claim]]:
    def made(case: Case) -> Iterator[Claim]:
        naive = ratio(case, P99, GREEDY, "power-of-d").mean
        note = f"naive `{GREEDY}`: {naive:.1f} ×"
        own = ratio(case, P99, "sampled-completion", "power-of-d")
        yield _at_most(f"{name}, 8 dispatchers: p99, sampled-completion over power-of-d", own, 1.05, note)
        if {"load-forecast", "least-expected-wait"} <= case["policies"].keys():
            forecast = ratio(case, MEAN, "load-forecast", "least-expected-wait")
            yield _at_most(f"{name}: mean, load-forecast over least-expected-wait", forecast, 0.97)

    return made


def _daily(case: Case) -> Iterator[Claim]:
    gain = ratio(case, MEAN, "predictive", GREEDY)
    yield _at_most("daily cycle: mean, predictive over greedy", gain, 0.97, "nothing is rejected")


def _regime(case: Case) -> Iterator[Claim]:
    if AUTO in case["policies"]:
        best = ranked(case, MEAN, fixed(case))[0]
        found = ratio(case, MEAN, AUTO, best)
        upper = found.mean + (found.ci95 or 0.0)
        what = "regime-change: mean, auto over the best fixed, with confidence"
        yield Claim(what, found, "< 1", upper < 1.0, f"best fixed: `{best}`")


CLAIMS: Mapping[str, Callable[[Case], Iterator[Claim]]] = {
    "speeds 4 to 1": _speeds,
    "speeds 4 to 1, load 0.35": _evenness,
    "reports 1 services old": _stale("reports 1 service old"),
    "reports 5 services old": _stale("reports 5 services old"),
    "daily cycle": _daily,
    "regime-change": _regime,
}


def _loads_claims(cases: Mapping[str, Case]) -> Iterator[Claim]:
    """Model loads of about one service each: the best policy at load 0.8, and the same at 0.5."""
    busy, calm = cases.get("aigc-images 0.8"), cases.get("aigc-images 0.5")
    if busy and calm:
        best = ranked(busy, MEAN)[0]
        note = f"`{best}`"
        yield _at_most(
            "aigc-images 0.8: mean, the best over greedy", ratio(busy, MEAN, best, GREEDY), 0.8, note
        )
        yield _at_most(
            "aigc-images 0.5: mean, the same over greedy", ratio(calm, MEAN, best, GREEDY), 1.02, note
        )


def _auto_claims(cases: Mapping[str, Case]) -> Iterator[Claim]:
    for name, case in cases.items():
        if AUTO not in case["policies"] or name == "regime-change" or case["load"] > 1.005:
            continue
        best = ranked(case, MEAN, fixed(case))[0]
        mean, p99 = ratio(case, MEAN, AUTO, best), ratio(case, P99, AUTO, best)
        most = 1.03 if case["load"] <= 0.705 else 1.10
        upper = mean.mean + (mean.ci95 or 0.0)
        met = mean.mean <= most and p99.mean <= 1.10 and upper <= 1.15
        note = f"p99 {p99.mean:.2f} ×, best fixed: `{best}`"
        yield Claim(f"{name}: mean, auto over the best fixed", mean, f"≤ {most:g}, p99 ≤ 1.1", met, note)


def _claims_table(found: Sequence[Claim]) -> str:
    rows = [[c.what, _text(c.value), c.target, "yes" if c.is_met else "**no**", c.note] for c in found]
    head = ["claim", "ratio", "target", "met", ""]
    met = sum(c.is_met for c in found)
    return f"## Claims\n\n{met} of {len(found)} are met.\n\n{markdown_table(head, rows)}"


def _text(value: Estimate | None, factor: float = 1.0) -> str:
    if value is None or not np.isfinite(value.mean):
        return "–"
    mean = factor * value.mean
    return f"{mean:.3g}" if value.ci95 is None else f"{mean:.3g} ± {factor * value.ci95:.1g}"


def _case_section(name: str, case: Case) -> str:
    reports = f", reports {case['reports_s']:g} s old at most" if case["reports_s"] else ""
    about = f"{case['requests']:,} requests, load {case['load']:.2f}{reports}, {case['seeds']} seeds."
    rows = [_policy_row(case, policy) for policy in ranked(case, MEAN)]
    head = ["policy", "mean s", "p99 s", "SLO attained %", "Var(U) × 1,000", "rejected %", "above bound %"]
    return f"### {name}\n\n{about}\n\n{markdown_table(head, rows)}"


def _policy_row(case: Case, policy: str) -> list[str]:
    columns = (
        (MEAN, 1.0),
        (P99, 1.0),
        ("slo_attained_frac", 100.0),
        (UNEVEN, 1e3),
        ("rejected_frac", 100.0),
        ("distance_frac", 100.0),
    )
    return [f"`{policy}`", *(_text(estimate(case, policy, metric), factor) for metric, factor in columns)]
