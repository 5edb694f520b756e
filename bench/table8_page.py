"""The page of the four claims, and what is run for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics.statistics import mean

DEADLINES, POLLUX, MUXFLOW, MLFS = "deadlines", "pollux", "muxflow", "mlfs"
PAIRS: Mapping[str, tuple[str, ...]] = {
    DEADLINES: ("elasticflow", "chronus(select=greedy)"),
    POLLUX: ("pollux", "optimus", "optimus-oracle"),
    MUXFLOW: ("muxflow", "muxflow(sharing=turns)", "muxflow(sharing=none)"),
    MLFS: ("mlfs", "hypersched"),
}
MUXFLOW_LOAD = 1.5  # of jobs of one GPU over all GPUs, so that more wait than fit
GPUS, LISTS, SEEDS = (1024, 128), (1, 3, 6), (0, 1, 2)


HEAD = """<!-- Made by `python -m bench.table8` from what it measured; `--docs` writes it anew. -->

# Four claims about training allocators

A survey sets four pairs of allocators side by side, each with one figure. `make bench-table8` runs both of each pair at the survey's size. What the papers
themselves say differs from the survey in three of four rows; both stand here. Each run is one run of the simulator, its CPU seconds are in `bench/table8.json`. A dash: not run, or no job ended.
"""


def page(saved: Mapping[str, Any]) -> str:
    return "\n".join(
        [HEAD, _summary(saved), _deadlines(saved), _pollux(saved), _muxflow(saved), _mlfs(saved)]
    )


def _mean(saved: Mapping[str, Any], study: str, name: str, metric: str, parts: tuple[int, ...]) -> float:
    return mean(np.array([saved.get(f"{study}: {name}, {p}", {}).get(metric, np.nan) for p in parts]))


def _change(ours: float, theirs: float) -> str:
    return "not run" if np.isnan(ours + theirs) else f"{100 * (ours / theirs - 1):+.0f} %"


def _summary(saved: Mapping[str, Any]) -> str:
    def change(study: str, metric: str, parts: tuple[int, ...], a: int = 0, b: int = 1) -> str:
        names = PAIRS[study]
        return _change(*(_mean(saved, study, names[k], metric, parts) for k in (a, b)))

    met, jct = "deadline_satisfied_frac", "completion_mean_s"
    rows = [
        ["ElasticFlow beside Chronus, deadlines met", "128 GPUs, 15,000 jobs: +50 %",
         "testbed 1.62 ×, this trace on 1,024 GPUs 1.40 ×, mean of eleven traces 1.76 ×",
         f"1,024 GPUs: {change(DEADLINES, met, GPUS[:1])}; 128 GPUs: {change(DEADLINES, met, GPUS[1:])}"],
        ["Pollux beside Optimus, mean completion", "64 GPUs, 160 jobs: −37 %",
         "abstract: 37 to 50 % over both baselines; its artifact: −51.6 %",
         f"{change(POLLUX, jct, LISTS)} against its own fits, {change(POLLUX, jct, LISTS, 0, 2)} against the oracle"],
        ["MuxFlow beside Gandiva, GPU utilisation", "1,000 GPUs, 7,300 jobs: +45 %",
         "not found in the paper; its abstract: 26 to 76 % in production",
         f"{change(MUXFLOW, 'busy_frac', SEEDS[:1])} against time slices, "
         f"{change(MUXFLOW, 'busy_frac', SEEDS[:1], 0, 2)} against services alone"],
        ["MLFS beside HyperSched, mean completion", "96 GPUs, 2,000 jobs: −64 %",
         "64 % is accuracy against TensorFlow and Borg; against HyperSched accuracy +43 %, deadlines +47 %; completion −34 % against Tiresias",
         change(MLFS, jct, SEEDS)],
    ]  # fmt: skip
    return markdown_table(["pair", "the survey", "the papers", "measured here"], rows)


def _table(
    saved: Mapping[str, Any], study: str, parts: Mapping[str, tuple[int, ...]], metrics: Mapping[str, str]
) -> str:
    rows = []
    for title, which in parts.items():
        for name in PAIRS[study]:
            cells = [_mean(saved, study, name, metric, which) for metric in metrics]
            shown = [
                "–" if np.isnan(c) else f"{c:.3f}" if m.endswith("frac") else f"{c:,.0f}"
                for m, c in zip(metrics, cells, strict=True)
            ]
            rows.append([title, f"`{name}`", *shown])
    return markdown_table(["run", "allocator", *metrics.values()], rows)


TIMES = {"completion_mean_s": "mean completion, s", "completion_p99_s": "p99, s"}
DUE = {"deadline_satisfied_frac": "deadlines met"}


def _deadlines(saved: Mapping[str, Any]) -> str:
    about = """## ElasticFlow and Chronus

Microsoft's cluster 04 as ElasticFlow's artifact has it: 15,802 jobs, deadlines of half to one and a half times the duration, speeds of A100. The survey's 128 GPUs
are the testbed, with 195 jobs; this list was simulated on 1,024. Both stand below, the same list on 128 GPUs being eight times too much work. Both
allocators pay ElasticFlow's restarts. Chronus packs greedily here: its integer programme (the default) is compared with it in
[Published figures](golden.md) on smaller lists.

"""
    parts = {"1,024 GPUs": GPUS[:1], "128 GPUs": GPUS[1:]}
    return about + _table(saved, DEADLINES, parts, DUE | {"deadline_kept_frac": "promised and kept"} | TIMES)


def _pollux(saved: Mapping[str, Any]) -> str:
    about = """## Pollux and Optimus

Pollux's published lists 1, 3 and 6, each 160 jobs on 64 T4 GPUs; the mean of the three. `optimus` fits convergence and speed as jobs run; `optimus-oracle` is told the truth, as in
Pollux's own evaluation. Pollux: one seed of its genetic search; [Published figures](golden.md) has five.

"""
    return about + _table(
        saved, POLLUX, {"mean of three lists": LISTS}, TIMES | {"restarts_mean": "restarts"}
    )


def _muxflow(saved: Mapping[str, Any]) -> str:
    metrics = {"busy_frac": "GPU utilisation", "service_over_limit_frac": "services too slow"} | TIMES
    about = f"""## MuxFlow and time slices

1,000 GPUs, each with an online service (busy 0.6 at full load, 0.2 to 0.9 of it over the day), and 7,300 generated jobs of one GPU; load {MUXFLOW_LOAD} (more wait than services leave room for); one seed. Gandiva knows no services:
*turns* is what time slicing does, half of the GPU for each. Utilisation is the busy share of the GPUs' time while jobs come: services by their load, jobs by
their progress. *Too slow*: share of services' time above 1.2 times their latency.

"""
    return about + _table(saved, MUXFLOW, {"1,000 GPUs, 7,300 jobs": SEEDS[:1]}, metrics)


def _mlfs(saved: Mapping[str, Any]) -> str:
    about = """## MLFS and HyperSched

2,000 generated jobs, as those of the built-in scenario `elastic-training`, on twelve nodes of eight GPUs at load 1; deadlines of 0.8 to 3 times the duration; three seeds.
HyperSched was made for trials of one search with one deadline: here each job is a trial. [MLF-RL, trained](mlf-rl.md) has the variants with reinforcement learning.

"""
    return about + _table(
        saved, MLFS, {"mean of three seeds": SEEDS}, TIMES | DUE | {"restarts_mean": "restarts"}
    )
