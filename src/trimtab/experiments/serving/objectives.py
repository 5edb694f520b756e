"""Objectives of sizing: metrics and the values that they keep to, as `completion_p99<8s, wait_p99<1s`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.node_services import ModelService
from trimtab.metrics import METRICS
from trimtab.validation.names import nearest

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
    from trimtab.metrics import Metric

_OBJECTIVE: Final = re.compile(
    r"(?P<metric>\w+)\s*(?P<sign>[<>])=?\s*(?P<value>[0-9.eE+-]+)\s*(?P<unit>ms|s|%)?"
)
_FACTORS: Final[Mapping[str | None, float]] = {None: 1.0, "s": 1.0, "ms": 1e-3, "%": 1e-2}
_HELPED: Final = (
    *("completion_mean", "completion_p", "queueing", "slowdown", "slo_attained", "deadline_satisfied"),
    *("finished", "rejected", "cancelled", "unfinished", "starvation", "throughput", "goodput", "makespan"),
    *("stretch", "first_output", "stage_queueing", "ttft", "tpot", "itl"),
)
"""Beginnings of metrics that one more node makes better or leaves: what the search for a fleet rests on."""
_OF_TOKENS: Final = ("ttft", "tpot", "itl")
_EXPECTED: Final = "METRIC<SECONDS or METRIC>FRACTION, such as completion_p99_s<60 or slo_attained>99%"


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric that must not exceed a value, or not fall below it."""

    metric: str
    value: float
    is_least: bool = False

    @classmethod
    def parsed(cls, text: str) -> Objective:
        """From `completion_p99_s<60`. Raises UsageError."""
        found = _OBJECTIVE.fullmatch(text.strip())
        if found is None:
            raise UsageError("cannot be used", field="--slo", value=text, expected=_EXPECTED)
        metric, is_least = _metric(found["metric"], text), found["sign"] == ">"
        if (METRICS[metric].better == "higher") != is_least:
            sign = ">" if METRICS[metric].better == "higher" else "<"
            raise UsageError("the wrong way round", field="--slo", value=text, expected=f"{metric}{sign}…")
        try:
            value = float(found["value"]) * _FACTORS[found["unit"]]
        except ValueError as error:
            raise UsageError("no number", field="--slo", value=found["value"], expected=_EXPECTED) from error
        if not 0.0 < value < float("inf"):
            raise UsageError("out of range", field="--slo", value=text, expected="a value above 0")
        return cls(metric, value, is_least)

    def overshoot(self, metrics: Mapping[str, float]) -> float:
        """How far a run is off, relative to the value: at most 0 where met, inf where it is undefined."""
        found = metrics[self.metric]
        if found != found:
            return float("inf")
        if self.is_least:
            return (self.value - found) / max(1.0 - self.value, 1e-9)
        return found / self.value - 1.0

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.metric}{'>' if self.is_least else '<'}{self.value:g}"


def objectives_of(text: str) -> tuple[Objective, ...]:
    """Objectives separated by commas. Raises UsageError."""
    return tuple(Objective.parsed(part) for part in text.split(","))


def objectives_among(
    text: str | None, metrics: Mapping[str, Metric], title: str, scenario: ScenarioFile
) -> tuple[Objective, ...]:
    """Objectives of these metrics, those of what `title` calls; None has none. Raises UsageError."""
    objectives = () if text is None else objectives_of(text)
    if isinstance(scenario, Scenario):
        refuse_tokens_of_slots(objectives, scenario.cluster)
    for objective in objectives:
        if objective.metric not in metrics:
            expected = f"metrics of {title}"
            raise UsageError("no such metric", field="--slo", value=objective.metric, expected=expected)
    return objectives


def refuse_tokens_of_slots(objectives: Sequence[Objective], cluster: ClusterSpec) -> None:
    """Raises UsageError for objectives of tokens where no node type serves a language model."""
    if any(isinstance(kind.service, ModelService) for kind in cluster.types.values()):
        return
    for objective in objectives:
        if objective.metric.startswith(_OF_TOKENS):
            expected = "a node type with service: {kind: llm, …}, or an objective of completion"
            problem = "is of tokens, but all nodes serve a request a slot"
            raise UsageError(problem, field="--slo", value=str(objective), expected=expected)


def met_by(comparison: Comparison, objectives: Sequence[Objective]) -> dict[str, list[str]]:
    """The policies whose mean meets each objective, best first; one without a rank meets none."""
    ranked = [result for result in comparison.ranked() if result.is_ranked]
    return {
        str(objective): [
            result.policy
            for result in ranked
            if objective.overshoot({objective.metric: result.metrics[objective.metric].mean}) <= 0.0
        ]
        for objective in objectives
    }


def _metric(name: str, text: str) -> str:
    """The metric of a name that may lack its unit; `wait` is queueing, `goodput` the share within SLOs."""
    name = re.sub(r"^wait(?=_)", "queueing", name)
    name = {"goodput": "slo_attained"}.get(name, name)
    for full in (name, f"{name}_s", f"{name}_frac"):
        if full in METRICS and not full.startswith(_HELPED):
            expected = f"metrics that more nodes better: {', '.join(_HELPED)}…; --max-usd-per-hour for cost"
            raise UsageError("no objective of sizing", field="--slo", value=text, expected=expected)
        if full in METRICS and METRICS[full].better is not None:
            return full
    expected = f"{_EXPECTED}; metrics are those of `trimtab metrics`: {nearest(name, METRICS)}"
    raise UsageError("no such metric", field="--slo", value=text, expected=expected)
