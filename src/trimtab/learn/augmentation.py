"""Training on variations of the workloads that there are, so that weights do not fit these alone.

Sources: requests resampled in blocks, Hans Künsch, "The jackknife and the bootstrap for general stationary
observations", Annals of Statistics 17(3), 1989, section 2 (blocks that may overlap); rates and speeds drawn
anew for each workload, Josh Tobin, Rachel Fong, Alex Ray, Jonas Schneider, Wojciech Zaremba, Pieter Abbeel,
"Domain randomization for transferring deep neural networks from simulation to the real world", IROS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.scenario.spec.cluster_section import NodeType
from trimtab.experiments.scenario.spec.service_classes import ServiceClass

OPTION: Final = "--augment"
_DEFAULTS: Final = {"rates": 0.2, "speeds": 0.1}
_MOST: Final = 1.0
_BLOCKS: Final = 20  # of which resampled requests are put together
_STREAM: Final = 3  # of the random numbers of a workload: apart from those of its requests


@dataclass(frozen=True)
class Augmentation:
    """What is varied.

    Attributes:
        rates: the load is multiplied by e to the power of a number that is uniform within ± this.
        speeds: the speed of each type of node by e to the power of a normal number with this deviation.
        resample: requests are drawn with replacement, in blocks of consecutive ones.
    """

    rates: float = 0.0
    speeds: float = 0.0
    resample: bool = False

    @classmethod
    def parsed(cls, text: str) -> Augmentation:
        """From `resample,rates=0.2,speeds=0.1`; amounts may be left out. Raises UsageError."""
        found: dict[str, float | bool] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, amount = part.partition("=")
            if part == "resample":
                found[name] = True
            elif name in _DEFAULTS:
                found[name] = _amount(part, amount) if amount else _DEFAULTS[name]
            else:
                expected = "resample, rates, speeds, or several of them, such as resample,rates=0.2"
                raise UsageError("is nothing to vary", field=OPTION, value=part, expected=expected)
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """As it is written."""
        amounts = [f"{name}={getattr(self, name):g}" for name in _DEFAULTS if getattr(self, name)]
        return ",".join(["resample"] * self.resample + amounts)

    def scenario(self, scenario: Scenario, i: int) -> Scenario:
        """The scenario of workload i, with its load and speeds drawn. Raises UsageError."""
        draw = np.random.default_rng((_STREAM, i))
        by, normal = draw.uniform(-1.0, 1.0), draw.standard_normal(len(scenario.cluster.types))
        if self.speeds:
            speeds = (math.exp(self.speeds * x) for x in normal.tolist())
            scenario = _with_speeds(scenario, dict(zip(scenario.cluster.types, speeds, strict=True)))
        if self.rates:
            load = scenario.workload.load or build(scenario, i).offered_load
            if not 0.0 < load < math.inf:
                expected = "requests that arrive one after the other, and that nodes can serve"
                raise UsageError("has no load to vary", field=OPTION, value="rates", expected=expected)
            scenario = scenario.with_overrides(load=load * math.exp(self.rates * by))
        return scenario

    def inputs(self, inputs: RunInputs, i: int) -> RunInputs:
        """The inputs of workload i, with their requests drawn. Raises UsageError for runs of chains."""
        return resampled(inputs, i) if self.resample else inputs


UNCHANGED: Final = Augmentation()


def resampled(inputs: RunInputs, i: int) -> RunInputs:
    """As many requests, drawn in blocks of consecutive ones with their gaps. Raises UsageError for chains."""
    n, work = len(inputs.requests), inputs.requests.work
    length = max(1, n // _BLOCKS)
    begins = np.random.default_rng((_STREAM, i, 1)).integers(n - length + 1, size=math.ceil(n / length))
    rows = (begins[:, None] + np.arange(length)).ravel()[:n]
    gaps_s = np.diff(work["arrival_s"], prepend=work["arrival_s"][:1])
    gaps_s[0] = gaps_s.sum() / max(1, n - 1)
    arrival_s = work["arrival_s"][0] + np.cumsum(gaps_s[rows]) - gaps_s[rows[0]]
    span_s, was_s = arrival_s[-1] - arrival_s[0], work["arrival_s"][-1] - work["arrival_s"][0]
    load = inputs.offered_load * was_s / span_s if span_s > 0.0 else math.inf
    return replace(inputs, requests=inputs.requests.taken(rows, arrival_s), offered_load=float(load))


def _amount(part: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0.0 < amount <= _MOST:
        raise UsageError("is no amount", field=OPTION, value=part, expected=f"above 0, at most {_MOST:g}")
    return amount


def _with_speeds(scenario: Scenario, factors: dict[str, float]) -> Scenario:
    """The scenario with nodes of each type this many times as fast. Raises UsageError for engines."""

    def faster(name: str, kind: NodeType) -> NodeType:
        if kind.service is not None:
            expected = "nodes that serve one request a slot; --augment resample,rates works for all"
            raise UsageError("has an engine", field=f"cluster.types.{name}.service", expected=expected)
        return kind.model_copy(update={"speed": kind.speed * factors[name]})

    def sooner(service: ServiceClass) -> ServiceClass:
        tables = {}
        for key in ("fixed_s", "unit_s"):
            table = getattr(service, key)
            if not isinstance(table, float):
                tables[key] = {name: s if s is None else s / factors[name] for name, s in table.items()}
        return service.model_copy(update=tables)

    types = {name: faster(name, kind) for name, kind in scenario.cluster.types.items()}
    classes = {name: sooner(service) for name, service in scenario.classes.items()}
    return scenario.replaced(cluster=scenario.cluster.model_copy(update={"types": types}), classes=classes)
