"""docs/benchmarks/fragmentation.md from bench/fragmentation.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import Estimate, mean_ci95

PUBLISHED = {"random": 87.5, "best fit": 93.1, "dot product": 90.9, "fragmentation gradient": 95.4}
WHAT = {
    "default": "as recorded",
    "gpushare40": "40 % of accelerators asked for by pods that share",
    "gpuspec10": "10 % of pods name types of accelerators",
    "multigpu20": "20 % of accelerators asked for several at a time",
}

HEAD = """<!-- Made by `python -m bench.fragmentation` from what it measured; `--docs` writes it anew. -->

# How full accelerators get

Nodes and pods of openb (Alibaba, 2023): 1,213 nodes with 6,212 accelerators, which pods share in thousandths. The pods,
and further ones drawn from them until they ask for 130 % of the accelerators, come in random order and never leave. A pod
that fits nowhere is rejected. A rule chooses the node, and the device of a pod that shares one. All rules keep to cores,
memory and the accelerator types that a pod names.

- *random*: any node and device with room. *first fit*: the first node of the list with room, and its first device.
- *best fit*: the node with the least cores and accelerators left over. *dot product*: the node with the least product of
  demand and free capacity, rounded to hundredths. Both measure in parts of the largest node, and take the fullest device
  that has room.
- *fragmentation gradient* (Weng et al., USENIX ATC 2023): the node and device where the free capacity that a typical pod
  cannot use grows least. It is the score of the policy
  [`fragmentation-gradient`](../policies/fragmentation-gradient.md), with the node's devices apart.
"""

MEANING = """The published column is the mean of eight to ten runs in the authors' simulator repository
(`experiments/analysis/expected_results`, default list, 130 %); their random draws differ, and they have no first fit.
Their simulator rounds scores to whole points. For the gradient a point is about 4 % of a device. The policy here compares
in the same steps, and among equals takes the node with the least left over. The last row shows the scores without
rounding. The dot product is rounded for the same reason; best fit is not.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    lists, at = results["allocated_percent"], results["at_percent"]
    seeds = len(next(iter(lists["default"].values())))
    parts = [HEAD, f"## Allocated at the end, % of all accelerators ({seeds} seeds)\n", _ends(lists), MEANING]
    parts += [
        "## On the way: allocated by what has been asked for, default list\n",
        _way(lists["default"], at),
    ]
    return "\n".join(parts)


def end(rows: Sequence[Sequence[float]]) -> Estimate:
    """Mean over the seeds of what is allocated when all have come, with its interval."""
    return mean_ci95(np.array([row[-1] for row in rows]))


def _ends(lists: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["rule", *(f"{name}: {WHAT[name]}" for name in lists), "published (default)"]
    rows = []
    for rule in lists["default"]:
        cells = [_cell(end(of_list[rule])) for of_list in lists.values()]
        rows.append([rule, *cells, f"{PUBLISHED[rule]:.1f}" if rule in PUBLISHED else ""])
    return markdown_table(head, rows)


def _cell(value: Estimate) -> str:
    return f"{value.mean:.2f}" + (f" ± {value.ci95:.2f}" if value.ci95 is not None else "")


def _way(of_rules: Mapping[str, Any], at: Sequence[int]) -> str:
    rows = [[rule, *(f"{v:.1f}" for v in np.mean(values, axis=0))] for rule, values in of_rules.items()]
    return markdown_table(["rule", *(f"{percent} %" for percent in at)], rows)
