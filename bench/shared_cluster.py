"""`python -m bench.shared_cluster`: what training gains on nodes that also serve requests; its page.

The built-in scenario shared-cluster with several ways of sharing; `muxflow` also with the pairs that Gavel
measured, where ../shared/data has them. Saves bench/shared-cluster.json; `--docs` only writes the page,
`--seeds N` measures fewer seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.golden.cases import DATA
from bench.machine import machine, versions
from bench.page import markdown_table
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.kinds import load_any
from trimtab.experiments.training.training_scenario import PairsFile
from trimtab.metrics import mean_ci95

RESULTS, PAGE = ROOT / "bench" / "shared-cluster.json", ROOT / "docs" / "benchmarks" / "shared-cluster.md"
SEEDS = 5
BUSIER_FRAC = 0.9  # of a GPU that a request keeps busy, beside the scenario's 0.6
PAIRS = DATA / "gavel_throughputs" / "simulation_throughputs.json.gz"
PAIRS_GPU = "v100"
JOBS_AS = {"vision": "ResNet-50 (batch size 64)", "language": "Transformer (batch size 64)"}
REQUESTS_AS = ("ResNet-18 (batch size 16)", "LM (batch size 5)", "ResNet-50 (batch size 64)")
WAYS = (
    "static(nodes=8)",
    "static(nodes=9)",
    "static(nodes=10)",
    "lending(reserve_frac=0.5)",
    "lending",
    "lending(reserve_frac=0.1)",
    "lending(reserve_frac=0)",
    "lending(reserve_frac=0,spare=0)",
    "lending(reserve_frac=0,spare=0,rounds=1)",
    "muxflow(limit=1.05)",
    "muxflow(limit=1.1)",
    "muxflow",
)
KEPT = ("training_gpu_hours", "gained_gpu_hours", "one_gpu_hours", "slo_attained_frac", "completion_p99_s")

HEAD = """<!-- Made by `python -m bench.shared_cluster` from what it measured; `--docs` writes it anew. -->

# Requests and training on one cluster

The built-in scenario `shared-cluster`: twelve nodes of four GPUs, requests whose rate rises and falls
six-fold in three hours, more training jobs than fit. Objective of requests: 90 s; target: 99 % of them. All
ways of sharing meet the same requests and jobs. *Gained* compares with the static partition of the fewest
serving nodes that attains as much as the way of sharing does, or the target, on the same seed; so its
interval is of paired differences.
"""
MEANING = """GPU hours are of progress: restarts do not count, and a guest's count as much as it does beside
requests. *One GPU* is the same work in hours of one GPU, which takes the losses of wide jobs out. Rows of one
way from top to bottom lend more: the curve of attainment against GPU hours. The objective is so wide that
lending costs hardly any attainment here, only the 99th percentile; a partition of too few nodes does cost it.
Shares of GPUs fall with the load, so that few pairs of `muxflow` exceed a limit above 1.1.
"""
PAIRS_TEXT = f"""## Measured pairs

`muxflow` with the pairs that Gavel's authors measured on {PAIRS_GPU.upper()}, in place of the formula
(`jobs.generate.pairs` of a scenario).
Jobs are {" and ".join(f"`{name}` = {of}" for name, of in JOBS_AS.items())}.
All of those pairs are training jobs; requests beside jobs were not measured. Requests stand for one of three
jobs, chosen before the run: one leaves half of a GPU idle, one a fifth, one fills it. How a
pair's speeds change with load and share stays a formula. Differences are paired by seed.
"""


def measure(seeds: int) -> dict[str, Any]:
    """Way of sharing → metric → values of the seeds; and the GPU hours that requests leave."""
    found = compare("shared-cluster", list(WAYS), seeds, sweep=(), jobs=1)
    ways = {
        way: {name: [run.metrics[name] for run in result.runs] for name in KEPT}
        for way, result in zip(WAYS, found.results, strict=True)
    }
    idle = [run.metrics["idle_gpu_hours"] for run in found.results[0].runs]
    return {"ways": ways, "idle_gpu_hours": idle}


def measure_busier(seeds: int) -> dict[str, list[float]]:
    """Metric → values of the seeds, of guests beside requests that keep more of a GPU busy."""
    scenario = load_any("shared-cluster").replaced(request_busy_frac=BUSIER_FRAC)
    runs = compare(scenario, ["muxflow"], seeds, sweep=(), jobs=1).results[0].runs
    return {name: [run.metrics[name] for run in runs] for name in KEPT}


def measure_pairs(seeds: int) -> dict[str, dict[str, list[float]]]:
    """Job type that requests are → metric → values of the seeds, of guests by measured pairs."""
    scenario = load_any("shared-cluster")
    generate = scenario.jobs.generate
    models = {
        name: model.model_copy(update={"measured_as": JOBS_AS[name]})
        for name, model in generate.models.items()
    }
    pairs = PairsFile(file=PAIRS, gpu=PAIRS_GPU)
    generate = generate.model_copy(update={"models": models, "pairs": pairs})
    jobs = scenario.jobs.model_copy(update={"generate": generate})
    found = {}
    for job_type in REQUESTS_AS:
        measured = scenario.replaced(jobs=jobs, request_measured_as=job_type)
        runs = compare(measured, ["muxflow"], seeds, sweep=(), jobs=1).results[0].runs
        found[job_type] = {name: [run.metrics[name] for run in runs] for name in KEPT}
    return found


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    head = ["way of sharing", "training, GPU h", "gained, GPU h", "one GPU, h", "attained, %", "p99, s"]
    rows = [_row(way, values) for way, values in results["ways"].items()]
    idle = results["idle_gpu_hours"]
    busier = results["muxflow_busier"]
    p99 = _cell(busier["completion_p99_s"], 1)
    bound = f"""Requests leave {_cell(idle, 1)} GPU hours where all nodes serve: jobs that have their GPUs
alone cannot have more. Guests can, because a request keeps 0.6 of its GPU busy. Guests' speeds, and how they
slow requests, follow from a formula in this table. With requests that keep {BUSIER_FRAC} busy `muxflow` gains
{_cell(busier["gained_gpu_hours"], 1)} GPU hours; the 99th percentile is then {p99} s.
"""
    seeds = f"Mean ± 95 % interval over {len(idle)} seeds:\n"
    return "\n".join([HEAD, seeds, markdown_table(head, rows), MEANING, bound, _pairs_section(results)])


def _pairs_section(results: Mapping[str, Any]) -> str:
    """`muxflow` by measured pairs, beside the formula."""
    head = [
        "speeds of pairs",
        "training, GPU h",
        "gained, GPU h",
        "− by the formula",
        "attained, %",
        "p99, s",
    ]
    formula = results["ways"]["muxflow"]
    rows = [_pair_row("the formula", formula, formula)]
    measured = results.get("muxflow_measured", {})
    rows += [_pair_row(f"measured, requests as {of}", values, formula) for of, values in measured.items()]
    return "\n".join([PAIRS_TEXT, markdown_table(head, rows)])


def _pair_row(name: str, values: Mapping[str, list[float]], formula: Mapping[str, list[float]]) -> list[str]:
    gained = values["gained_gpu_hours"]
    less = [a - b for a, b in zip(gained, formula["gained_gpu_hours"], strict=True)]
    percent = [100 * value for value in values["slo_attained_frac"]]
    p99 = _cell(values["completion_p99_s"], 1)
    apart = "" if values is formula else _cell(less, 1)
    return [name, _cell(values["training_gpu_hours"], 1), _cell(gained, 1), apart, _cell(percent, 2), p99]


def _row(way: str, values: Mapping[str, list[float]]) -> list[str]:
    hours = [_cell(values[name], 1) for name in KEPT[:3]]
    percent = [100 * value for value in values["slo_attained_frac"]]
    return [f"`{way}`", *hours, _cell(percent, 2), _cell(values["completion_p99_s"], 1)]


def _cell(values: list[float], digits: int) -> str:
    mean, ci95 = mean_ci95(values)
    return f"{mean:.{digits}f}" + (f" ± {ci95:.{digits}f}" if ci95 is not None else "")


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.shared_cluster", __doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    if not given.docs:
        results: dict[str, Any] = {"machine": machine(), "versions": versions()} | measure(given.seeds)
        results["muxflow_busier"] = measure_busier(given.seeds)
        if PAIRS.exists():
            results["muxflow_measured"] = measure_pairs(given.seeds)
        save_figures(RESULTS, results)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
