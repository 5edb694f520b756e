"""Pools of nodes that grow and shrink, as a kind of work that autoscalers are compared on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.autoscaling.autoscaled_run import (
    AutoscalingInputs,
    AutoscalingRecords,
    run_autoscaled,
)
from trimtab.experiments.autoscaling.autoscalers import (
    AUTOSCALERS,
    Autoscaler,
    canonical_autoscaler,
    find_autoscaler,
)
from trimtab.experiments.autoscaling.autoscaling_scenario import AUTOSCALED, AutoscalingScenario
from trimtab.experiments.colocation.shared_scenario import fields_of_file
from trimtab.experiments.compare.kind import FigureChoice, Kind, Notice
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.scenario_parts import Parts, ReadingBar
from trimtab.experiments.scenario.trace_rows import trace_columns
from trimtab.experiments.serving.record_tables import request_table
from trimtab.experiments.serving.run import prepared_mode
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.metrics import METRICS, Metric, compute
from trimtab.policies import find

if TYPE_CHECKING:
    import polars as pl

_OF_REQUESTS: Final = (
    "usd",
    "slo_attained_frac",
    "completion_mean_s",
    "completion_p99_s",
    "queueing_mean_s",
    "rejected_frac",
    "utilisation_allocated_mean_frac",
    "idle_frac",
    "model_loads",
    "usd_per_hour",
    "usd_per_1k",
)
_METRICS: Final = (
    *(METRICS[name] for name in _OF_REQUESTS),
    Metric(
        "node_hours",
        "h",
        "Hours of nodes that were paid, from their order to their last request.",
        "lower",
        True,
    ),
    Metric("starts", "1", "Number of nodes that were ordered.", "lower", True),
    Metric("nodes_most", "1", "Most nodes that were paid at the end of a period.", None),
)
AUTOSCALING_METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _METRICS}


@dataclass(frozen=True)
class Autoscaling(Kind[AutoscalingScenario, AutoscalingInputs, AutoscalingRecords]):
    """Requests on nodes that an autoscaler orders and returns. Their load is that of all nodes."""

    items: ClassVar[str] = "requests"
    title: ClassVar[str] = "autoscaled pools"
    untaken: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("trace", "cluster", "profiles", "rows", "columns", "limit", "what_if"),
        "its own requests and cluster",
    )
    metrics: ClassVar[Mapping[str, Metric]] = AUTOSCALING_METRICS
    objective: ClassVar[str] = "usd"
    objective_title: ClassVar[str] = "price"
    figures: ClassVar[FigureChoice] = FigureChoice(
        stats=("usd", "slo_attained_frac", "completion_p99_s"),
        over_load={},
        bars={
            "usd": "What the nodes cost, from their order to their last request.",
            "slo_attained_frac": "Requests within their objective: compare prices where these are equal.",
        },
        bars_title="Price and attainment",
        trade_off=("usd", "slo_attained_frac"),
        trade_off_text="Left is cheap, up is in time: what each rule trades.",
    )

    def limits(self, settings: AutoscalingScenario) -> str:
        """What the model leaves out."""
        return "A node always starts in the same time; orders never fail, and are paid by the second."

    def read(
        self,
        source: AutoscalingScenario | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> AutoscalingScenario:
        """The scenario, with every argument that is not None replaced. Raises UsageError."""
        scenario = AUTOSCALED.load(source)
        if load is not None:
            workload = scenario.requests.workload.model_copy(update={"load": load})
            requests = scenario.requests.model_copy(update={"workload": workload})
            scenario = scenario.replaced(requests=requests)
        try:
            find(scenario.serve_with)
        except UsageError as error:
            told: dict[str, Any] = {
                "file": scenario.known_as,
                "value": error.value,
                "expected": error.expected,
            }
            raise ScenarioError(error.problem, field="serve_with", **told) from error
        return scenario.replaced(policies=policies, seeds=seeds)

    def with_parts(self, base: AutoscalingScenario | None, parts: Parts) -> AutoscalingScenario:
        """The scenario with these parts. Raises ScenarioError."""
        if base is None:
            raise ScenarioError("a trace alone makes no pools", expected="a scenario with kind: autoscaling")
        return self.read(base, load=parts.load, policies=parts.policies, seeds=parts.seeds)

    def read_ahead(self, settings: AutoscalingScenario, bar: ReadingBar) -> list[str]:
        """As for requests."""
        return SERVING.read_ahead(settings.requests, bar)

    def amounts(self, inputs: AutoscalingInputs) -> dict[str, int]:
        """Nodes and requests."""
        return {"nodes": inputs.serving.cluster.n_nodes, "requests": len(inputs)}

    def size(self, settings: AutoscalingScenario) -> int:
        """Requests of a run."""
        return SERVING.size(settings.requests)

    def shortened(self, settings: AutoscalingScenario, items: int) -> AutoscalingScenario:
        """Fewer requests."""
        return settings.model_copy(update={"requests": SERVING.shortened(settings.requests, items)})

    def own_load(self, settings: AutoscalingScenario) -> float | None:
        """Load of the requests on all nodes."""
        return settings.requests.workload.load

    def default_policies(self, settings: AutoscalingScenario) -> tuple[str, ...]:
        """All rules."""
        return tuple(AUTOSCALERS)

    def find(self, policy: str | Autoscaler) -> tuple[Autoscaler]:
        """The rule."""
        return (find_autoscaler(policy),)

    def canonical(self, policy: str | Autoscaler) -> str:
        """Its shortest name."""
        return canonical_autoscaler(policy)

    def prepare(
        self,
        settings: AutoscalingScenario,
        policies: Sequence[str | Autoscaler],
        mode: str,
        items: int,
        notice: Notice | None,
    ) -> str:
        """Compile what requests are served with."""
        return prepared_mode([settings.serve_with], mode, items, 1, notice)

    def build(self, settings: AutoscalingScenario, seed: int, load: float | None) -> AutoscalingInputs:
        """Requests and nodes of a seed."""
        with fields_of_file():
            serving = build(settings.requests.read_from(settings.known_as), seed)
        return AutoscalingInputs(settings, seed, serving, serving.offered_load)

    def run(self, inputs: AutoscalingInputs, policy: str | Autoscaler, mode: str) -> AutoscalingRecords:
        """Run requests and pools."""
        return run_autoscaled(inputs, find_autoscaler(policy), mode)

    def measure(self, records: AutoscalingRecords) -> dict[str, float]:
        """All metrics of a run."""
        found = compute(records.requests)
        return {
            **{name: found[name] for name in _OF_REQUESTS},
            "node_hours": records.node_hours,
            "starts": float(records.starts),
            "nodes_most": float(records.nodes_paid.max(initial=0.0)),
        }

    def table(self, inputs: AutoscalingInputs, records: AutoscalingRecords) -> pl.DataFrame:
        """One row per request."""
        ready, trace = inputs.serving, inputs.scenario.requests.workload.trace
        return request_table(
            records.requests, ready.cluster, ready.requests, trace_columns(trace, inputs.seed)
        )

    def notes(self, settings: AutoscalingScenario, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        """Which rules miss the target."""
        goal = settings.slo_target_frac
        late = [r.policy for r in results if r.metrics["slo_attained_frac"].mean < goal]
        return [f"below the target of {goal:.1%} of requests in time: {', '.join(late)}"] if late else []


AUTOSCALING_KIND: Final[Autoscaling] = Autoscaling()
