"""Training jobs on GPUs, as a kind of work that policies are compared on."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from trimtab.domain.allocator import Allocator
from trimtab.errors import ScenarioError
from trimtab.experiments.compare.kind import (
    Curves,
    FigureChoice,
    Kind,
    LowerBound,
    Notice,
    SeriesText,
)
from trimtab.experiments.provenance import file_stamp
from trimtab.experiments.scenario.scenario_parts import Parts, ReadingBar
from trimtab.experiments.scenario.spec.scenario import SweepSpec
from trimtab.experiments.scenario.spec.shared_types import set_time_notes
from trimtab.experiments.training.training_bounds import (
    curves_of_jobs,
    edges_of,
    job_table,
    mean_completion_bound_s,
    most_deadlines,
)
from trimtab.experiments.training.training_environment import node_faults
from trimtab.experiments.training.training_inputs import TrainingInputs, build_training, gpus_by_type
from trimtab.experiments.training.training_scenario import TRAINING_JOBS, TrainingScenario, resolve_training
from trimtab.metrics import Metric
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
    allocator_class,
    allocator_names,
    canonical_allocator,
    find_allocator,
    refuse_unmet,
)
from trimtab.training.compilation import compile_planning
from trimtab.training.job_metrics import JOB_METRICS, job_metrics, queue_figures
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import TrainingRun, begun
from trimtab.validation.problems import checked

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Training(Kind[TrainingScenario, TrainingInputs, JobRecords]):
    """Jobs that train on shared GPUs, in the loop.

    One run gives no intervals: its jobs depend on each other too long. How long allocators take is a metric.
    """

    items: ClassVar[str] = "jobs"
    title: ClassVar[str] = "training jobs"
    untaken: ClassVar[Mapping[str, str]] = {
        "rows": "--limit or --load",
        "columns": "columns named as in a known format: job_id, submit_s, gpus and duration_s, for one",
        "what_if": "requests",
    }
    metrics: ClassVar[Mapping[str, Metric]] = JOB_METRICS
    objective: ClassVar[str] = "completion_mean_s"
    sweep_up_to: ClassVar[int] = 1_000
    objective_title: ClassVar[str] = "mean job completion"
    figures: ClassVar[FigureChoice] = FigureChoice(
        stats=("completion_mean_s", "deadline_satisfied_frac", "rho_max", "makespan_s"),
        over_load={
            "completion_mean_s": "How mean job completion grows with the load.",
            "deadline_satisfied_frac": "Share of deadlines met; higher is better.",
        },
        bars={
            "deadline_satisfied_frac": "Share of deadlines met; rejected jobs count as missed.",
            "utilisation_allocated_mean_frac": "How much of the cluster jobs held.",
            "shared_frac": "How much of the GPU time two jobs shared.",
            "service_over_limit_frac": "How much of their time online services were too slow.",
            "restarts_mean": "How often a job's GPUs changed.",
            "fragmentation_mean_frac": "GPUs that were free while jobs waited.",
            "rho_max": "The worst treated job: its completion against its fair share of the cluster.",
            "rejected_frac": "Share of jobs turned away.",
        },
        bars_title="Deadlines, use, restarts and fairness",
        trade_off=("rho_max", "completion_mean_s"),
        rows_title="GPUs of each job over time",
        rows_text="One row per job, by submission; the colour is the number of GPUs held. Where there are "
        "many, neighbours share a row, which has the most GPUs of one of them.",
        series={
            "allocated_frac": SeriesText(
                "Allocation over time",
                "GPUs held",
                "Share of the GPUs that jobs held; gaps while jobs wait are fragmentation or idleness.",
                is_frac=True,
            ),
            "goodput_frac": SeriesText(
                "Goodput over time",
                "work done",
                "Work done per GPU second of the cluster, in GPU seconds of each job alone with what it "
                "asked for. Restarts and inefficient numbers of GPUs lower it; efficient ones raise it.",
                is_frac=True,
            ),
        },
        trade_off_text="Further left is fairer to the worst treated job, further down is faster on average.",
    )

    def read(
        self,
        source: TrainingScenario | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> TrainingScenario:
        """The scenario, with every argument that is not None replaced. Raises UsageError."""
        scenario = TRAINING_JOBS.load(source)
        scenario.require_jobs()
        _refuse_unknown_rules(scenario)
        return scenario.with_overrides(load=load, policies=policies, seeds=seeds)

    def with_parts(self, base: TrainingScenario | None, parts: Parts) -> TrainingScenario:
        """The scenario, else the trace on the cluster, with these parts. Raises UsageError."""
        return resolve_training(base, parts)

    def read_ahead(self, settings: TrainingScenario, bar: ReadingBar) -> list[str]:
        """Nothing: traces of jobs are small."""
        return []

    def amounts(self, inputs: TrainingInputs) -> dict[str, int]:
        """Nodes, GPUs and jobs."""
        gpus = int(inputs.nodes["gpus"].sum())
        return {"nodes": len(inputs.nodes), "GPUs": gpus, "jobs": len(inputs)}

    def size(self, settings: TrainingScenario) -> int:
        """Jobs of a run."""
        generate = settings.jobs.generate
        return generate.jobs if generate is not None else len(build_training(settings, 0))

    def shortened(self, settings: TrainingScenario, items: int) -> TrainingScenario:
        """The first jobs of the trace, or fewer generated ones."""
        generate = settings.jobs.generate
        if generate is None:
            return settings.with_overrides(limit=items)
        jobs = settings.jobs.model_copy(update={"generate": generate.model_copy(update={"jobs": items})})
        return settings.model_copy(update={"jobs": jobs})

    def own_load(self, settings: TrainingScenario) -> float | None:
        """Load of the scenario itself."""
        return settings.jobs.load

    def sweep_loads(self, settings: TrainingScenario, wanted: Sequence[float] | None) -> tuple[float, ...]:
        """The given loads, else the scenario's. Raises ScenarioError."""
        if wanted is None:
            return settings.sweep.loads
        return checked(lambda: SweepSpec(loads=tuple(wanted)), SweepSpec, "sweep", ScenarioError).loads

    def default_policies(self, settings: TrainingScenario) -> tuple[str, ...]:
        """All allocators whose needs the jobs' model meets; with online services, those that know them."""
        inputs = build_training(settings, settings.seed_list()[0])
        provided, hosts = inputs.model.provides, inputs.workload.services is not None
        usable = (name for name in allocator_names() if allocator_class(name).needs <= provided)
        return tuple(name for name in usable if allocator_class(name).hosts_services or not hosts)

    def stamp(self, settings: TrainingScenario) -> tuple[int, int] | None:
        """Size and time of change of the trace, if there is one."""
        trace = settings.jobs.trace
        return None if trace is None else file_stamp(trace.file)

    def find(self, policy: AllocatorSpec) -> tuple[Allocator]:
        """The allocator."""
        return (find_allocator(policy),)

    def canonical(self, policy: AllocatorSpec) -> str:
        """The shortest name of an allocator."""
        return canonical_allocator(policy)

    def prepare(
        self,
        settings: TrainingScenario,
        policies: Sequence[AllocatorSpec],
        mode: str,
        items: int,
        notice: Notice | None,
    ) -> str:
        """Compile what allocators plan with, for allocators whose needs are met."""
        inputs = build_training(settings, settings.seed_list()[0])
        for policy in policies:
            allocator = find_allocator(policy)
            _refuse_unmet(allocator, inputs.under_rules_of(allocator.name))
        compile_planning(notice)
        return mode

    def build(self, settings: TrainingScenario, seed: int, load: float | None) -> TrainingInputs:
        """Cluster and jobs of a seed."""
        return build_training(settings, seed, load)

    def begun(self, inputs: TrainingInputs, policy: AllocatorSpec) -> TrainingRun:
        """A run of one allocator, before its first decision; the inputs are those under its rules."""
        allocator = find_allocator(policy)
        rules = inputs.scenario.rules
        _refuse_unmet(allocator, inputs)
        node_events, failing_nodes = node_faults(inputs.scenario, inputs.seed, inputs.stretch)
        return begun(
            policy,
            inputs.workload,
            nodes=inputs.nodes,
            type_names=inputs.type_names,
            truth=inputs.model.truth(),
            clock=rules.clock or inputs.model.clock(allocator.clock),
            round_s=rules.round_s,
            placement=rules.placement,
            restart=rules.restart,
            node_events=node_events,
            failing_nodes=failing_nodes,
            checkpoint_s=rules.checkpoint_s,
            quota_gpus=inputs.quota_gpus,
            queues=None if inputs.queues is None else inputs.queues.under(inputs.scenario.queue_scheme),
            declared=inputs.queues,
            places=inputs.places,
            strict_priority=rules.priorities == "strict",
        )

    def run(self, inputs: TrainingInputs, policy: AllocatorSpec, mode: str) -> JobRecords:
        """Run one allocator."""
        inputs = inputs.under_rules_of(find_allocator(policy).name)
        records = self.begun(inputs, policy).to_the_end()
        fair_gpus = records.total_gpus / np.maximum(records.mean_active, 1.0)
        isolated_s = inputs.model.alone_s(inputs.workload, fair_gpus)
        return replace(records, usd_per_gpu_hour=inputs.usd_per_gpu_hour, isolated_s=isolated_s)

    def measure(self, records: JobRecords) -> dict[str, float]:
        """All metrics of a run."""
        return job_metrics(records)

    def bound(self, inputs: TrainingInputs) -> LowerBound[JobRecords] | None:
        """Lower bound on mean completion."""
        type_gpus = np.array(list(gpus_by_type(inputs.nodes, inputs.type_names).values()), np.int64)
        value = mean_completion_bound_s(inputs.workload, inputs.model, type_gpus)
        if math.isnan(value):
            return None

        def distance(records: JobRecords, metrics: Mapping[str, float]) -> float:
            holds = records.finished.all() and not records.shared_gpu_s.any()
            return metrics["completion_mean_s"] / value - 1.0 if holds else math.nan

        return LowerBound(
            value,
            "all GPUs as one machine, each as fast as its type, shortest remaining service first; or "
            "every job alone at its fastest",
            (
                "a job uses its most efficient number of GPUs",
                "no restarts",
                "all jobs finish",
                "no two jobs share GPUs",
            ),
            distance,
        )

    def curves(self, inputs: TrainingInputs, records: JobRecords) -> Curves:
        """Curves on a time axis that all policies share."""
        return curves_of_jobs(records, edges_of(records, inputs.offered_load))

    def table(self, inputs: TrainingInputs, records: JobRecords) -> pl.DataFrame:
        """One row per job."""
        return job_table(records)

    def remarks(self, inputs: TrainingInputs, policy: AllocatorSpec, records: JobRecords) -> dict[str, Any]:
        """How many deadlines could be met, and notes on the inputs."""
        gpus = int(inputs.nodes["gpus"].sum())
        return {
            "most_deadlines": 0
            if inputs.workload.services is not None
            else most_deadlines(inputs.workload, inputs.model, gpus),
            "n_jobs": len(inputs.workload),
            "inputs": inputs.notes,
            "queues": "; ".join(starmap(_queue_text, queue_figures(records).items())),
        }

    def seedless(
        self, settings: TrainingScenario, policies: Sequence[AllocatorSpec], seed: int
    ) -> frozenset[str]:
        """All allocators on a trace of which nothing is drawn."""
        jobs = settings.jobs
        drawn = jobs.trace is None or jobs.declared_cv + jobs.not_preemptible_frac + jobs.pinned_frac > 0
        drawn |= any(fault.mtbf_s is not None or fault.share_frac < 1 for fault in settings.faults)
        return frozenset() if drawn else frozenset(map(canonical_allocator, policies))

    def served_frac(self, settings: TrainingScenario, metrics: Mapping[str, float]) -> float:
        """Share of jobs that finished; one that an allocator may reject has a rank by its other merits."""
        return metrics["finished_frac"] + metrics["rejected_frac"]

    def notes(self, settings: TrainingScenario, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        """Notes for readers of a comparison."""
        found = [run.remarks for result in results for run in result.runs][:1]
        notes: list[str] = []
        for remark in found:
            notes += remark["inputs"]
            if remark["most_deadlines"]:
                share = f"{remark['most_deadlines']:,} of {remark['n_jobs']:,}"
                notes.append(f"at most {share} jobs can meet their deadlines while none share GPUs")
        told = [(result, result.runs[0].remarks["queues"]) for result in results if result.runs]
        notes += [f"queues under {result.policy}, first seed: {text}" for result, text in told if text]
        if any(r.metrics["rejected_frac"].mean > 0 for r in results):
            notes.append("policies that reject jobs have completion times of the others only")
        return notes + (set_time_notes({"faults": settings.faults}) if is_swept else [])


def _queue_text(path: str, figures: Mapping[str, float]) -> str:
    """What a queue got in a run, in words."""
    return (
        f"{path} {figures['jobs']:.0f} jobs, JCT {figures['completion_mean_s']:,.0f} s "
        f"(p99 {figures['completion_p99_s']:,.0f}), wait {figures['queueing_mean_s']:,.0f} s, "
        f"{figures['held_gpus']:.3g} GPUs held, {figures['guaranteed_gpus']:.3g} guaranteed, "
        f"{figures['preempted']:.0f} preempted"
    )


def _refuse_unmet(allocator: Allocator, inputs: TrainingInputs) -> None:
    refuse_unmet(allocator, inputs.model.provides, "these profiles", "profiles that have it")


def _name_of(policy: str) -> str:
    """The allocator's name; an object's stands for itself, since no catalogue has it."""
    return find_allocator(policy).name if ":" in policy else policy.partition("(")[0].strip()


def _refuse_unknown_rules(scenario: TrainingScenario) -> None:
    known = {*allocator_names(), *map(_name_of, scenario.policies)}
    for name in scenario.rules_of:
        if name not in known:
            expected = f"name of an allocator, without parameters: {', '.join(sorted(known))}"
            raise ScenarioError(
                "rules of no such allocator",
                file=scenario.known_as,
                field="rules_of",
                value=name,
                expected=expected,
            )


TRAINING_KIND: Final = Training()
