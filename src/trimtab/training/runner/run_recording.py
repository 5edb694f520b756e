"""The recording of a run: a training trace with measured speeds, and the simulator's run of it.

The folder has `jobs.csv`, `profiles/`, `cluster.yaml` and `scenario.yaml`, which joins them with the clock,
the placement and the mean restart of the run: `trimtab compare scenario.yaml` compares policies on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import yaml

from trimtab.domain.training_jobs import Floats, Ints, Workload
from trimtab.traces.scaling_profiles import Curves, scaling_table
from trimtab.traces.write import profile_name, write_jobs, write_profiles
from trimtab.training.job_metrics import job_metrics, queue_figures
from trimtab.training.job_records import JobRecords, Outcome
from trimtab.training.restart_costs import FlatRestart
from trimtab.training.runner.job_list import JobSpec, NodeSpec, workload_of_jobs
from trimtab.training.runner.live_decisions import ONE_TYPE, LiveDecisions
from trimtab.training.runner.live_job import job_folder, model_link
from trimtab.training.runner.run_ledger import KnownRun
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth

RECORDING: Final = "recording"  # folder of a run
ROUNDS: Final = 10  # that a mean job takes at least, alone
PUBLISHED_ROUND_S: Final = 120.0  # the shortest of the catalogue
SCENARIO, SUMMARY = "scenario.yaml", "summary.json"  # files in it
_OUTCOMES = {
    Outcome.FINISHED: "done",
    Outcome.STOPPED: "done",
    Outcome.REJECTED: "failed",
    Outcome.UNFINISHED: "unfinished",
}


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job of a run, as measured and as simulated. nan = not finished."""

    id: str
    state: str
    completion_s: float  # from submission to finish
    simulated_s: float
    predicted_s: float  # at its admission
    run_s: float
    gpu_s: float
    restarts: int
    model: str | None = None  # link to its newest checkpoint; null = there is none


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording of a run."""

    folder: Path
    jobs: tuple[RecordedJob, ...]
    metrics: Mapping[str, float]
    simulated: Mapping[str, float]
    restart_s: float  # mean
    fit_error_frac: float
    forecast_error_frac: float  # mean of |predicted ÷ measured completion − 1|; nan = nothing was predicted
    simulation_error_frac: float  # the same of the simulation, which knows when each job came
    was_stopped: bool  # meanwhile: completions count that time, so errors of predictions are nan
    queues: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # leaf → its figures

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; nan becomes null."""
        return _plain(asdict(self) | {"folder": str(self.folder)})


@dataclass(frozen=True, slots=True)
class Rerun:
    """The jobs of a run by submission, with measured speeds: the simulator's run of them."""

    policy: str
    workload: Workload
    numbers: Ints  # [jobs] of the run, by submission: those that were added have the last numbers
    curves: Curves
    setup: Mapping[str, Any]
    restart_s: float

    def records(self) -> JobRecords:
        """What the run's policy makes of them, simulated. Raises TrimtabError."""
        table, _ = scaling_table(self.curves)
        cost, truth = FlatRestart(self.restart_s), TableTruth(table)
        return run_allocator(self.policy, self.workload, restart=cost, truth=truth, **self.setup)


def rerun_of(run: KnownRun, decisions: LiveDecisions) -> Rerun:
    """The jobs of a run that ended."""
    order = np.argsort(decisions.workload.submit_s, kind="stable")
    jobs = [run.listed.jobs[k] for k in order]
    curves = _curves(jobs, order, decisions)
    workload = _with_durations(workload_of_jobs(jobs, decisions.workload.name), jobs, curves)
    rules, nodes = run.listed.rules, decisions.nodes.copy()
    nodes["up"] = True
    setup = {
        "clock": rules.clock,
        "round_s": rules.round_s,
        "placement": rules.placement,
        "nodes": nodes,
        "places": None if decisions.places is None else decisions.places.of(order),
        "strict_priority": rules.priorities == "strict",
        "type_names": ONE_TYPE,
        "declared": (declared := run.listed.on(run.settings.slots).job_queues(workload.tenant_names)),
        "queues": None if declared is None else declared.under(run.listed.queue_scheme),
    }
    return Rerun(run.settings.policy, workload, order, curves, setup, decisions.restarts.mean_s)


def recorded(
    run: KnownRun,
    decisions: LiveDecisions,
    records: JobRecords,
    folder: Path,
    again: Rerun,
    simulated: JobRecords | None,
    states: Mapping[int, str] = MappingProxyType({}),
) -> Recording:
    """Write the recording of a run.

    Args:
        run: the run.
        decisions: those about it.
        records: its records.
        folder: of the recording.
        again: its jobs for the simulator.
        simulated: the simulator's run of them; None = it took too long, or failed.
        states: of jobs that were cancelled.
    """
    n = len(run.listed.jobs)
    simulated_s = np.full(n, math.nan)
    if simulated is not None:
        simulated_s[again.numbers] = simulated.finish_s
    of_run = _with_durations(decisions.workload, run.listed.jobs, again.curves)
    real = replace(records, workload=of_run)
    told = tuple(
        _job(k, decisions, real, float(simulated_s[k]), states.get(k), folder.parent) for k in range(n)
    )
    compared = () if run.begun else told
    recording = Recording(
        folder,
        told,
        job_metrics(real),
        {} if simulated is None else job_metrics(simulated),
        again.restart_s,
        decisions.speed.fit_error_frac,
        forecast_error_frac((job.predicted_s, job.completion_s) for job in compared),
        forecast_error_frac((job.simulated_s, job.completion_s) for job in compared),
        bool(run.begun),
        queue_figures(real),
    )
    _write(run, again.workload, again.curves, recording)
    return recording


def forecast_error_frac(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of |predicted ÷ measured − 1| over what is known of both; nan = nothing is."""
    errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs if measured > 0.0]
    known = [error for error in errors if not math.isnan(error)]
    return float(np.mean(known)) if known else math.nan


def _job(
    k: int,
    decisions: LiveDecisions,
    real: JobRecords,
    simulated_s: float,
    state: str | None,
    run_folder: Path,
) -> RecordedJob:
    submit_s = real.workload.submit_s[k]
    model = model_link(job_folder(run_folder, real.workload.job_ids[k]))
    return RecordedJob(
        id=real.workload.job_ids[k],
        state=state or _OUTCOMES[Outcome(int(real.outcome[k]))],
        completion_s=float(real.finish_s[k] - submit_s),
        simulated_s=simulated_s - float(submit_s),
        predicted_s=float(decisions.admission_end_s[k] - submit_s),
        run_s=float(real.run_s[k]),
        gpu_s=float(real.gpu_s[k]),
        restarts=int(real.restarts[k]),
        model=str(model) if model.exists() else None,
    )


def _profile(job: JobSpec) -> str:
    """Whose speed a job has: that of its model, or its own where its batches are a range."""
    return profile_name(job.model_name if job.batch_range is None else job.id)


def _curves(jobs: Sequence[JobSpec], numbers: Ints, decisions: LiveDecisions) -> Curves:
    """Samples per second of each profile and batch with each number of GPUs."""
    curves: Curves = {}
    for k, job in zip(numbers.tolist(), jobs, strict=True):
        curve = curves.setdefault((_profile(job), float(job.least_batch)), {})
        curve |= decisions.curve(k, job.limits[1])
    return curves


def _with_durations(workload: Workload, jobs: Sequence[JobSpec], curves: Curves) -> Workload:
    """With its profiles as models, and the seconds that each job takes alone with what it asked for."""
    profiles = [_profile(job) for job in jobs]
    asked = zip(profiles, workload.batch, workload.gpus_requested, strict=True)
    rate: Floats = np.array([curves[name, batch][int(gpus)] for name, batch, gpus in asked])
    names = tuple(sorted(set(profiles)))
    model_idx = np.array([names.index(name) for name in profiles], np.int64)
    return replace(workload, duration_s=workload.work / rate, model_names=names, model_idx=model_idx)


def _write(run: KnownRun, workload: Workload, curves: Curves, recording: Recording) -> None:
    folder = recording.folder.absolute()
    write_profiles(folder / "profiles", curves)
    jobs = {
        "job_id": list(workload.job_ids),
        "submit_s": workload.submit_s,
        "gpus": workload.gpus_requested,
        "gpus_min": workload.gpus_min,
        "gpus_max": workload.gpus_max,
        "duration_s": workload.duration_s,
        "model": [workload.model_names[m] for m in workload.model_idx],
        "batch": workload.batch,
        "work": workload.work,
        "priority": workload.priority,
        "tenant": [workload.tenant_names[t] for t in workload.tenant_idx],
    }
    if np.isfinite(workload.deadline_s).any():
        jobs["deadline_s"] = workload.deadline_s
    if any(map(str, workload.asks)):
        jobs["partition"] = [";".join(ask.partitions) for ask in workload.asks]
        jobs["labels"] = [";".join(ask.labels) for ask in workload.asks]
        jobs["cpus_per_gpu"] = [ask.cpus_per_gpu for ask in workload.asks]
        jobs["memory_gib_per_gpu"] = [ask.memory_gib_per_gpu for ask in workload.asks]
    write_jobs(folder / "jobs.csv", jobs)
    cluster = _cluster(run.listed.on(run.settings.slots).nodes)
    rules = run.listed.rules
    scenario = {
        "kind": "training",
        "name": run.settings.name,
        "description": f"Recording of {run.id}, policy {run.settings.policy}.",
        "cluster": cluster,
        "jobs": {"trace": {"file": str(folder / "jobs.csv"), "profiles": str(folder / "profiles")}},
        "rules": {
            "clock": rules.clock,
            "round_s": rules.round_s or _round_s(workload),
            "placement": rules.placement,
            "priorities": rules.priorities,
            "restart": f"flat(seconds_s={recording.restart_s:.6g})",
        },
        "seeds": 1,
    } | run.listed.model_dump(mode="json", include={"queues", "queue_scheme"})
    for name, content in (("cluster.yaml", cluster), (SCENARIO, scenario)):
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(recording.to_dict()), encoding="utf-8")


def _round_s(workload: Workload) -> float | None:
    """Rounds for jobs so short that the published ones would hardly pass; None = those."""
    round_s = float(workload.duration_s.mean()) / ROUNDS
    return round_s if round_s < PUBLISHED_ROUND_S else None


def _cluster(nodes: Mapping[str, NodeSpec]) -> dict[str, Any]:
    """A type for each kind of node: simulated nodes come type by type, and are called otherwise."""
    types: dict[str, Any] = {}
    groups: dict[NodeSpec, dict[str, Any]] = {}
    for node in nodes.values():
        if node in groups:
            groups[node]["count"] += 1
            continue
        name = f"node-of-{node.slots}"
        name += f"-{len(groups)}" if name in types else ""
        types[name] = {"accelerator": "gpu", "accelerators": node.slots, "memory_gib": 1.0}
        room = {"cpu_cores": node.cpus, "ram_gib": node.memory_gib}
        if kept := {key: value for key, value in room.items() if value is not None}:
            types[name]["resources"] = kept
        said = {"partition": list(node.partition), "labels": list(node.labels)}
        groups[node] = {"type": name, "count": 1} | {key: value for key, value in said.items() if value}
    return {"types": types, "nodes": list(groups.values())}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
