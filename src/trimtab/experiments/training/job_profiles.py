"""Jobs with the profiles of their models. What a path of profiles holds follows from its files.

folder of MODEL.csv                 speed by batch and number of GPUs (ElasticFlow): the table model
folder of APPLICATION/placements*.csv   measured steps and gradient noise (Pollux, Sia): the replay
throughputs.json, or its folder     steps per second by type of GPU (Gavel, Shockwave): whole steps
nothing                             jobs keep the GPUs they asked for, and run as long as recorded
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from trimtab.domain.training_jobs import Ints, Workload
from trimtab.domain.training_profiles import ApplicationProfile, ScalingTable
from trimtab.errors import TraceError
from trimtab.experiments.training.training_scenario import RulesSection
from trimtab.traces.application_profiles import (
    POLLUX_LIMITS,
    SIA_LIMITS,
    SIA_RESTART_S,
    ApplicationLimits,
    read_applications,
)
from trimtab.traces.gavel_jobs import (
    MODES,
    GavelJob,
    Rates,
    gavel_gpu_types,
    read_batch_schedules,
    read_gavel_pairs,
    read_gavel_rates,
    read_noise_patterns,
    read_samples,
)
from trimtab.traces.read_jobs import JobTable, asks_of
from trimtab.traces.scaling_profiles import read_scaling_profiles
from trimtab.training.job_models import JobModel, ReplayJobs, SteppedJobs, TableJobs, restart_seconds
from trimtab.training.performance.estimated_table import estimated_table, with_speeds
from trimtab.training.truths.gavel_workloads import gavel_workload, with_pairs
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth
from trimtab.training.truths.replay_workloads import table_replay_workload
from trimtab.training.truths.stepped_truth import StepRates
from trimtab.training.workloads import WorkloadOptions, fixed_workload, table_workload, with_unprofiled
from trimtab.words import counted

ProfileKind = Literal["table", "replay", "steps"]

SAMPLES_FILE: Final = "samples_per_epoch.json"
SCHEDULES_FILE: Final = "batch_schedules.csv"
_EXPECTED: Final = (
    "a folder of MODEL.csv files, a folder with a folder for each application (placements.csv, "
    "scalability.csv, validation-BATCH.csv), or a throughputs.json by type of GPU"
)
_LIMITS: Final[Mapping[str, Mapping[str, ApplicationLimits]]] = {
    "none": {},
    "pollux": POLLUX_LIMITS,
    "sia": SIA_LIMITS,
}


@dataclass(frozen=True, slots=True, eq=False)
class ProfiledJobs:
    """Jobs, and how fast they are."""

    workload: Workload
    model: JobModel
    notes: tuple[str, ...] = ()


def profile_kind(path: Path) -> ProfileKind:
    """The profiles at a path. Raises TraceError."""
    if path.is_file() and path.name.endswith((".json", ".json.gz")):
        return "steps"
    if path.is_dir():
        if any(path.glob("*/placements*.csv")):
            return "replay"
        if _throughputs_in(path) is not None:
            return "steps"
        if any(path.glob("*.csv")):
            return "table"
    raise TraceError("no profiles", file=str(path), expected=_EXPECTED)


def profiled_jobs(
    jobs: JobTable, profiles: Path | None, rules: RulesSection, types: Mapping[str, int]
) -> ProfiledJobs:
    """The jobs with the speeds of their profiles. `types`: type of GPU → GPUs of the cluster.

    Raises TraceError for what is missing.
    """
    notes = [f"left out: {counted(rows, 'job')} {reason}" for reason, rows in jobs.left_out.items()]
    if profiles is None:
        workload, table = fixed_workload(jobs)
        notes.append(
            "no profiles: jobs keep the GPUs they asked for and run as long as recorded "
            "(--profiles PATH gives speeds)"
        )
        workload = _with_preemption(workload, jobs)
        notes += _equal_types(types)
        return ProfiledJobs(workload, _of_table(table, rules, len(types)), tuple(notes))
    kind = profile_kind(profiles)
    made = {"table": _tabled, "replay": _replayed, "steps": _stepped}[kind](jobs, profiles, rules, types)
    workload = _with_preemption(made.workload, jobs)
    return replace(made, workload=workload, notes=(*notes, *made.notes))


def _equal_types(types: Mapping[str, int]) -> tuple[str, ...]:
    """A note where the speeds of jobs are of no type of GPU, and the cluster has several."""
    if len(types) < 2:
        return ()
    return (f"the speeds of jobs are of no type of GPU: they are the same on {', '.join(sorted(types))}",)


def _with_preemption(workload: Workload, table: JobTable) -> Workload:
    """The jobs with the columns `preemptible`, `pinned` and those of their nodes, where the file has them."""
    changed: dict[str, Any] = {}
    for name, default in (("preemptible", True), ("pinned", False)):
        if name in table.jobs:
            values = table.jobs[name].fill_null(default)
            by_id = dict(zip(table.jobs["job_id"], values, strict=True))
            changed[name] = np.array([by_id[job_id] for job_id in workload.job_ids], np.bool_)
    if asks := dict(zip(table.jobs["job_id"], asks_of(table), strict=False)):
        changed["asks"] = tuple(asks[job_id] for job_id in workload.job_ids)
    return replace(workload, **changed)


def _tabled(jobs: JobTable, profiles: Path, rules: RulesSection, types: Mapping[str, int]) -> ProfiledJobs:
    table, models = read_scaling_profiles(profiles)
    options = WorkloadOptions(rules.work_from, rules.limits, "T4" if "T4" in profiles.name else "A100")
    if rules.unprofiled == "recorded":
        workload, table, count = with_unprofiled(jobs, table, models, options)
        recorded = "with the GPUs and the duration that are recorded"
        notes = (f"without a profile: {counted(count, 'job')}, {recorded}",) if count else ()
    else:
        workload, notes = table_workload(jobs, table, models, options), ()
    made = _of_table(table, rules, len(types))
    if rules.estimate_profiles is not None:
        made = replace(made, estimate=_given_estimate(made, models, rules.estimate_profiles))
    return ProfiledJobs(workload, made, (*notes, *_equal_types(types)))


def _given_estimate(made: TableJobs, models: tuple[str, ...], profiles: Path) -> ScalingTable:
    """What allocators see, with the speeds of these profiles. Raises TraceError where they are of no job."""
    given, given_models = read_scaling_profiles(profiles)
    found = with_speeds(made.estimate or made.table, models, given, given_models)
    if found is None:
        batches = ", ".join(f"{batch:g}" for batch in made.table.batches)
        raise TraceError(
            "speeds of none of the jobs' models and batches",
            file=str(profiles),
            field="rules.estimate_profiles",
            value=", ".join(given.curve_names),
            expected=f"files named {', '.join(f'{model}.csv' for model in models)}; batches {batches}",
        )
    return found


def _of_table(table: ScalingTable, rules: RulesSection, types: int) -> TableJobs:
    """The same speeds on every type."""
    repeated = replace(table, rate_per_s=np.repeat(table.rate_per_s, types, axis=0))
    estimate = None
    if rules.estimate != "table":
        estimate = estimated_table(repeated, rules.estimate, rules.profiled_gpus)
    return TableJobs(repeated, rules.finish_rounding or "exact", estimate)


def _replayed(jobs: JobTable, profiles: Path, rules: RulesSection, types: Mapping[str, int]) -> ProfiledJobs:
    names = _applications(jobs, profiles)
    suffixes = _suffixes(profiles, names, tuple(types))
    limits = rules.replay.constants
    if limits == "published":
        limits = "pollux" if suffixes == ("",) else "sia"
    read = read_applications(profiles, suffixes, _LIMITS[limits], names)
    options = ReplayOptions(
        ring=rules.replay.ring,
        rounding=rules.finish_rounding or "nearest",
        oracle=rules.replay.oracle,
        profiled=rules.replay.profiled,
        interference_frac=rules.replay.interference_frac,
    )
    is_of_no_type = suffixes == ("",)
    if is_of_no_type:
        read = tuple(_on_types(profile, len(types)) for profile in read)
    workload = table_replay_workload(jobs, read, _shares(types))
    workload.columns["restart_s"] = restart_seconds(workload.model_names, SIA_RESTART_S)
    notes = _equal_types(types) if is_of_no_type else ()
    return ProfiledJobs(workload, ReplayJobs(ReplayTruth(read, options), _shares(types)), notes)


def _on_types(profile: ApplicationProfile, types: int) -> ApplicationProfile:
    """The same measurements on each type."""
    return replace(
        profile,
        steps=profile.steps * types,
        min_local=np.repeat(profile.min_local, types),
        max_local=np.repeat(profile.max_local, types),
    )


def _applications(jobs: JobTable, profiles: Path) -> tuple[str, ...]:
    """The applications of the jobs; each has a folder."""
    _need_column(jobs, "model", "names of applications")
    names = tuple(sorted(set(jobs.jobs["model"].fill_null("").to_list())))
    for name in names:
        if not name or not (profiles / name).is_dir():
            row = int((jobs.jobs["model"].fill_null("") == name).arg_max() or 0)
            raise TraceError(
                "a model without a profile",
                file=str(jobs.path),
                field=f"job {jobs.jobs['job_id'][row]}, model",
                value=name,
                expected=f"a folder {profiles / (name or 'MODEL')} with placements.csv, scalability.csv and "
                f"validation-BATCH.csv; there are {', '.join(folder.name for folder in _folders(profiles))}",
            )
    return names


def _folders(profiles: Path) -> list[Path]:
    return [
        path for path in sorted(profiles.iterdir()) if path.is_dir() and any(path.glob("placements*.csv"))
    ]


def _suffixes(profiles: Path, names: tuple[str, ...], type_names: tuple[str, ...]) -> tuple[str, ...]:
    """Suffix of the files of each type of the cluster; ("",) where files are of no type."""
    folder = profiles / names[0]
    known = {path.stem.partition("-")[2] for path in folder.glob("placements*.csv")}
    if known == {""}:
        return ("",)
    return tuple(_same_name(name, known, str(folder)) for name in type_names)


def _same_name(type_name: str, known: set[str], file: str) -> str:
    """The name in a profile of a cluster's type of node, whatever the case."""
    for name in known:
        if name.casefold() == type_name.casefold():
            return name
    raise TraceError(
        "the profile has no such type of GPU",
        file=file,
        field="cluster.types",
        value=type_name,
        expected=f"node types of the cluster file named {', '.join(sorted(known))}",
    )


def _shares(types: Mapping[str, int]) -> list[float]:
    return [gpus / sum(types.values()) for gpus in types.values()]


def _throughputs_in(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*throughputs*.json*"))), None)


def _stepped(jobs: JobTable, profiles: Path, rules: RulesSection, types: Mapping[str, int]) -> ProfiledJobs:
    file = profiles if profiles.is_file() else _throughputs_in(profiles)
    assert file is not None
    known = set(gavel_gpu_types(file))
    names = [_same_name(name, known, str(file)) for name in types]
    by_type = tuple(read_gavel_rates(file, name) for name in names)
    listed = _gavel_jobs(jobs)
    samples, schedules, patterns = _epochs_of(jobs, listed, file.parent)
    _refuse_unmeasured(jobs, listed, by_type, file)
    pairs = [read_gavel_pairs(file, name) for name in names]
    rates = StepRates(by_type, samples)
    if any(pairs):
        rates = with_pairs(rates, pairs)
    workload, truth = gavel_workload(str(jobs.path), listed, schedules, patterns, rates, _shares(types))
    workload = replace(workload, job_ids=tuple(jobs.jobs["job_id"].to_list()))
    return ProfiledJobs(workload, SteppedJobs(rates, truth.jobs, rules.step_period_s))


def _gavel_jobs(table: JobTable) -> list[GavelJob]:
    for name, what in (("model", "names of models"), ("work", "steps")):
        _need_column(table, name, what)
    defaults = {"batch": 0.0, "mode": "static", "weight": 1.0}
    missing = [pl.lit(value).alias(name) for name, value in defaults.items() if name not in table.jobs]
    rows = table.jobs.with_columns(missing).iter_rows(named=True)
    made = [_gavel_job(row) for row in rows]
    for row, job in enumerate(made):
        if job.mode not in MODES:
            raise TraceError(
                "no way in which a batch changes",
                file=str(table.path),
                field=f"job {table.jobs['job_id'][row]}, mode",
                value=job.mode,
                expected=f"one of {', '.join(MODES)}",
            )
    return made


def _gavel_job(row: Mapping[str, Any]) -> GavelJob:
    batch = int(row["batch"] or 0)
    return GavelJob(
        job_type=f"{row['model']} (batch size {batch})" if batch else str(row["model"]),
        model=str(row["model"]),
        batch=batch,
        steps=math.ceil(row["work"]),
        gpus=int(row["gpus"]),
        mode=str(row["mode"]),
        priority=float(row["weight"]),
        arrival_s=float(row["submit_s"]),
    )


def _epochs_of(
    jobs: JobTable, listed: list[GavelJob], folder: Path
) -> tuple[dict[str, int], dict[int, Ints], dict[tuple[str, int], Ints]]:
    """Samples of an epoch, and batches by epoch, from the files beside the table of speeds."""
    samples, schedules = folder / SAMPLES_FILE, folder / SCHEDULES_FILE
    dynamic = next((row for row, job in enumerate(listed) if job.mode != "static"), None)
    for file in (samples, schedules):
        if dynamic is not None and not file.exists():
            raise TraceError(
                "a job whose batch changes needs a file beside the speeds",
                file=str(jobs.path),
                field=f"job {jobs.jobs['job_id'][dynamic]}, mode",
                value=listed[dynamic].mode,
                expected=f"{file}, or mode static",
            )
    if dynamic is None:
        return read_samples(samples) if samples.exists() else {}, {}, {}
    known = read_samples(samples)
    for row, job in enumerate(listed):
        if job.mode != "static" and job.model not in known:
            raise TraceError(
                "a job whose batch changes needs the samples of its model",
                file=str(samples),
                field="samples_per_epoch",
                value=job.model,
                expected=f"samples of an epoch of it, for job {jobs.jobs['job_id'][row]}",
            )
    by_line = read_batch_schedules(schedules, jobs.path.name)
    ids = jobs.jobs["job_id"].to_list()
    by_row = {row: by_line[int(i)] for row, i in enumerate(ids) if i.isdigit() and int(i) in by_line}
    for row, job in enumerate(listed):
        if job.mode != "static" and row not in by_row:
            raise TraceError(
                "a job whose batch changes has no batch schedule",
                file=str(schedules),
                field=f"job {ids[row]}, mode",
                value=job.mode,
                expected=f"a row of file {jobs.path.name} and job {ids[row]}, or mode static in {jobs.path}",
            )
    return known, by_row, read_noise_patterns(schedules)


def _refuse_unmeasured(
    jobs: JobTable, listed: list[GavelJob], by_type: tuple[Rates, ...], file: Path
) -> None:
    for row, job in enumerate(listed):
        key = job.model, job.batch, job.gpus
        if not any(rates.get(key, 0.0) > 0 for rates in by_type):
            raise TraceError(
                "a model without a profile",
                file=str(jobs.path),
                field=f"job {jobs.jobs['job_id'][row]}, model, batch and GPUs",
                value=f"{job.job_type}, {job.gpus}",
                expected=f"a key \"('{job.job_type}', {job.gpus})\" with a speed in {file}",
            )


def _need_column(jobs: JobTable, name: str, what: str) -> None:
    if name not in jobs.jobs:
        raise TraceError(
            "the profiles do not fit the jobs",
            file=str(jobs.path),
            field=name,
            expected=f"a column with {what}; format {jobs.format} has none",
        )
