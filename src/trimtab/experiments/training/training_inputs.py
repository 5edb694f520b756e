"""The inputs of a run: cluster, jobs and their speeds, for one seed and load."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import polars as pl

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.job_places import JobAsk, JobPlaces, NodeOffer, misfit, places_of
from trimtab.domain.service_loads import PairSpeeds
from trimtab.domain.training_jobs import Floats, Ints, JobQueues, Records, ServiceLoads, Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.errors import ScenarioError, TraceError
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.scenario_file import names_file
from trimtab.experiments.training.job_profiles import ProfiledJobs, profiled_jobs
from trimtab.experiments.training.training_environment import (
    generated_pairs,
    limited,
    node_offers,
    queues_of,
    quota_gpus_of,
)
from trimtab.experiments.training.training_scenario import (
    GenerateJobs,
    GenerateServices,
    JobsSection,
    JobTrace,
    ScalingModel,
    TrainingScenario,
)
from trimtab.traces.read_jobs import JobTable, Zero, asks_of, read_jobs
from trimtab.traces.scaling_profiles import scaling_table
from trimtab.training.job_models import JobModel, TableJobs
from trimtab.words import counted

SERVICE: Final = "online-service"  # name of their model
_DAY_S: Final = 86_400.0


def with_services(workload: Workload, services: GenerateServices, seed: int) -> Workload:
    """The workload with services that begin with its first job, each at another time of its day."""
    n, first_s = services.count, float(workload.submit_s[0])
    phase_s = np.random.default_rng([seed, 3]).uniform(0.0, _DAY_S, n)
    given: dict[str, Any] = {
        "submit_s": first_s,
        "deadline_s": np.inf,
        "model_idx": workload.model_names.index(SERVICE),
        "gpus_requested": 1,
        "gpus_min": 1,
        "gpus_max": 1,
        "batch": 1.0,
        "work": np.inf,
        "declared_work": np.inf,
        "duration_s": np.nan,
        "priority": 1,
        "tenant_idx": 0,
        "preemptible": False,
        "scales": False,
    }
    columns: dict[str, Any] = {
        name: np.concatenate([np.full(n, value, getattr(workload, name).dtype), getattr(workload, name)])
        for name, value in given.items()
    }
    assert {f.name for f in fields(workload)} - set(given) == {
        "name", "job_ids", "model_names", "tenant_names", "pinned", "services", "asks", "columns"
    }  # fmt: skip
    if workload.pinned is not None:
        columns["pinned"] = np.concatenate([np.zeros(n, np.bool_), workload.pinned])
    loads = ServiceLoads(
        is_service=np.arange(n + len(workload)) < n,
        phase_s=np.concatenate([phase_s, np.zeros(len(workload))]),
        least=services.load_least,
        most=services.load_most,
    )
    ids = tuple(f"service-{i}" for i in range(n))
    asks = (JobAsk(),) * n + workload.asks if workload.asks else ()
    return replace(workload, job_ids=ids + workload.job_ids, services=loads, asks=asks, **columns)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingInputs:
    """One seed and load of a scenario."""

    scenario: TrainingScenario
    seed: int
    nodes: Records  # [nodes] NODES
    type_names: tuple[str, ...]
    workload: Workload
    model: JobModel
    notes: tuple[str, ...]  # for readers of a comparison
    usd_per_gpu_hour: float
    offered_load: float
    load: float | None  # that was asked for
    quota_gpus: Floats  # [tenants] most GPUs; empty = no quotas
    queues: JobQueues | None  # as declared
    stretch: float  # of times that the scenario sets, which are those of its own load
    places: JobPlaces | None  # where each job may run; None = on every node

    def __len__(self) -> int:
        return len(self.workload)

    def under_rules_of(self, allocator: str) -> TrainingInputs:
        """The inputs under the rules of this allocator."""
        own = self.scenario.under_rules_of(allocator)
        return self if own is self.scenario else _built(own, self.seed, self.load)


@names_file
def build_training(scenario: TrainingScenario, seed: int, load: float | None = None) -> TrainingInputs:
    """Cluster, jobs and their speeds. Raises UsageError for files that can't be used."""
    nodes, types, usd = cluster_nodes(scenario.cluster)
    offers = node_offers(scenario.cluster)
    generate, trace = scenario.jobs.generate, scenario.jobs.trace
    if generate is not None:
        workload, table = _generated(scenario.name, generate, seed, int(nodes["gpus"].sum()))
        by_curve = [workload.model_names[m] for m in table.curve_idx[:, 0].argsort()]
        pairs, told = generated_pairs(generate, by_curve, len(types))
        rounding = scenario.rules.finish_rounding or "exact"
        made = ProfiledJobs(workload, TableJobs(table, rounding, pairs=pairs, pair_estimate=told))
    else:
        assert trace is not None
        listed = _recorded(trace, scenario.jobs.zero)
        jobs, notes = _fitting(listed, nodes, offers, scenario.jobs.too_wide)
        made = profiled_jobs(jobs, trace.profiles, scenario.rules, gpus_by_type(nodes, types))
        made = replace(made, notes=(*notes, *made.notes))
    workload = _declared(made.workload, scenario.jobs.declared_cv, seed)
    workload = _kept(workload, scenario.jobs, seed)
    model = _with_pairs(made.model, scenario.jobs.pair_cv, seed)
    own = offered_load(workload, int(nodes["gpus"].sum()))
    wanted = scenario.jobs.load if load is None else load
    stretch = 1.0
    if wanted is not None and own > 0:
        workload = _stretched(workload, own / wanted)
        stretch = (own if scenario.jobs.load is None else scenario.jobs.load) / wanted
    final = offered_load(workload, int(nodes["gpus"].sum()))
    if generate is not None and generate.services is not None:
        workload = with_services(workload, generate.services, seed)
    quota_gpus = quota_gpus_of(scenario.quotas, workload)
    workload = limited(workload, quota_gpus)
    queues = queues_of(scenario, workload, int(nodes["gpus"].sum()))
    places = places_of(workload.asks, offers) if workload.asks else None
    if places is not None:
        most = np.maximum(places.most(nodes["gpus"].astype(np.int64)), workload.gpus_requested)
        workload = replace(workload, gpus_max=np.minimum(workload.gpus_max, most))
    cluster_and_jobs = nodes, types, workload, model, made.notes, usd
    return TrainingInputs(
        scenario, seed, *cluster_and_jobs, final, load, quota_gpus, queues, stretch=stretch, places=places
    )


@functools.lru_cache(maxsize=4)
def _built(scenario: TrainingScenario, seed: int, load: float | None) -> TrainingInputs:
    return build_training(scenario, seed, load)


def offered_load(workload: Workload, gpus: int) -> float:
    """GPU seconds asked for, over those of the cluster from the first to the last submission."""
    span_s = float(np.ptp(workload.submit_s))
    asked = float(np.nansum(workload.duration_s * workload.gpus_requested))
    return asked / (gpus * span_s) if span_s > 0 else 0.0


def cluster_nodes(cluster: ClusterSpec) -> tuple[Records, tuple[str, ...], float]:
    """NODES records, the names of the types, and the price of a GPU hour. Raises ScenarioError."""
    types = tuple(cluster.types)
    each = [node.group.type for node in cluster.each_node()]
    gpus = [cluster.types[name].accelerators for name in each]
    for name, n in zip(each, gpus, strict=True):
        if n != int(n) or n < 1:
            field = f"cluster.types.{name}.accelerators"
            raise ScenarioError("training needs whole GPUs", field=field, value=n, expected="1 or more")
    price = sum(cluster.types[name].usd_per_hour for name in each) / max(sum(gpus), 1)
    return gpu_nodes([types.index(name) for name in each], np.array(gpus, np.int64)), types, price


def gpus_by_type(nodes: Records, types: tuple[str, ...]) -> dict[str, int]:
    """Type of GPU → GPUs of it."""
    return {name: int(nodes["gpus"][nodes["type_idx"] == t].sum()) for t, name in enumerate(types)}


def _recorded(trace: JobTrace, zero: Zero) -> JobTable:
    jobs = read_jobs(trace.file, zero)
    return jobs if trace.limit is None else replace(jobs, jobs=jobs.jobs.head(trace.limit))


def _fitting(
    table: JobTable, nodes: Records, offers: Sequence[NodeOffer], too_wide: str
) -> tuple[JobTable, tuple[str, ...]]:
    """The jobs that the cluster could hold, and a note on others that are left out. Raises TraceError."""
    gpus, asks = int(nodes["gpus"].sum()), asks_of(table)
    places = places_of(asks, offers) if asks else None
    most = np.full(len(table.jobs), gpus)
    if places is not None:
        most = places.most(nodes["gpus"].astype(np.int64))
    asked = table.jobs["gpus"].to_numpy()
    is_wide = asked > most
    wide = np.flatnonzero(is_wide)
    if not len(wide):
        return table, ()
    first = int(wide[0])
    job_id, wanted = table.jobs["job_id"][first], int(asked[first])
    if too_wide == "leave-out" and len(wide) < len(table.jobs):
        what = f"the {gpus:,} GPUs" if places is None else "their nodes have"
        note = f"left out: {counted(len(wide), 'job')} wider than {what}, such as {job_id}"
        return replace(table, jobs=table.jobs.filter(pl.Series(~is_wide))), (note,)
    more = counted(len(wide) - 1, "other job")
    others = f", as {'is' if len(wide) == 2 else 'are'} {more}" if len(wide) > 1 else ""
    why, expected = "is wider than the cluster", f"at most {gpus}, the GPUs of the cluster"
    if wanted <= gpus:
        why = f"can never run: {misfit(asks[first], wanted, int(most[first]))}"
        others = f"; {more} can't either" if len(wide) > 1 else ""
        expected = f"at most {most[first]}"
    raise TraceError(
        f"job {job_id} {why}{others}",
        file=str(table.path),
        field="gpus",
        value=wanted,
        expected=f"{expected}; a scenario with jobs.too_wide: leave-out does without such jobs",
    )


def _generated(name: str, generate: GenerateJobs, seed: int, gpus: int) -> tuple[Workload, ScalingTable]:
    rng = np.random.default_rng([seed, 0])
    n, names = generate.jobs, tuple(generate.models)
    models = list(generate.models.values())
    most = min(max(model.gpus_max for model in models), gpus)
    levels = [1 << k for k in range(most.bit_length()) if 1 << k <= most]
    curves = {
        (name, 1.0): {
            g: g / (1 + m.serial_frac * (g - 1) + m.falls_frac * g * (g - 1))
            for g in levels
            if g <= m.gpus_max
        }
        for name, m in generate.models.items()
    }
    if generate.services is not None:
        curves[SERVICE, 1.0] = {1: 1.0}  # a second of service a second
    table, sorted_names = scaling_table(curves)
    share = np.array([model.share for model in models])
    drawn = rng.choice(len(models), n, p=share / share.sum())
    model_idx = np.array([sorted_names.index(names[k]) for k in drawn])
    limit = np.array([min(models[k].gpus_max, most) for k in drawn])
    asked = np.array(list(generate.gpus))
    weight = np.array(list(generate.gpus.values()))
    wanted = np.minimum(rng.choice(asked, n, p=weight / weight.sum()), limit)
    sigma = math.sqrt(math.log1p(generate.duration.cv**2))
    duration_s = generate.duration.median_s * elementwise(math.exp, sigma * rng.standard_normal(n))
    submit_s = np.cumsum(rng.exponential(1.0, n))
    submit_s -= submit_s[0]
    rate = table.rates(table.curves_of(model_idx, np.ones(n)), np.zeros(n, np.int64), wanted)
    due = generate.deadline
    factor: Floats = rng.uniform(due.least, due.most, n) if due is not None else np.full(n, np.inf)
    work = duration_s * rate
    workload = Workload(
        name=name,
        job_ids=tuple(f"job-{i}" for i in range(n)),
        model_names=sorted_names,
        submit_s=submit_s,
        deadline_s=submit_s + duration_s * factor,
        model_idx=model_idx,
        gpus_requested=wanted,
        gpus_min=np.ones(n, np.int64),
        gpus_max=limit,
        batch=np.ones(n),
        work=work,
        declared_work=work.copy(),
        duration_s=duration_s,
        priority=np.zeros(n, np.int64),
        tenant_idx=_tenants(generate, n, seed),
        tenant_names=tuple(generate.tenants) or ("",),
        preemptible=np.ones(n, np.bool_),
        scales=np.ones(n, np.bool_),
        asks=_asks(models, drawn),
    )
    return workload, table


def _asks(models: Sequence[ScalingModel], drawn: Ints) -> tuple[JobAsk, ...]:
    """What each job asks of its nodes; empty where none asks for more than GPUs."""
    if not any(model.cpus_per_gpu for model in models):
        return ()
    return tuple(JobAsk(cpus_per_gpu=models[k].cpus_per_gpu) for k in drawn)


def _tenants(generate: GenerateJobs, n: int, seed: int) -> Ints:
    """Tenant of each job; a stream of its own, so that tenants change nothing else."""
    if not generate.tenants:
        return np.zeros(n, np.int64)
    share = np.array(list(generate.tenants.values()))
    return np.random.default_rng([seed, 4]).choice(len(share), n, p=share / share.sum())


def _declared(workload: Workload, cv: float, seed: int) -> Workload:
    """The work that allocators see, off by a lognormal factor of mean 1."""
    if cv == 0:
        return workload
    rng = np.random.default_rng([seed, 1])
    sigma = math.sqrt(math.log1p(cv**2))
    factor = elementwise(math.exp, sigma * rng.standard_normal(len(workload)) - sigma**2 / 2)
    return replace(workload, declared_work=workload.work * factor)


def _kept(workload: Workload, jobs: JobsSection, seed: int) -> Workload:
    """With the jobs drawn that keep their GPUs, beside those of the trace; a stream of their own."""
    if jobs.not_preemptible_frac == jobs.pinned_frac == 0:
        return workload
    keeps, stays = np.random.default_rng([seed, 6]).random((2, len(workload)))
    pinned = stays < jobs.pinned_frac
    return replace(
        workload,
        preemptible=workload.preemptible & (keeps >= jobs.not_preemptible_frac),
        pinned=pinned if workload.pinned is None else workload.pinned | pinned,
    )


def _with_pairs(model: JobModel, cv: float, seed: int) -> JobModel:
    """Speeds of two jobs on the same GPUs, off the estimate by a lognormal factor of mean 1."""
    if not isinstance(model, TableJobs):
        return model
    estimate = model.pair_estimate or PairSpeeds.unknown(len(model.table.curve_names))
    truth = model.pairs or estimate
    return replace(model, pairs=truth.disturbed(cv, seed), pair_estimate=estimate)


def _stretched(workload: Workload, factor: float) -> Workload:
    """Submissions so much further apart; each deadline keeps its distance."""
    first_s = workload.submit_s[0]
    submit_s = first_s + (workload.submit_s - first_s) * factor
    return replace(
        workload, submit_s=submit_s, deadline_s=submit_s + (workload.deadline_s - workload.submit_s)
    )
