"""Runs one policy on one scenario, for `trimtab run` and `trimtab.simulate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.compiled.parallel import Notice
from trimtab.domain.needs import Degraded
from trimtab.domain.requests import Reason
from trimtab.engine import simulator
from trimtab.engine.calls import are_runs_compiled
from trimtab.engine.compilation import compile_kernels
from trimtab.engine.driver import Driver, PlanningLog
from trimtab.engine.provided import degraded
from trimtab.engine.records import records_of
from trimtab.experiments.bounds import Bound, bound_of, compile_bounds, distance_frac
from trimtab.experiments.compare.kind import Curves
from trimtab.experiments.provenance import made_by
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
from trimtab.experiments.scenario.scenario_parts import ClusterSource, ScenarioSource, TraceSource, resolved
from trimtab.experiments.scenario.trace_rows import trace_columns
from trimtab.experiments.serving.record_tables import (
    best_store_hit_frac,
    link_table,
    request_table,
    stage_table,
    summarised_stages,
)
from trimtab.experiments.serving.run_curves import curves_of
from trimtab.experiments.serving.warnings import (
    degraded_notes,
    few_served_note,
    lateness_note,
    planning_note,
    unfit_note,
)
from trimtab.metrics import RANKED_FROM, Records, compute, served_frac
from trimtab.metrics.chain_metrics import (
    RunPath,
    StageSummary,
    bottleneck_text,
    chosen_paths,
    stage_summaries,
)
from trimtab.metrics.queue_metrics import QueueSummary, queue_summaries
from trimtab.policies import PolicySpec, canonical, find
from trimtab.version import versions
from trimtab.words import counted


def prepared_mode(
    policies: Sequence[PolicySpec], mode: str, requests: int, processes: int, notice: Notice | None
) -> str:
    """The mode in place of "auto" for runs of so many requests in all; compiles the kernels of compiled runs.

    On a cold cache the kernels of the bounds are compiled beside. Raises PolicyError.
    """
    if mode == "auto":
        deciders = [find(policy) for policy in policies]
        mode = "compiled" if are_runs_compiled(deciders, requests, processes) else "interpreted"
    if mode == "compiled":
        compile_kernels(policies, notice, [compile_bounds])
    return mode


if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Run:
    """Result of one policy on one scenario and seed; tables are built on access."""

    scenario: Scenario
    policy: str
    seed: int
    metrics: Mapping[str, float]  # by the names of `trimtab.metrics.METRICS`; nan where undefined
    inputs: RunInputs = field(repr=False)
    records: Records = field(repr=False)
    planning: PlanningLog = field(repr=False, default_factory=PlanningLog)
    lacks: tuple[Degraded, ...] = field(repr=False, default=())  # needs of the policy that are not met
    spec: str | None = field(repr=False, default=None)  # the policy as given, where it was a text
    objects: tuple[object, ...] = field(repr=False, default=())  # what the policy is made of

    def __repr__(self) -> str:
        """Policy, scenario, and three of the figures."""
        means = ("completion_mean_s", "completion_p99_s", "finished_frac")
        figures = ", ".join(f"{name}={self.metrics[name]:.4g}" for name in means)
        what = f"{self.policy} on {self.scenario.name}, seed {self.seed}"
        return f"<Run: {what}, {counted(len(self.inputs.requests), 'request')}: {figures}>"

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request: request_id, arrival_s, start_s, finish_s, node, status, reason, …"""
        of_trace = trace_columns(self.scenario.workload.trace, self.seed)
        return request_table(self.records, self.inputs.cluster, self.inputs.requests, of_trace)

    @cached_property
    def nodes(self) -> pl.DataFrame:
        """One row per node: type, utilisation, finished requests."""
        return node_table(self.records, self.inputs)

    @cached_property
    def links(self) -> pl.DataFrame | None:
        """One row per link of the network and direction; None where there is no network."""
        return None if self.records.links is None else link_table(self.records)

    @cached_property
    def stages(self) -> pl.DataFrame | None:
        """One row per stage instance of runs of chains; None where there are none."""
        return None if self.records.stages is None else stage_table(self.records, self.inputs.cluster)

    @cached_property
    def stage_summaries(self) -> list[StageSummary]:
        """One summary per stage of the chains, or per tool of a workflow; empty where there are none."""
        stages = summarised_stages(self.records, self.inputs)
        return [] if stages is None else stage_summaries(stages, self.records.requests.finished)

    @cached_property
    def queue_summaries(self) -> list[QueueSummary]:
        """One summary per hierarchical queue; empty where there are none."""
        return queue_summaries(self.records)

    @cached_property
    def run_paths(self) -> list[RunPath]:
        """What decided when the median, 99th percentile and slowest run of a chain ended."""
        stages = self.records.stages
        return [] if stages is None else chosen_paths(self.records, stages)

    @cached_property
    def bound(self) -> Bound | None:
        """Lower bound on completion that no policy can beat on these requests; None if there is none."""
        return bound_of(self.inputs.cluster, self.inputs.requests, self.inputs.options)

    @cached_property
    def curves(self) -> Curves:
        """The curves that figures draw."""
        return curves_of(self.records, self.inputs.cluster, faults=self.inputs.options.faults, seed=self.seed)

    @property
    def distance_frac(self) -> float:
        """Mean completion ÷ lower bound − 1; nan without a bound."""
        finished = int(self.records.requests.finished.sum())
        return distance_frac(self.metrics["completion_mean_s"], finished, self.bound)

    @property
    def served_frac(self) -> float:
        """Fraction served, of the requests that some node could serve."""
        return served_frac(self.metrics, ends_early=self.scenario.ends_early())

    @property
    def serves_few(self) -> bool:
        """Whether too few requests were served for the other figures to be fair."""
        return self.served_frac < RANKED_FROM

    def notes(self) -> list[str]:
        """Notes for readers of the figures."""
        unfit = np.flatnonzero(self.records.requests.reason == Reason.FITS_NO_NODE)
        late_s = self.records.requests.arrival_s - self.inputs.requests.work["arrival_s"]
        log = self.planning
        notes = [unfit_note(len(unfit), unfit.tolist())] if len(unfit) else []
        notes += degraded_notes(self.lacks)
        late_s = late_s[late_s > 0.0]  # all 0 in the simulator, and 0 for what never arrived
        notes += [lateness_note(late_s)] if len(late_s) else []
        notes += [planning_note(log)] if log.late or log.raised or log.invalid else []
        return notes + ([few_served_note({self.policy: self.served_frac})] if self.serves_few else [])

    def to_dict(self) -> dict[str, Any]:
        """The output of `trimtab run --json`."""
        bound, stages = self.bound, self.stage_summaries
        chains = (
            {
                "stages": [asdict(stage) for stage in stages],
                "bottleneck": bottleneck_text(stages),
                "paths": [asdict(path) for path in self.run_paths],
                "best_store_hit_frac": best_store_hit_frac(self.records, self.inputs),
            }
            if stages
            else {}
        )
        return {
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "policy": self.policy,
            "seed": self.seed,
            "requests": len(self.inputs.requests),
            "offered_load": self.inputs.offered_load,
            "bound": {
                "completion_mean_s": bound and bound.mean_s,
                "method": bound and bound.method,
                "assumptions": list(bound.assumptions) if bound else [],
            },
            "metrics": dict(self.metrics),
            "distance_to_bound_frac": self.distance_frac,
            "served_frac": self.served_frac,
            "notes": self.notes(),
            "made_by": made_by(self.scenario.content(), [(self.spec or self.policy, self.objects)]),
            "versions": versions(),
            **chains,
            **({"queues": [asdict(queue) for queue in self.queue_summaries]} if self.queue_summaries else {}),
            **({} if self.links is None else {"links": self.links.to_dicts()}),
        }


def simulate(
    scenario: ScenarioSource | None = None,
    policy: PolicySpec = "least-expected-wait",
    seed: int = 0,
    *,
    load: float | None = None,
    trace: TraceSource | None = None,
    cluster: ClusterSource | None = None,
    mode: str = "auto",
    progress: Callable[[int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """Simulate one policy on one seed of a scenario.

    Args:
        scenario: a Scenario, a built-in's name, a file, its YAML text, or its values as a dict; default:
            `trace` on `cluster`, or aigc-images.
        policy: a name, `name+order`, `file.py:Class`, a Policy object or class.
        seed: seed of all random numbers.
        load: offered work over capacity; default: the scenario's.
        trace: replaces the scenario's requests: a file, a Trace, or a data frame in canonical columns.
        cluster: replaces the scenario's nodes: a file, its YAML text, or its values as a dict.
        mode: "auto", "compiled" or "interpreted"; the results are equal.
        progress: called with the number of requests that have arrived.
        notice: called with a line while kernels are compiled.

    Raises UsageError for input that cannot be used and PolicyError for a policy that fails.
    """
    chosen = resolved(scenario, trace=trace, on=cluster, load=load)
    return simulate_inputs(chosen, build(chosen, seed), policy, seed, mode, progress, notice)


def simulate_inputs(
    scenario: Scenario,
    built: RunInputs,
    policy: PolicySpec,
    seed: int,
    mode: str = "auto",
    progress: Callable[[int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """`simulate` on inputs that are built already."""
    decider = find(policy)
    degraded(decider, built.cluster, built.requests, built.options)  # refuses before kernels are compiled
    mode = prepared_mode([policy], mode, len(built.requests), 1, notice)
    driver = simulator.run(
        built.cluster,
        built.requests,
        built.options,
        decider,
        seed=seed,
        mode=mode,
        progress=progress,
        declared=scenario_workload(decider.dispatch, scenario, seed),
    )
    return run_of(scenario, policy, seed, built, driver)


def run_on_clock(
    scenario: Scenario,
    policy: PolicySpec,
    seed: int = 0,
    *,
    speed: float = 1.0,
    progress: Callable[[int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """Run in real time: a live run with in-process workers, `speed` times as fast as the scenario.

    Raises UsageError for input that cannot be used, such as faults, and PolicyError for a policy that fails.
    """
    from trimtab.live.runner import run_live  # with asyncio and the planner's process

    decider = find(policy)
    built = build(scenario, seed)
    driver = run_live(
        built.cluster,
        built.requests,
        built.options,
        decider,
        seed=seed,
        mode=prepared_mode([policy], "auto", len(built.requests), 1, notice),
        speed=speed,
        progress=progress,
        declared=scenario_workload(decider.dispatch, scenario, seed),
    )
    return run_of(scenario, policy, seed, built, driver)


def run_of(scenario: Scenario, policy: PolicySpec, seed: int, built: RunInputs, driver: Driver) -> Run:
    """The result of a finished run, from the state of its driver."""
    records = records_of(driver, built.cluster, built.requests, built.slo_s, built.token_slos)
    lacks = degraded(driver.decider, built.cluster, built.requests, built.options)
    return Run(
        scenario,
        canonical(policy),
        seed,
        compute(records),
        built,
        records,
        driver.planning,
        lacks,
        spec=policy if isinstance(policy, str) else None,
        objects=find(policy),
    )


def node_table(records: Records, built: RunInputs) -> pl.DataFrame:
    """One typed row per node; utilisation of the time that it was up in the window, nan if it never was."""
    import polars as pl

    cluster, nodes, rows = built.cluster, records.nodes, records.requests
    slot_s = np.where(nodes.up_s > 0.0, nodes.slots * nodes.up_s, np.nan)
    served = rows.node_idx[rows.finished & (rows.node_idx >= 0)]  # a cached result took no node
    return pl.DataFrame(
        {
            "node_idx": np.arange(cluster.n_nodes),
            "node": list(cluster.node_names),
            "type": [cluster.type_names[g] for g in cluster.type_idx],
            "zone": [cluster.zone_names[z] for z in cluster.zone_idx],
            "slots": cluster.slots,
            "finished": np.bincount(served, minlength=cluster.n_nodes),
            "busy_frac": nodes.busy_slot_s / slot_s,
            "allocated_frac": nodes.allocated_slot_s / slot_s,
            "up_s": nodes.up_s,
        }
    )
