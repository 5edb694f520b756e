"""docs/benchmarks/learned.md from bench/learned.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from bench.page import markdown_table
from trimtab.learn.judgement import WORSE_FRAC, Change, change

RULE: Final = "late-binding"
PRICED, HYBRID = "dual-price", "hybrid-optimise"
GUARDED: Final = ", guarded by rollouts"
GROUPS: Final = {  # key of a group of cases → its heading
    "loads": "Generated clusters of 8 to 64 nodes, by load",
    "nodes": "Generated clusters, by nodes",
    "cases": "Built-in scenarios and traces",
}
TRACES: Final = "GenTD26, Azure conversation and Mooncake"

HEAD = """<!-- Made by `python -m bench.learned` from what it measured; `--docs` writes it anew. -->

# Learned policies

What learned weights and hybrids change against `late-binding`, on workloads that no training saw. Each figure is a relative change of the
geometric mean over workloads in per cent, ± its 95 % interval; below 0 is better.
"""

READ = """- *Trained* and *run*: CPU seconds, of the training once, and of 10,000 requests with all planning; on a busy machine, so read them as ratios. Weights that were trained for early binding (`dispatch`,
  A2C, PPO, DQN) correct `least-expected-completion`; a residual corrects `late-binding`.
- *Better*: cases in which the mean is lower beyond its interval at a p99 that is not higher beyond its own. *Worse*: the mean or the p99 is higher
  beyond its interval. Of cases without any difference chance puts one in forty into *better*, and one in twenty into *worse*.
- –: not measured. Policies that plan prices ran on the first fifth of the workloads, at least three, as the longest-running ones.
- *> 5 % worse*: clusters of the family whose mean is more than 5 % above that of `late-binding`; *worst*: the largest change of a mean there.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, cases = results["machine"], results["cases"]
    parts = [HEAD, f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"]
    parts += [_summary(results), READ, _hybrids(cases)]
    for group, heading in GROUPS.items():
        parts.append(f"## {heading}\n\n{_note(cases, group)}\n\n{_by_case(_of_group(cases, group))}")
    parts += [_guards(cases), _training(results["trained"]), _decisions(results["decisions_us"])]
    return "\n".join(parts)


def changes(case: Mapping[str, Any], name: str, rule: str = RULE) -> tuple[Change, Change]:
    """Of mean and p99 of a policy against a rule in one case, on the workloads that both ran on."""
    found, base = case["policies"][name], case["policies"][rule]
    n = len(found["mean"])
    mean, p99 = (change(np.log(np.array(found[key]) / np.array(base[key][:n]))) for key in ("mean", "p99"))
    return mean, p99


def verdict(pairs: Iterable[tuple[Change, Change]]) -> tuple[int, int]:
    """In how many cases a policy is better, and in how many it is worse, by changes of mean and p99."""
    known = list(pairs)
    better = sum(mean.high_frac < 0.0 and p99.low_frac <= 0.0 for mean, p99 in known)
    return better, sum(mean.low_frac > 0.0 or p99.low_frac > 0.0 for mean, p99 in known)


def _summary(results: Mapping[str, Any]) -> str:
    cases, trained = results["cases"], results["trained"]
    family = next(case for case in cases.values() if case["group"] == "family")
    rows = []
    for name, found in family["policies"].items():
        own = [case for case in cases.values() if name in case["policies"]]
        if name == RULE or name.endswith("no guard"):
            continue
        mean, p99 = changes(family, name)
        better, worse = verdict(changes(case, name) for case in own)
        setting = trained.get(name.removesuffix(GUARDED).removeprefix("ES "))
        spent_s = "–" if setting is None else f"{setting['cpu_s']:.0f}"
        run_s = 1e4 * found["cpu_s"] / (len(found["mean"]) * family["requests"])
        share = worse_share(family, name)
        ends = (
            f"{100 * share:.0f} %",
            f"{100 * mean.worst_frac:+.0f} %",
            f"{better} of {len(own)}",
            str(worse),
        )
        rows.append((name, spent_s, f"{run_s:.2f}", _told(mean), _told(p99), *ends))
    head = ("policy", "trained", "run", "mean", "p99", "> 5 % worse", "worst", "better", "worse")
    of = f"{family['workloads']} generated clusters of 8 to 64 nodes at loads of 0.5 to 1.1, {family['requests']:,} requests each"
    return f"## In short\n\nOn {of}; the last two columns count all cases of this page.\n\n{markdown_table(head, rows)}"


def worse_share(case: Mapping[str, Any], name: str) -> float:
    """The share of workloads whose mean is more than `WORSE_FRAC` above the rule's."""
    found, base = (np.array(case["policies"][each]["mean"]) for each in (name, RULE))
    return float((found > (1.0 + WORSE_FRAC) * base[: len(found)]).mean())


def _hybrids(cases: Mapping[str, Any]) -> str:
    rows = []
    for title, case in cases.items():
        with_and_without = ((HYBRID, PRICED), ("hybrid-rules", RULE))
        cells = [_cell(case, name, rule) for name, rule in with_and_without]
        rows.append((title, *cells))
    head = ("case", "optimiser and learner", "rule and learner")
    return (
        "## Hybrids, with their learner against without\n\nMean / p99 of `hybrid-optimise` against `dual-price`, whose prices its learner corrects, and "
        f"`hybrid-rules` against `late-binding`, whose numbers its learner tunes.\n\n{markdown_table(head, rows)}"
    )


def _of_group(cases: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {title: case for title, case in cases.items() if case["group"] == group}


def _note(cases: Mapping[str, Any], group: str) -> str:
    told = (
        f"{title}: {case['workloads']} × {case['requests']:,}"
        for title, case in _of_group(cases, group).items()
    )
    more = f" A trace's rows are the same for each seed; only errors and service noise differ. {TRACES} are at load 0.8."
    return f"Mean / p99. Workloads × requests: {'; '.join(told)}.{more if group == 'cases' else ''}"


def _by_case(cases: Mapping[str, Any]) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name in dict.fromkeys(name for case in cases.values() for name in case["policies"]):
            if name != RULE:
                yield name, *(_cell(case, name, RULE) for case in cases.values())

    return markdown_table(("policy", *cases), rows())


def _cell(case: Mapping[str, Any], name: str, rule: str) -> str:
    """Mean / p99 of a policy against a rule."""
    if not case["policies"].keys() >= {name, rule}:
        return "–"
    mean, p99 = changes(case, name, rule)
    return f"{_told(mean)} / {_told(p99)}"


def _told(c: Change) -> str:
    """In per cent."""
    return f"{100 * c.frac:+.1f} ±{50 * (c.high_frac - c.low_frac):.1f}"


def _guards(cases: Mapping[str, Any]) -> str:
    """Shares of clusters that are worse, by guard."""
    family = next(case for case in cases.values() if case["group"] == "family")
    rows = [
        (name, *(_share(family, name + guard) for guard in (", no guard", "", GUARDED)))
        for name in family["policies"]
        if f"{name}, no guard" in family["policies"]
    ]
    head = ("weights", "without a guard", "bound and ranges", "rollouts besides")
    return (
        f"## The guard\n\nShare of the {family['workloads']} unseen clusters of the family whose mean is more than 5 % above that of `late-binding`. "
        "*Without a guard* takes away the bound on what a score may change by (1.5 best services) and the ranges of features that were seen in "
        f"training. *Rollouts besides* is `learned-guarded`, which falls back where rollouts show regret.\n\n{markdown_table(head, rows)}"
    )


def _share(case: Mapping[str, Any], name: str) -> str:
    return f"{100 * worse_share(case, name):.0f} %" if name in case["policies"] else "–"


def _training(trained: Mapping[str, Any]) -> str:
    rows = (
        (
            name if t["method"] != "es" else f"ES {name}",
            f"`{t['policy']}`",
            f"`{t['objective']}`",
            str(t["generations"]),
            f"{t['cpu_s']:.0f}",
            f"{_ends(t['curve'])[0]:+.3f} → {_ends(t['curve'])[1]:+.3f}",
        )
        for name, t in trained.items()
    )
    head = ("weights", "policy", "objective", "generations", "CPU s", "loss at first → at last")
    return (
        "## Training\n\nOn 96 generated clusters of 8 to 32 nodes and 400 requests, as `trimtab learn train` does: evolution strategies (ES) with common random "
        "numbers, or decisions and their rewards, 51,200 in a generation; all within a CPU minute. Loss is the objective against the rule "
        "without weights, of which 0 is as good, in the mean of a tenth of the generations; that of ES is of candidates, which deviate from the "
        f"centre.\n\n{markdown_table(head, rows)}"
    )


def _ends(curve: list[float]) -> tuple[float, float]:
    """Means of the first and of the last tenth, at least one value each."""
    tenth = max(1, len(curve) // 10)
    return sum(curve[:tenth]) / tenth, sum(curve[-tenth:]) / tenth


def _decisions(decisions_us: Mapping[str, Mapping[str, float]]) -> str:
    names = list(next(iter(decisions_us.values())))
    rows = [(name, *(f"{found[name]:.2f}" for found in decisions_us.values())) for name in names]
    return (
        "## Microseconds of a decision at 1,000 nodes\n\nWeights that read nothing of single nodes need one pass of the network for "
        f"each group and kind of nodes.\n\n{markdown_table(('policy', *decisions_us), rows)}"
    )
