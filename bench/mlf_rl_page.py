"""The page of MLF-RL: what exploring cost, and unseen lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import mean_ci95

LOADS = (0.7, 1.0, 1.3)
KEPT = ("completion_mean_s", "completion_p99_s", "deadline_satisfied_frac", "restarts_mean")

HEAD = """<!-- Made by `python -m bench.mlf_rl` from what it measured; `--docs` writes it anew. -->

# MLF-RL, trained

The allocator `mlf-rl` decides job by job, in the order of MLF-H (`mlfs`), by a network of sixteen hidden units: one trunk with heads for the actions, for throughput and
for convergence. *mlfs-style* is a survey's reading: keep, one level less, one level more, admit, preempt. *paper* is the paper's as far as a job is one task: jobs on full nodes leave
or stay, those that wait are placed or wait on, all with the GPUs that they asked for. Both begin as exact imitations of MLF-H and then follow a clipped policy gradient
on nine generated lists of 100 jobs on 32 GPUs, at loads of 0.7, 1 and 1.3. The weights are `bench/mlf-rl-ACTIONS.safetensors`; they run without torch:

    trimtab compare elastic-training -p mlfs -p 'mlf-rl(artifact=bench/mlf-rl-mlfs-style.safetensors)'

- *mlfs-style* ends the mean job 18 to 28 % earlier than MLF-H, at every load beyond its interval; p99 is 12 to 19 % lower, which the intervals do not tell from no change.
  It learned to give jobs more GPUs, which MLF-H never does. Allocators that were made for that gain more: `elasticflow` 25 to 46 %, `weighted-goodput` 35 to 46 %. Use those.
- *paper* gains nothing over MLF-H within its 50 CPU seconds: with the GPUs that jobs asked for, and one speed on every node, there is little to decide.
- Drawing actions is no loss here. In *mlfs-style* it ends jobs earlier than the best actions do at loads of 0.7 and 1, with five times the restarts: the training had not converged.

The weights were trained on MLF-H as it was before it read reported losses (commit 1c8761a8); unseen lists are run with MLF-H as it is.

Figures are those of five lists that training did not see, of the same family and size. Differences are paired by list, with 95 % intervals.
"""


def page(saved: Mapping[str, Any]) -> str:
    return "\n".join([HEAD, _training(saved["trained"]), _results(saved["evaluated"])])


def _training(found: Mapping[str, Any]) -> str:
    rows = []
    for actions, each in found.items():
        ratios = {key: np.array([c[f"{key}_over_mlfs"] for c in each["course"]]) for key in ("mean", "p99")}
        first, last = slice(0, 10), slice(-10, None)
        rows.append(
            [
                actions, f"{each['agreement']:.1%}", f"{each['cpu_s']:.0f}", str(len(each["course"])),
                *(f"{100 * (ratios[key][part].mean() - 1):+.0f} %" for part in (first, last) for key in ratios),
                f"{100 * (max(ratios['mean'].max(), 1) - 1):+.0f} %",
            ]
        )  # fmt: skip
    head = [
        "actions",
        "agrees with MLF-H after imitation",
        "CPU s",
        "batches of four rollouts",
        "mean, first ten batches",
    ]
    head += ["p99, first ten", "mean, last ten", "p99, last ten", "worst batch, mean"]
    about = """## What exploring costs while it trains

Completion of the jobs that ran while actions were drawn, against MLF-H on the same lists: below 0 those jobs were faster than under MLF-H.

"""
    return about + markdown_table(head, rows)


def _results(found: Mapping[str, list[Mapping[str, float]]]) -> str:
    parts = ["## Unseen lists\n"]
    for load in LOADS:
        heuristic = found[f"mlfs | {load}"]
        rows = []
        for name in [key.partition(" | ")[0] for key in found if key.endswith(f"| {load}")]:
            each = found[f"{name} | {load}"]
            cells = [f"`{name}`" if "," not in name else name]
            for metric in KEPT:
                values = np.array([one[metric] for one in each])
                cells.append(f"{values.mean():.3f}" if metric.endswith("frac") else f"{values.mean():,.1f}")
                if metric.startswith("completion"):
                    ratio = values / np.array([one[metric] for one in heuristic]) - 1
                    change = mean_ci95(ratio)
                    cells.append(
                        ""
                        if name == "mlfs"
                        else f"{100 * change.mean:+.1f} ± {100 * (change.ci95 or 0):.1f} %"
                    )
            rows.append(cells)
        head = [
            "allocator",
            "mean completion, s",
            "against mlfs",
            "p99, s",
            "against mlfs",
            "deadlines met",
            "restarts",
        ]
        parts.append(f"### Load {load}\n\n{markdown_table(head, rows)}")
    return "\n".join(parts)
