"""The figures that advice on training jobs rests on: allocators compared, what binds, one node more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import Flags
from trimtab.experiments.compare import Comparison, run_comparison
from trimtab.experiments.compare.comparison import OneMore
from trimtab.experiments.training.training_inputs import TrainingInputs, build_training, cluster_nodes
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TrainingScenario
from trimtab.metrics import paired_difference_ci95
from trimtab.training.allocator_catalogue import allocator_class, find_allocator
from trimtab.training.job_records import JobRecords

ADVISED: Final = ("weighted-goodput", "srtf", "tiresias", "edf", "fifo(backfill=true)", "fifo")
_WIDTHS: Final = (1, 2, 5, 9)  # GPUs asked for from which a group of jobs begins
_WINDOWS: Final = 12


@dataclass(frozen=True, slots=True)
class WidthLoad:
    """Jobs that ask for about as many GPUs: their share of the GPU time held, and how long they waited."""

    name: str
    gpu_time_frac: float
    waited_mean_s: float


@dataclass(frozen=True, slots=True)
class Binding:
    """What holds jobs up under the best allocator, on the first seed."""

    offered_load: float
    waited_mean_s: float  # without GPUs, of jobs that finished
    waited_frac: float  # of their completion
    waiting_time_frac: float  # of the run: some job waited
    free_frac: float  # of the GPUs, meanwhile; nan where none waited
    restart_frac: float  # of the GPU time held
    widths: tuple[WidthLoad, ...]
    peak_frac: float  # GPU seconds submitted in the busiest part over those of the mean part; nan = unknown
    peak_s: tuple[float, float]  # begin and end of that part


@dataclass(frozen=True, slots=True)
class TrainingAdvice:
    """All figures of an advice; `best` is the allocator that they are of."""

    comparison: Comparison
    best: str
    binding: Binding
    one_more: tuple[OneMore, ...]
    is_told_work: bool  # the best one reads the work of jobs, and was told it exactly
    has_profiles: bool


def training_advice(
    scenario: TrainingScenario, policies: Sequence[str] | None = None, *, jobs: int | None = None
) -> TrainingAdvice:
    """Compare allocators, then run the best one with one node more of each type. Raises as `compare`."""
    inputs = build_training(scenario, scenario.seed_list()[0])
    chosen = tuple(policies or scenario.policies or _usable(inputs))
    comparison = run_comparison(TRAINING_KIND, scenario, chosen, sweep=(), jobs=jobs)
    best = comparison.ranked()[0].policy
    allocator = find_allocator(best)
    records = TRAINING_KIND.run(inputs, best, "")
    types = dict.fromkeys(group.type for group in scenario.cluster.nodes)
    reads_work = bool(allocator.needs & {JobNeed.WORK_LEFT, JobNeed.ORACLE})
    return TrainingAdvice(
        comparison=comparison,
        best=best,
        binding=_binding(inputs, records),
        one_more=tuple(_one_more(scenario, comparison, best, name) for name in types),
        is_told_work=reads_work and scenario.jobs.declared_cv == 0.0,
        has_profiles=scenario.jobs.generate is not None
        or (scenario.jobs.trace is not None and scenario.jobs.trace.profiles is not None),
    )


def _usable(inputs: TrainingInputs) -> list[str]:
    """The advised allocators whose needs are met; those for deadlines where jobs have some."""
    timed = bool(np.isfinite(inputs.workload.deadline_s).any())
    known = {name: allocator_class(name.partition("(")[0]).needs for name in ADVISED}
    return [
        name
        for name, needs in known.items()
        if needs <= inputs.model.provides and (timed or JobNeed.DEADLINES not in needs)
    ]


def _one_more(scenario: TrainingScenario, comparison: Comparison, policy: str, name: str) -> OneMore:
    """Each seed's jobs again on the larger cluster: a load in the scenario must not add jobs to it."""
    groups = list(scenario.cluster.nodes)
    at = next(i for i, group in enumerate(groups) if group.type == name)
    groups[at] = groups[at].model_copy(update={"count": groups[at].count + 1})
    nodes = cluster_nodes(scenario.cluster.model_copy(update={"nodes": tuple(groups)}))[0]
    result = next(r for r in comparison.results if r.policy == policy)
    before = [run.metrics["completion_mean_s"] for run in result.runs]
    after = []
    for run in result.runs:
        inputs = build_training(scenario, run.seed).under_rules_of(find_allocator(policy).name)
        records = TRAINING_KIND.run(replace(inputs, nodes=nodes), policy, "")
        after.append(TRAINING_KIND.measure(records)["completion_mean_s"])
    price = scenario.cluster.types[name].usd_per_hour
    return OneMore(name, price, paired_difference_ci95(after, before))


def _binding(inputs: TrainingInputs, records: JobRecords) -> Binding:
    workload, done = records.workload, records.finished & records.is_job
    took_s = (records.finish_s - workload.submit_s)[done]
    waited_s = np.maximum(took_s - records.run_s[done], 0.0)
    each_s = np.diff(np.append(records.decided_s, records.end_s))
    waits = records.waiting > 0
    waiting_s = float(each_s[waits].sum())
    free_gpu_s = float(((records.total_gpus - records.used_gpus) * each_s)[waits].sum())
    peak_frac, peak_s = _peak(inputs)
    measured = TRAINING_KIND.measure(records)
    return Binding(
        offered_load=inputs.offered_load,
        waited_mean_s=float(waited_s.mean()) if len(waited_s) else np.nan,
        waited_frac=float(waited_s.sum() / took_s.sum()) if took_s.sum() > 0 else np.nan,
        waiting_time_frac=waiting_s / float(each_s.sum()) if each_s.sum() > 0 else np.nan,
        free_frac=free_gpu_s / (records.total_gpus * waiting_s) if waiting_s > 0 else np.nan,
        restart_frac=measured["restart_frac"],
        widths=tuple(_widths(records, done)),
        peak_frac=peak_frac,
        peak_s=peak_s,
    )


def _widths(records: JobRecords, done: Flags) -> list[WidthLoad]:
    asked = records.workload.gpus_requested
    waited_s = records.finish_s - records.workload.submit_s - records.run_s
    group = np.searchsorted(_WIDTHS, asked, side="right")
    held = float(records.gpu_s[done].sum())
    found = []
    for k in np.unique(group[done]):
        mine = done & (group == k)
        least, most = int(asked[mine].min()), int(asked[mine].max())
        name = f"{least} GPU{'s' if most > 1 else ''}" if least == most else f"{least} to {most} GPUs"
        share = float(records.gpu_s[mine].sum()) / held if held > 0 else np.nan
        found.append(WidthLoad(name, share, float(waited_s[mine].mean())))
    return found


def _peak(inputs: TrainingInputs) -> tuple[float, tuple[float, float]]:
    """The part of the submissions with the most GPU seconds, over the mean part."""
    workload = inputs.workload
    asked_gpu_s = np.nan_to_num(workload.duration_s * workload.gpus_requested)
    first_s, last_s = float(workload.submit_s[0]), float(workload.submit_s[-1])
    if len(workload) < 10 * _WINDOWS or not last_s > first_s or not asked_gpu_s.any():
        return np.nan, (np.nan, np.nan)
    of_part, edges_s = np.histogram(workload.submit_s, _WINDOWS, weights=asked_gpu_s)
    k = int(of_part.argmax())
    return float(of_part[k] / of_part.mean()), (float(edges_s[k]), float(edges_s[k + 1]))
