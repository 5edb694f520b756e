"""`python -m bench.table8 [CASE…]`: four claims of a survey about allocators, beside what is measured.

Runs the cases that are named, else those that were not run yet, and saves each at once in bench/table8.json.
Reads ../shared/data beside the checkout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import yaml

from bench.golden.elasticflow import A100, cluster_trace
from bench.golden.pollux import ARTIFACT, pollux_run, read_workload
from bench.golden.trace_runs import Rules, run_trace
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from bench.table8_page import DEADLINES, GPUS, LISTS, MLFS, MUXFLOW, MUXFLOW_LOAD, PAIRS, POLLUX, SEEDS, page
from trimtab.experiments.training.training_inputs import TrainingInputs, build_training
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TRAINING_JOBS
from trimtab.metrics.statistics import mean
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import JobRecords
from trimtab.training.truths.replay_truth import ReplayOptions
from trimtab.training.workloads import WorkloadOptions

RESULTS, PAGE = ROOT / "bench" / "table8.json", ROOT / "docs" / "benchmarks" / "table8.md"
BUSY_FRAC = 0.6  # of its GPU that a service keeps busy at full load
LOADS = (0.2, 0.9)  # least and most of a service's day
KEPT = (
    "completion_mean_s",
    "completion_p99_s",
    "deadline_satisfied_frac",
    "deadline_kept_frac",
    "restarts_mean",
)


def kept(run: JobRecords) -> dict[str, float]:
    found = job_metrics(run)
    return {name: found[name] for name in KEPT}


def on_cluster_04(allocator: str, gpus: int) -> dict[str, float]:
    work = WorkloadOptions(work_from="duration", limits="measured", gpu="A100")
    rules = Rules(restart="elasticflow", work=work)
    return kept(run_trace(allocator, cluster_trace("04"), A100, [8] * (gpus // 8), rules))


def on_pollux(allocator: str, number: int) -> dict[str, float]:
    options = ARTIFACT if allocator.startswith("optimus") else ReplayOptions()
    return kept(pollux_run(*read_workload(number, options), allocator))


@cache
def generated(nodes: int, gpus: int, jobs: int, load: float, services: int, seed: int) -> TrainingInputs:
    about = yaml.safe_load(TRAINING_JOBS.builtin("elastic-training"))
    about["cluster"]["types"]["gpu-node"]["accelerators"] = gpus
    about["cluster"]["nodes"][0]["count"] = nodes
    about["jobs"]["load"] = load
    about["jobs"]["generate"]["jobs"] = jobs
    if services:
        about["jobs"]["generate"]["gpus"] = {1: 1.0}
        about["jobs"]["generate"]["services"] = {
            "count": services, "busy_frac": BUSY_FRAC, "load_least": LOADS[0], "load_most": LOADS[1]
        }  # fmt: skip
    return build_training(TRAINING_JOBS.parse(about), seed)


def on_generated(allocator: str, seed: int) -> dict[str, float]:
    return kept(TRAINING_KIND.run(generated(12, 8, 2000, 1.0, 0, seed), allocator, "compiled"))


def on_services(allocator: str, seed: int) -> dict[str, float]:
    """With the share of the GPUs' time that is busy from the first submission to the last."""
    inputs = generated(125, 8, 7300, MUXFLOW_LOAD, 1000, seed)
    run = TRAINING_KIND.run(inputs, allocator, "compiled")
    workload, is_job = run.workload, run.is_job
    end_s = float(workload.submit_s.max())
    models = inputs.scenario.jobs.generate.models
    busy = np.array([models[name].busy_frac if name in models else 0.0 for name in workload.model_names])
    span_s = run.finish_s - run.start_s
    in_time = np.clip((end_s - run.start_s) / np.where(span_s > 0, span_s, 1.0), 0.0, 1.0)  # even progress
    done_s = np.nansum((in_time * workload.duration_s * busy[workload.model_idx])[is_job])
    own = BUSY_FRAC * mean(np.array(LOADS))
    found = job_metrics(run)
    return kept(run) | {
        "busy_frac": float(own + done_s / (run.total_gpus * end_s)),
        "service_over_limit_frac": found["service_over_limit_frac"],
        "finished_frac": found["finished_frac"],
    }


def cases() -> dict[str, Callable[[], dict[str, float]]]:
    found: dict[str, Callable[[], dict[str, float]]] = {}
    for study, run, parts in (
        (POLLUX, on_pollux, LISTS),
        (MLFS, on_generated, SEEDS),
        (MUXFLOW, on_services, SEEDS[:1]),
        (DEADLINES, on_cluster_04, GPUS),
    ):
        found |= {
            f"{study}: {name}, {part}": partial(run, name, part) for part in parts for name in PAIRS[study]
        }
    return found


def main() -> None:
    parser = page_parser("bench.table8", __doc__)
    parser.add_argument("case", nargs="*", help="such as 'mlfs: mlfs, 0'")
    chosen = parser.parse_args()
    saved = saved_figures(RESULTS) if RESULTS.exists() else {}
    for name, run in {} if chosen.docs else cases().items():
        if name in chosen.case or (not chosen.case and name not in saved):
            begun_s = time.process_time()
            saved[name] = run() | {"cpu_s": round(time.process_time() - begun_s, 1)}
            save_figures(RESULTS, saved)
            print(name, saved[name], flush=True)
    write_page(PAGE, page(saved))


if __name__ == "__main__":
    main()
