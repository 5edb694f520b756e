"""`python -m bench.fragmentation`: how full an accelerator cluster gets by rule; its page.

The nodes and pods of openb, read from ../shared/data beside the checkout. Saves bench/fragmentation.json;
`--docs` only writes the page, `--seeds N` measures fewer orders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.allocator import MILLI, Kinds, Machines, Rule, place
from bench.fragmentation_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.policies.resource_aware.fragmentation_gradient import FragmentationGradient

DATA = ROOT.parent / "shared" / "data" / "alibaba_openb_2023"
RESULTS, PAGE = ROOT / "bench" / "fragmentation.json", ROOT / "docs" / "benchmarks" / "fragmentation.md"
LISTS = ("default", "gpushare40", "gpuspec10", "multigpu20")
SEEDS = 10
ARRIVED_FRAC = 1.3  # of the cluster's accelerators
EXACT_FRAC = 1e-9  # a step so small that growth is compared as it is
AT_PERCENT = (80, 85, 90, 95, 100, 105, 110, 120, 130)
MIB_PER_GIB = 1024.0
STEP_FRAC = FragmentationGradient.step_frac
RULES = {rule.name.lower().replace("_", " "): (rule, STEP_FRAC) for rule in Rule}
RULES["the same, growth not rounded"] = (Rule.FRAGMENTATION_GRADIENT, EXACT_FRAC)


def read_machines(folder: Path) -> tuple[Machines, list[str]]:
    """Nodes that have accelerators, and the names of these."""
    nodes = pl.read_csv(folder / "openb_node_list_all_node.csv.gz").filter(pl.col("gpu") > 0)
    names = sorted(set(nodes["model"]))
    capacity = np.stack([nodes["cpu_milli"] / MILLI, nodes["memory_mib"] / MIB_PER_GIB], axis=1)
    type_idx = np.array([names.index(name) for name in nodes["model"]])
    return Machines(capacity, nodes["gpu"].to_numpy().astype(np.int64), type_idx), names


def read_pods(path: Path, type_names: list[str]) -> tuple[Kinds, np.ndarray]:
    """Kinds of pods, and the kind of each pod [pods]. Types that no node has are left out."""
    table = pl.read_csv(path, infer_schema_length=None)
    if "gpu_spec" not in table.columns:
        table = table.with_columns(gpu_spec=pl.lit(None, pl.String))
    asked = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"]
    kinds = table.group_by(asked, maintain_order=True).len().with_row_index("kind")
    pods = table.join(kinds, on=asked, how="left", nulls_equal=True, maintain_order="left")["kind"]
    demand = np.stack(
        [kinds["cpu_milli"] / MILLI, kinds["memory_mib"] / MIB_PER_GIB, kinds["gpu_milli"] * 1.0], axis=1
    )
    fixed_s = np.zeros((len(kinds), len(type_names)))
    for m, spec in enumerate(kinds["gpu_spec"]):
        if spec:
            fixed_s[m] = [0.0 if name in spec.split("|") else np.inf for name in type_names]
    popularity = kinds["len"].to_numpy() / len(table)
    many = kinds["num_gpu"].to_numpy().astype(np.int64)
    return Kinds(np.ascontiguousarray(demand), many, fixed_s, popularity), pods.to_numpy().astype(np.int64)


def resampled(pods: np.ndarray, milli: np.ndarray, target: float, pick: np.random.Generator) -> np.ndarray:
    """The pods in any order, and as many more of them, drawn evenly, as take no more than `target` in all.

    Where they take more already, any of them are left out until they do not.
    """
    order = pick.permutation(pods)
    more = pick.choice(pods, 2 * len(pods))
    row = np.concatenate([order, more])
    return pick.permutation(row[np.cumsum(milli[row]) <= target])


def allocated_percent(
    pods: np.ndarray, placed: np.ndarray, milli: np.ndarray, capacity_milli: float
) -> list[float]:
    """Share of the accelerators in use by the time that so many percent of them have been asked for."""
    arrived = 100.0 * np.cumsum(milli[pods]) / capacity_milli
    used = 100.0 * np.cumsum(np.where(placed[:, 0] >= 0, milli[pods], 0.0)) / capacity_milli
    last = np.searchsorted(arrived, AT_PERCENT, side="right") - 1
    return [round(float(used[i]), 3) for i in last]


def measure(folder: Path, pod_list: str, seeds: int) -> dict[str, list[list[float]]]:
    """For each rule and seed the allocated percentages."""
    machines, names = read_machines(folder)
    kinds, pods = read_pods(folder / f"openb_pod_list_{pod_list}.csv.gz", names)
    milli, capacity_milli = kinds.many * kinds.demand[:, 2], MILLI * float(machines.n_devices.sum())
    rows: dict[str, list[list[float]]] = {name: [] for name in RULES}
    for seed in range(seeds):
        pick = np.random.default_rng(seed)
        arriving = resampled(pods, milli, ARRIVED_FRAC * capacity_milli, pick)
        draws = pick.random((len(arriving), 2))
        for name, (rule, step_frac) in RULES.items():
            placed = place(rule, arriving, draws, machines, kinds, step_frac=step_frac)
            rows[name].append(allocated_percent(arriving, placed, milli, capacity_milli))
        print(pod_list, seed, {name: of_rule[-1][-1] for name, of_rule in rows.items()}, flush=True)
    return rows


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.fragmentation", __doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    if not given.docs:
        lists = {name: measure(DATA, name, given.seeds) for name in LISTS}
        results: dict[str, Any] = {"machine": machine(), "versions": versions()}
        results |= {"at_percent": list(AT_PERCENT), "allocated_percent": lists}
        save_figures(RESULTS, results)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
