"""Serving requests on nodes, as a kind of work that policies are compared on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy, members
from trimtab.domain.requests import Reason
from trimtab.engine import simulator
from trimtab.engine.provided import SIMULATOR, degraded
from trimtab.engine.records import records_of
from trimtab.errors import ScenarioError
from trimtab.experiments.bounds import bound_of, compile_bounds, distance_frac
from trimtab.experiments.compare.kind import (
    BINS,
    Curves,
    FigureChoice,
    Kind,
    LowerBound,
    Notice,
    PolicyTiming,
)
from trimtab.experiments.machine import cores
from trimtab.experiments.provenance import file_stamp
from trimtab.experiments.scenario import Scenario, load_scenario, resolve_scenario
from trimtab.experiments.scenario.build import RunInputs, build, same_inputs, scenario_workload
from trimtab.experiments.scenario.scenario_parts import Parts, ReadingBar
from trimtab.experiments.scenario.spec.scenario import SweepSpec
from trimtab.experiments.scenario.spec.shared_types import set_time_notes
from trimtab.experiments.scenario.trace_rows import arrives_at_once, recorded, trace_columns
from trimtab.experiments.serving.policy_timing import time_policies
from trimtab.experiments.serving.record_tables import request_table
from trimtab.experiments.serving.run import prepared_mode
from trimtab.experiments.serving.run_curves import curves_of
from trimtab.experiments.serving.warnings import MOST_NAMED, comparison_notes, serving_model
from trimtab.metrics import METRICS, Metric, Records, batch_ci95, compute, served_frac
from trimtab.policies import CHAIN_COMPARISON, DEFAULT_COMPARISON, PolicySpec, canonical, find
from trimtab.validation.problems import checked

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, eq=False)
class ServingInputs:
    """One seed and load of a scenario."""

    scenario: Scenario
    seed: int
    load: float | None  # None = the scenario's
    run: RunInputs

    @property
    def offered_load(self) -> float:
        """Offered work over capacity."""
        return self.run.offered_load

    def __len__(self) -> int:
        return len(self.run.requests)


@dataclass(frozen=True)
class Serving(Kind[Scenario, ServingInputs, Records]):
    """Requests that arrive at nodes, in the simulator."""

    items: ClassVar[str] = "requests"
    title: ClassVar[str] = "requests"
    untaken: ClassVar[Mapping[str, str]] = {"profiles": "a trace or a scenario of training jobs"}
    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    objective: ClassVar[str] = "completion_mean_s"
    objective_title: ClassVar[str] = "mean completion"
    sweep_up_to: ClassVar[int] = 100_000
    figures: ClassVar[FigureChoice] = FigureChoice(
        stats=("completion_mean_s", "completion_p99_s", "slo_attained_frac", "utilisation_var"),
        over_load={
            "completion_mean_s": "How mean completion grows with the load; the band is the 95 % interval.",
            "completion_p99_s": "The slowest hundredth of requests: where policies differ most.",
            "slo_attained_frac": "Share of requests that finished in time; higher is better.",
        },
        bars={
            "utilisation_var": "How unevenly nodes are used: 0 is perfectly even.",
            "utilisation_cv": "The same relative to the mean utilisation.",
            "idle_frac": "Share of slots that did nothing, over the window of the run.",
            "queueing_mean_s": "How long requests waited for a slot.",
            "rejected_frac": "Share of requests turned away; the metrics above give the reasons.",
            "jain_nodes": "Evenness of utilisation between 0 and 1; higher is better.",
        },
        bars_title="Balance, waiting and rejection",
        trade_off=("utilisation_var", "completion_p99_s"),
        trade_off_text="Further left is more even, further down is faster. On unequal nodes the two pull "
        "apart: fast nodes should do more, so the most even policy is seldom the fastest.",
    )

    def limits(self, settings: Scenario) -> str:
        """Which model the nodes of a scenario are, and what it leaves out."""
        return f"Model: {serving_model(settings.cluster)}."

    def read(
        self,
        source: Scenario | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> Scenario:
        """The scenario, by value, name or file, with every argument that is not None replaced."""
        return load_scenario(source).with_overrides(load=load, policies=policies, seeds=seeds)

    def with_parts(self, base: Scenario | None, parts: Parts) -> Scenario:
        """The scenario, else the trace on the cluster, with these parts. Raises UsageError."""
        scenario = resolve_scenario(
            base,
            trace=parts.trace,
            cluster=parts.cluster,
            load=parts.load,
            policies=parts.policies,
            seeds=parts.seeds,
        )
        return scenario if parts.change is None else parts.change(scenario)

    def read_ahead(self, settings: Scenario, bar: ReadingBar) -> list[str]:
        """Read the trace, if there is one, and keep it for the runs; notes about it."""
        trace = settings.workload.trace
        if trace is None:
            return []
        with bar(f"reading {trace.file.name}") as progress:
            read = recorded(trace, progress)
        return read.notes()

    def times(self, settings: Scenario) -> list[PolicyTiming]:
        """Computing times of the policies."""
        policies = settings.policies or self.default_policies(settings)
        return time_policies(settings, policies, settings.seed_list()[0])

    def amounts(self, inputs: ServingInputs) -> dict[str, int]:
        """Nodes and requests."""
        return {"nodes": inputs.run.cluster.n_nodes, "requests": len(inputs)}

    def size(self, settings: Scenario) -> int:
        """Requests of a run."""
        return settings.n_requests()

    def shortened(self, settings: Scenario, items: int) -> Scenario:
        """The first requests of the trace, or fewer generated ones."""
        workload = settings.workload
        if workload.generate is not None:
            changed: dict[str, Any] = {"generate": workload.generate.model_copy(update={"requests": items})}
        else:
            assert workload.trace is not None
            options = workload.trace.options.model_copy(update={"limit": items})
            changed = {"trace": workload.trace.model_copy(update={"options": options})}
        return settings.model_copy(update={"workload": workload.model_copy(update=changed)})

    def own_load(self, settings: Scenario) -> float | None:
        """Load of the scenario itself."""
        return settings.workload.load

    def sweep_loads(self, settings: Scenario, wanted: Sequence[float] | None) -> tuple[float, ...]:
        """The given loads, else the scenario's; none if all arrive at once. Raises ScenarioError."""
        if wanted is None:
            spec = settings.workload.trace
            return () if spec is not None and arrives_at_once(spec) else settings.sweep.loads
        return checked(lambda: SweepSpec(loads=tuple(wanted)), SweepSpec, "sweep", ScenarioError).loads

    def default_policies(self, settings: Scenario) -> tuple[str, ...]:
        """The default comparison, of requests or of chains."""
        return CHAIN_COMPARISON if settings.has_chains() else DEFAULT_COMPARISON

    def is_swept_by_default(self, policy: PolicySpec) -> bool:
        """Whether the policy needs no rollouts: a run with rollouts takes as long as all others together."""
        return Need.ROLLOUT not in find(policy).dispatch.all_needs

    def stamp(self, settings: Scenario) -> tuple[int, ...] | None:
        """Size and time of change of the trace, and of what was learned, if there are any."""
        workload = settings.workload
        files = [source.file for source in (workload.trace, workload.learned) if source is not None]
        return tuple(part for file in files for part in file_stamp(file)) or None

    def find(self, policy: PolicySpec) -> tuple[Policy, Policy]:
        """The policy that dispatches, and the policy that orders the queue."""
        return find(policy)

    def canonical(self, policy: PolicySpec) -> str:
        """The shortest name of a policy."""
        return canonical(policy)

    def prepare(
        self,
        settings: Scenario,
        policies: Sequence[PolicySpec],
        mode: str,
        items: int,
        notice: Notice | None,
    ) -> str:
        """Compile the kernels of all runs; small comparisons on a cold cache are interpreted instead.

        Raises UsageError for a policy that chains do not provide for.
        """
        if settings.has_chains():
            for policy in policies:
                find(policy).degraded(SIMULATOR, frozenset(Need) - {Need.ROLLOUT})
        mode = prepared_mode(policies, mode, items, cores(), notice)
        compile_bounds(notice)
        return mode

    def build(self, settings: Scenario, seed: int, load: float | None) -> ServingInputs:
        """Cluster, requests and options of a seed."""
        return ServingInputs(settings, seed, load, build(settings, seed, load))

    def run(self, inputs: ServingInputs, policy: PolicySpec, mode: str) -> Records:
        """Simulate one policy."""
        decider, ready = find(policy), inputs.run
        driver = simulator.run(
            ready.cluster,
            ready.requests,
            ready.options,
            decider,
            seed=inputs.seed,
            mode=mode,
            declared=scenario_workload(decider.dispatch, inputs.scenario, inputs.seed, inputs.load),
        )
        return records_of(driver, ready.cluster, ready.requests, ready.slo_s, ready.token_slos)

    def measure(self, records: Records) -> dict[str, float]:
        """All metrics of a run."""
        return compute(records)

    def bound(self, inputs: ServingInputs) -> LowerBound[Records] | None:
        """Lower bound on mean completion."""
        ready = inputs.run
        found = bound_of(ready.cluster, ready.requests, ready.options)
        if found is None:
            return None

        def distance(records: Records, metrics: Mapping[str, float]) -> float:
            finished = int(records.requests.finished.sum())
            return distance_frac(metrics["completion_mean_s"], finished, found)

        return LowerBound(found.mean_s, found.method, found.assumptions, distance)

    def curves(self, inputs: ServingInputs, records: Records) -> Curves:
        """Curves on time bins over the arrivals, plus a tenth for the last requests to finish."""
        arrival_s = inputs.run.requests.work["arrival_s"]
        span_s = max(1e-9, float(arrival_s[-1] - arrival_s[0]))
        edges_s = np.linspace(arrival_s[0], arrival_s[0] + 1.1 * span_s, BINS + 1)
        return curves_of(records, inputs.run.cluster, edges_s, inputs.run.options.faults, inputs.seed)

    def table(self, inputs: ServingInputs, records: Records) -> pl.DataFrame:
        """One row per request."""
        of_trace = trace_columns(inputs.scenario.workload.trace, inputs.seed)
        return request_table(records, inputs.run.cluster, inputs.run.requests, of_trace)

    def remarks(self, inputs: ServingInputs, policy: PolicySpec, records: Records) -> dict[str, Any]:
        """Requests that fit no node, and what the policy does without."""
        unfit, ready = np.flatnonzero(records.requests.reason == Reason.FITS_NO_NODE), inputs.run
        found = find(policy)
        lacks = degraded(found, ready.cluster, ready.requests, ready.options)
        return {
            "n_fits_no_node": len(unfit),
            "fits_no_node": tuple(unfit[:MOST_NAMED].tolist()),
            "lacks": tuple((each.policy, each.need.name, each.effect) for each in lacks),
        }

    def seedless(self, settings: Scenario, policies: Sequence[PolicySpec], seed: int) -> frozenset[str]:
        """Policies without random numbers, on a recorded trace of which nothing is drawn."""
        if settings.workload.trace is None:
            return frozenset()
        if not same_inputs(build(settings, seed), build(settings, seed + 1)):
            return frozenset()
        return frozenset(canonical(p) for p in policies if not any(m.draws for m in members(find(p)[0])))

    def batch_ci95(self, records: Records) -> dict[str, float]:
        """Intervals of means over requests, by batches of requests in order of arrival."""
        return batch_ci95(records)

    def served_frac(self, settings: Scenario, metrics: Mapping[str, float]) -> float:
        """Share served of the requests that some node could serve."""
        return served_frac(metrics, ends_early=settings.ends_early())

    def notes(self, settings: Scenario, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        """Notes for readers of a comparison."""
        notes = comparison_notes(settings.workload.trace, results)
        timed = {"bursts": settings.workload.bursts, "faults": settings.faults}
        timed |= {"background": settings.background}
        return notes + (set_time_notes(timed) if is_swept else [])


SERVING: Final[Serving] = Serving()
