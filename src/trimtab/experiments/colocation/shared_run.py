"""Requests and training jobs on the same nodes, round by round, in one pass.

The loop of training jobs decides at the ends of rounds. Before each decision the simulation of requests goes
on to that time, so that a way of sharing sees how full requests kept the nodes until then; after it, nodes
that train take no more requests (`LoanedNodes`), or co-located jobs slow the requests on them
(`ColocatedJobs`). Neither side sees what is to come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trimtab.domain.queue_tree import QueueScheme
from trimtab.domain.training_jobs import Flags, JobQueues, Workload
from trimtab.engine import simulator
from trimtab.engine.records import records_of
from trimtab.errors import ScenarioError
from trimtab.experiments.colocation.queue_division import QueueDivision
from trimtab.experiments.colocation.round_companions import (
    ColocatedJobs,
    LoanedNodes,
    RequestSide,
    slow_downs,
)
from trimtab.experiments.colocation.shared_scenario import SharedScenario, fields_of_file
from trimtab.experiments.colocation.sharing_policies import InQueues, MuxFlow, Sharing
from trimtab.experiments.scenario.build import RunInputs
from trimtab.experiments.training.training_environment import node_offers
from trimtab.experiments.training.training_inputs import TrainingInputs, build_training
from trimtab.experiments.training.training_scenario import GenerateServices, TrainingScenario
from trimtab.metrics import Records, compute
from trimtab.policies import find
from trimtab.training.allocator_catalogue import restart_cost_of
from trimtab.training.job_records import JobRecords
from trimtab.training.queue_shares import capacity_of, job_queues, refuse_wide, resources_of
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.progress import Truth
from trimtab.training.truths.table_model import TableTruth
from trimtab.validation.queue_section import tree_of


@dataclass(frozen=True, eq=False)
class SharedInputs:
    """One seed of a scenario."""

    scenario: SharedScenario
    seed: int
    serving: RunInputs
    offered_load: float
    static: dict[int, float] = field(default_factory=dict)  # serving nodes → what is attained, once measured
    static_hours: dict[int, float] = field(default_factory=dict)  # the same → GPU hours of training

    def __len__(self) -> int:
        return len(self.serving.requests) + len(self.training)

    @property
    def n_nodes(self) -> int:
        """Nodes that requests and jobs share."""
        return self.serving.cluster.n_nodes

    @cached_property
    def rounds(self) -> int:
        """Rounds to the last arrival of a request."""
        return max(math.ceil(float(self.serving.requests.work["arrival_s"][-1]) / self.scenario.round_s), 1)

    @cached_property
    def training(self) -> TrainingInputs:
        """The jobs."""
        return self._jobs(None)

    @cached_property
    def beside(self) -> TrainingInputs:
        """The jobs beside a service on each GPU."""
        if self.scenario.jobs.generate is None:
            expected = "generated jobs: how fast recorded ones are beside requests is not known"
            raise ScenarioError("has no guests", file=self.scenario.known_as, field="jobs", expected=expected)
        count = int(self.training.nodes["gpus"].sum())
        busy_frac, measured_as = self.scenario.request_busy_frac, self.scenario.request_measured_as
        return self._jobs(GenerateServices(count=count, busy_frac=busy_frac, measured_as=measured_as))

    def _jobs(self, services: GenerateServices | None) -> TrainingInputs:
        scenario, jobs = self.scenario, self.scenario.jobs
        if services is not None and jobs.generate is not None:
            generate = jobs.generate.model_copy(update={"services": services})
            jobs = jobs.model_copy(update={"generate": generate})
        made = TrainingScenario(name=scenario.name, cluster=scenario.requests.cluster, jobs=jobs)
        with fields_of_file():
            return build_training(made.read_from(scenario.known_as), self.seed)

    @cached_property
    def idle_gpu_hours(self) -> float:
        """GPU hours that requests leave when all nodes serve."""
        side = request_side(self, "auto")
        for t in range(self.rounds):
            side.end_round(t)
        idle = (1.0 - side.load) * self.training.nodes["gpus"]
        return float(idle.sum()) * self.scenario.round_s / 3600.0


@dataclass(frozen=True, eq=False)
class SharedRecords:
    """The records of a run."""

    inputs: SharedInputs
    requests: Records
    jobs: JobRecords
    trains: Flags  # [rounds, nodes] whether jobs were on each node
    gpu_hours: float  # of training: GPU hours of jobs alone that make the same progress
    one_gpu_hours: float  # in which one GPU would do the same work; nan = not known
    static_hours: float  # of training, by the static partition that attains as much
    division: QueueDivision | None = None  # of a run in queues


def run_shared(inputs: SharedInputs, sharing: Sharing, mode: str = "auto") -> SharedRecords:
    """Run requests and jobs."""
    scenario = inputs.scenario
    if isinstance(sharing, MuxFlow):
        return _with_static(_hosted(inputs, sharing, mode), mode)
    side, workload = request_side(inputs, mode), inputs.training.workload
    division, queues = _division(inputs, sharing) if isinstance(sharing, InQueues) else (None, None)
    nodes = LoanedNodes(side, sharing, scenario.round_s, scenario.return_s, division, workload)
    truth = inputs.training.model.truth()
    jobs = _trained(inputs, workload, scenario.train_with, truth, companion=nodes, queues=queues)
    nodes.finish()
    hours = exclusive_hours(jobs)
    found = SharedRecords(
        inputs,
        _records(inputs, side),
        jobs,
        nodes.trains,
        hours,
        _one_gpu_hours(truth, jobs),
        math.nan,
        division,
    )
    return _with_static(found, mode)


def _division(inputs: SharedInputs, sharing: InQueues) -> tuple[QueueDivision, JobQueues | None]:
    """The queues over requests and jobs, and what of them the loop of jobs keeps to. Raises ScenarioError."""
    scenario, training = inputs.scenario, inputs.training
    if scenario.queues is None:
        expected = "a section queues in the scenario, or another way of sharing"
        raise ScenarioError("has no queues", file=scenario.known_as, field="queues", expected=expected)
    offers = node_offers(scenario.requests.cluster)
    resources = resources_of(offers)[:2]
    tree = tree_of(scenario.queues, resources)
    queues = job_queues(tree, training.workload.tenant_names, offers)
    gpus = training.nodes["gpus"].astype(np.float64)
    capacity = capacity_of(queues, float(gpus.sum()))
    tree.refuse_misfits(capacity, scenario.known_as)
    refuse_wide(queues, training.workload, float(gpus.sum()))
    under = queues.under(QueueScheme(sharing.scheme))
    classes = inputs.serving.cluster.class_names
    cpus = _cpus_per_gpu(inputs) if len(resources) > 1 else 0.0
    division = QueueDivision(
        tree=tree,
        under=None if under is None else under.tree,
        of_classes=tree.leaf_of(classes),
        of_tenants=queues.leaf_of,
        capacity=capacity,
        request_amount=np.array([1.0, cpus])[: len(resources)],
        gpus_per_node=int(gpus.max()),
    )
    return division, None if under is None else replace(under, fleet=capacity)


def _cpus_per_gpu(inputs: SharedInputs) -> float:
    """CPUs that requests take for each GPU that they fill, mean of the classes."""
    served = inputs.scenario.requests.served.classes.values()
    return float(np.mean([one.demand.get("cpu_cores", 0.0) for one in served]))


def _hosted(inputs: SharedInputs, sharing: MuxFlow, mode: str) -> SharedRecords:
    """Jobs are co-located with requests."""
    scenario, training = inputs.scenario, inputs.beside
    truth, workload = training.model.truth(), training.workload
    assert isinstance(truth, TableTruth)  # of generated jobs
    assert workload.services is not None
    cost = restart_cost_of(scenario.restart)
    cost.begin(workload, int(training.nodes["gpus"].sum()))
    began_s = float(cost.expected_s(np.array([0]), np.array([1]))[0])  # a service starts so late
    loads = replace(
        workload.services,
        series=np.zeros((inputs.rounds, len(workload))),
        step_s=scenario.round_s,
        phase_s=np.full(len(workload), began_s),
    )
    workload = replace(workload, services=loads)
    side = request_side(inputs, mode, slow_downs(inputs.rounds, inputs.n_nodes, scenario.round_s))
    colocated = ColocatedJobs(side, loads, truth, training.nodes["gpus"].astype(np.int64), scenario.round_s)
    jobs = _trained(inputs, workload, sharing.allocator(scenario.round_s), truth, companion=colocated)
    colocated.finish()
    hours = _one_gpu_hours(truth, jobs)  # each co-located job has one GPU
    return SharedRecords(inputs, _records(inputs, side), jobs, colocated.trains, hours, hours, math.nan)


def _with_static(run: SharedRecords, mode: str) -> SharedRecords:
    target = min(attained(run.requests), run.inputs.scenario.slo_target_frac)
    return replace(run, static_hours=static_hours(run.inputs, target, mode))


def static_hours(inputs: SharedInputs, attained_frac: float, mode: str) -> float:
    """GPU hours of the static partition with the fewest nodes that attain so much; those of none are 0.

    What requests attain grows with their nodes, so the number is bisected.
    """
    low, high = 1, inputs.n_nodes
    while low < high:
        middle = (low + high) // 2
        if static_attained(inputs, middle, mode) >= attained_frac:
            high = middle
        else:
            low = middle + 1
    if low not in inputs.static_hours:
        inputs.static_hours[low] = exclusive_hours(trained_on(inputs, np.arange(inputs.n_nodes) >= low))
    return inputs.static_hours[low]


def static_attained(inputs: SharedInputs, nodes: int, mode: str) -> float:
    """Share of requests within their objective, on the first nodes alone."""
    if nodes not in inputs.static:
        side = request_side(inputs, mode)
        on = np.arange(inputs.n_nodes) < nodes
        side.set_on(on, 0.0, np.zeros(inputs.n_nodes))
        side.go_to(np.inf)
        inputs.static[nodes] = attained(_records(inputs, side))
    return inputs.static[nodes]


def attained(records: Records) -> float:
    """Share of requests within their objective."""
    return float(compute(records)["slo_attained_frac"])


def request_side(inputs: SharedInputs, mode: str, slow: Any = None) -> RequestSide:
    """The requests before the first of them, with these slow-downs ahead of the faults of the scenario."""
    ready, scenario = inputs.serving, inputs.scenario
    faults = [rows for rows in (slow, ready.options.faults) if rows is not None]
    options = replace(ready.options, faults=np.concatenate(faults) if faults else None)
    decider = find(scenario.serve_with)
    driver = simulator.begun(ready.cluster, ready.requests, options, decider, seed=inputs.seed, mode=mode)
    return RequestSide(driver, scenario.round_s, inputs.rounds, len(ready.cluster.class_names))


def _records(inputs: SharedInputs, side: RequestSide) -> Records:
    ready = inputs.serving
    return records_of(side.driver, ready.cluster, ready.requests, ready.slo_s, ready.token_slos)


def trained_on(inputs: SharedInputs, up: Flags) -> JobRecords:
    """The jobs on these nodes alone, [nodes]."""
    truth = inputs.training.model.truth()
    return _trained(inputs, inputs.training.workload, inputs.scenario.train_with, truth, up=up)


def _trained(
    inputs: SharedInputs,
    workload: Workload,
    allocator: str,
    truth: Truth,
    *,
    up: Flags | bool = True,
    companion: LoanedNodes | ColocatedJobs | None = None,
    queues: JobQueues | None = None,
) -> JobRecords:
    """The jobs, decided at the ends of rounds, to the end of the last round."""
    scenario, training = inputs.scenario, inputs.training
    nodes = training.nodes.copy()
    nodes["up"] = up
    return run_allocator(
        allocator,
        workload,
        nodes=nodes,
        type_names=training.type_names,
        truth=truth,
        clock=f"rounds(period_s={scenario.round_s})",
        restart=scenario.restart,
        companion=companion,
        queues=queues,
        places=training.places,
        horizon_s=(inputs.rounds - 0.5) * scenario.round_s,  # the last decision is that of the last round
    )


def exclusive_hours(jobs: JobRecords) -> float:
    """GPU hours of progress of jobs that have their GPUs alone: restarts are not counted."""
    runs = jobs.run_s > 0
    part = 1.0 - jobs.restart_s[runs] / jobs.run_s[runs]
    return float((jobs.gpu_s[runs] * part).sum()) / 3600.0


def _one_gpu_hours(truth: Truth, jobs: JobRecords) -> float:
    if not isinstance(truth, TableTruth):
        return math.nan
    return float(truth.done_gpu_s()[jobs.is_job].sum()) / 3600.0
