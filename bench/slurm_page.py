"""docs/benchmarks/slurm.md from bench/slurm.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from bench.page import markdown_table
from trimtab.metrics.statistics import student_t95

HEAD = """<!-- Made by `python -m bench.slurm` from what it measured; `--docs` writes it anew. -->

# trimtab beside Slurm

`trimtab slurm scheduler` with its defaults, beside Slurm's own scheduler with backfill: the real slurmctld and slurmd of Slurm 22.05.8, four nodes
of four GPUs, all on one machine. Repeat it with `make bench-slurm` (12 minutes; Debian's `slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge`, as root).

{jobs} jobs sleep for 2 to 8 s each on 1, 2 or 4 GPUs of one node, or on all GPUs of two nodes; a job is submitted every 0.4 s on average, more than
there is room for. Every scheduler gets the same jobs at the same moments, in a new cluster; schedulers take turns. Slurm's time limits are whole minutes, so
all jobs have one of a minute: no scheduler knows which are short. Times are Slurm's own, in whole seconds.
"""
TABLE = """## Waits and makespan

Means of {seeds} job lists with 95 % intervals (Student's t over the lists). *Two nodes*: jobs that need two nodes at once.
"""
PAIRS = """## Less than Slurm's backfill every second

Differences on the same job lists, negative where the wait or the makespan is shorter.
"""
WHY = """What differs, though the shares of the causes were not measured apart:

- Backfill keeps the order of submission: it reserves room for jobs that do not fit yet, and lets others pass only where they delay none of these.
  trimtab starts whatever fits, by the policy, and reserves nothing: small jobs pass those on two nodes, which wait longest and end last.
- trimtab looks once a second (`--period`), and each placement calls `scontrol` twice; Slurm's own scheduler hears of each submission and end at once.
"""
FIGURES = {
    "wait_mean_s": "mean wait, s",
    "wait_wide_mean_s": "mean wait on two nodes, s",
    "wait_max_s": "longest wait, s",
    "makespan_s": "makespan, s",
}
BASE = "Slurm, backfill every second"


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, runs = results["machine"], results["runs"]
    measured = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['memory_gb']} GB, "
        f"load average {on['load_average']} at the start.\n"
    )
    seeds = len(runs[BASE])
    head = ["scheduler", *FIGURES.values()]
    rows = [
        [name, *(_interval([run[key] for run in of_one]) for key in FIGURES)] for name, of_one in runs.items()
    ]
    parts = [
        HEAD.format(jobs=results["jobs"]),
        measured,
        TABLE.format(seeds=seeds),
        markdown_table(head, rows),
    ]
    return "\n".join([*parts, PAIRS, markdown_table(head, _differences(runs)), WHY])


def _differences(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[list[str]]:
    return [
        [
            name,
            *(
                _interval([a[key] - b[key] for a, b in zip(of_one, runs[BASE], strict=True)])
                for key in FIGURES
            ),
        ]
        for name, of_one in runs.items()
        if name != BASE
    ]


def _interval(values: Sequence[float]) -> str:
    """Mean ± half the 95 % interval."""
    if len(values) < 2:
        return f"{values[0]:.1f}"
    half = student_t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return f"{mean(values):.1f} ± {half:.1f}"
