"""Learns how long stages take on each node type, by the size of the work, and tells the loop.

Chains in virtual time by what their stages cost: as they declare it, or as it was in a recorded run.

No code of a stage runs. An output has as many items as it is told to have, any part of it is there, and
conditions hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.chains.graph import Chain, StageCall
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.domain.cluster import Cluster
from trimtab.engine.live_driver import LiveDriver
from trimtab.errors import UsageError
from trimtab.live.stage_backend import Outcome, StageNode

LEAST_S = 1e-6  # expected service, so that no stage seems to take no time
WEIGHT = 0.1  # of a new measurement, once there are ten of them
KEEP = 0.98  # of the weight of earlier measurements at each new one
SPREAD = 0.05  # relative spread of sizes from which a slope is fitted


class Line:
    """service = fixed + unit · size by least squares, with weights that fade."""

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, size: float, service_s: float) -> None:
        """A measurement."""
        self.seen += 1
        self._n = KEEP * self._n + 1.0
        self._x = KEEP * self._x + size
        self._y = KEEP * self._y + service_s
        self._xx = KEEP * self._xx + size * size
        self._xy = KEEP * self._xy + size * service_s

    def fitted(self) -> tuple[float, float]:
        """(fixed_s, unit_s), neither below 0. One size, or nearly: proportional to it."""
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance > (SPREAD * mean_x) ** 2:
            unit_s = max(0.0, (self._xy / self._n - mean_x * mean_y) / variance)
            fixed_s = mean_y - unit_s * mean_x
            if fixed_s >= 0.0:
                return fixed_s, unit_s
        return 0.0, mean_y / mean_x if mean_x > 0.0 else mean_y


class Costs:
    """Service by size and node type, output sizes and numbers of instances."""

    def __init__(self, live: LiveDriver, cluster: Cluster) -> None:
        classes, types = cluster.fixed_s.shape
        self._live, self._type_idx = live, cluster.type_idx.tolist()
        self._fits = (cluster.fixed_s < float("inf")).tolist()
        # Plain lists: a number of an array takes ten times as long to read.
        self._fixed_s, self._unit_s = cluster.fixed_s.tolist(), cluster.unit_s.tolist()
        self._lines = [[Line() for _ in range(types)] for _ in range(classes)]
        self._output_gib, self._outputs = [0.0] * classes, [0] * classes
        self._count, self._counted = [1.0] * classes, [0] * classes
        self._error_s, self._total_s = [0.0] * classes, [0.0] * classes

    def learn(self, class_idx: int, node: int, size: float, outcome: Outcome, output_gib: float) -> None:
        """An attempt at work of a size took this long on a node."""
        c, g, service_s = class_idx, self._type_idx[node], outcome.service_s
        if self._outputs[c]:  # before, nothing is expected but by a hint
            self._error_s[c] += abs(service_s - self._fixed_s[c][g] - self._unit_s[c][g] * size)
            self._total_s[c] += service_s
        lines = self._lines[c]
        lines[g].add(size, service_s)
        self._tell(c, g, *lines[g].fitted())
        self._outputs[c] += 1
        self._output_gib[c] += max(WEIGHT, 1.0 / self._outputs[c]) * (output_gib - self._output_gib[c])
        if lines[g].seen == 1 and sum(line.seen for line in lines) == 1:
            for other, fits in enumerate(self._fits[c]):
                if fits and other != g:  # until it is measured, it is taken to be as fast
                    self._tell(c, other, self._fixed_s[c][g], self._unit_s[c][g])

    def _tell(self, c: int, g: int, fixed_s: float, unit_s: float) -> None:
        self._fixed_s[c][g], self._unit_s[c][g] = fixed_s, unit_s
        self._live.set_estimate(c, g, max(LEAST_S, fixed_s), unit_s)

    def is_learned(self, class_idx: int) -> bool:
        """Whether an attempt has been measured."""
        return self._outputs[class_idx] > 0

    def expected_s(self, class_idx: int, node: int, size: float) -> float:
        """Expected service of work of a size on a node; inf = it fits not."""
        g = self._type_idx[node]
        return float(self._fixed_s[class_idx][g] + self._unit_s[class_idx][g] * size)

    def mean_s(self, class_idx: int) -> float:
        """Mean service; 0 = nothing measured."""
        return self._total_s[class_idx] / max(1, self._outputs[class_idx])

    def learn_count(self, class_idx: int, count: int) -> None:
        """A map had this many instances."""
        self._counted[class_idx] += 1
        weight = max(WEIGHT, 1.0 / self._counted[class_idx])
        self._count[class_idx] += weight * (count - self._count[class_idx])

    def output_gib(self, class_idx: int) -> float:
        """Expected size of an output."""
        return self._output_gib[class_idx]

    def count(self, class_idx: int) -> float:
        """Expected number of instances."""
        return self._count[class_idx]

    def error_frac(self, class_idx: int) -> float:
        """Mean absolute error of the expected service, by the mean service; nan = fewer than two measured."""
        total_s = self._total_s[class_idx]
        return self._error_s[class_idx] / total_s if total_s > 0.0 else float("nan")


@dataclass(frozen=True, slots=True)
class ChainCosts:
    """What stages cost, by their names; a stage that is not named costs what it declares (`cost_s`).

    Args:
        service_s: seconds of an attempt at speed 1, for each unit of the stage's `size`.
        load_s: seconds before a worker's first attempt.
        items: items in the output of a stage that is mapped over.
    """

    service_s: Mapping[str, float] = field(default_factory=dict)
    load_s: Mapping[str, float] = field(default_factory=dict)
    items: Mapping[str, int] = field(default_factory=dict)


def workers_by_cost(
    chain: Chain, nodes: Sequence[StageNode], speeds: Mapping[str, float], costs: ChainCosts
) -> SimulatedWorkers:
    """Simulated workers for a chain. Raises UsageError with the stages of which too little is known."""
    _check_names(chain, costs)
    unknown = [step.name for step in chain.steps if not _service_s(step, costs)]
    if unknown:
        raise UsageError(
            "declares no cost", field=f"{chain.name}.cost_s", value=", ".join(unknown),
            expected="seconds of an attempt: @stage(cost_s=…), or a recorded run (--like RUN)",
        )  # fmt: skip
    uncounted = [step.name for step in chain.steps if step.splits and step.name not in costs.items]
    if uncounted:
        raise UsageError(
            "is mapped over, and nothing says how many items it makes", field=f"{chain.name}.items",
            value=", ".join(uncounted), expected="a count for each (--items STAGE=COUNT)",
        )  # fmt: skip
    stand_ins = {step.code_name: _stand_in(step, costs) for step in chain.steps}
    return SimulatedWorkers(nodes, stand_ins, speeds)


def _check_names(chain: Chain, costs: ChainCosts) -> None:
    known = [step.name for step in chain.steps]
    for name in (*costs.service_s, *costs.load_s, *costs.items):
        if name not in known:
            raise UsageError("no such stage", field=chain.name, value=name, expected=", ".join(known))


def _service_s(step: StageCall, costs: ChainCosts) -> float:
    return costs.service_s.get(step.name, step.stage.stage_options.cost_s)


def _stand_in(step: StageCall, costs: ChainCosts) -> StandIn:
    stage, each_s = step.stage, _service_s(step, costs)
    size, count = stage.stage_options.size, costs.items.get(step.name, 1)

    def service_s(**given: Any) -> float:
        """Of an attempt; of a batch, that of its instances one by one."""
        if stage.is_batched:
            first = next(iter(given.values()), [None])
            return each_s * sum(_units(item) for item in given.get(size, first))
        return each_s * _units(given.get(size))

    made = _Batch(count) if stage.is_batched else _Single(count)
    return StandIn(service_s, made, load_s=costs.load_s.get(step.name, 0.0))


def _units(given: Any) -> float:
    """How much work an argument says that it is; 1 if it is not known."""
    if given is None or isinstance(given, NoValue):
        return 1.0
    return float(len(given)) if hasattr(given, "__len__") else float(given)


class NoValue:
    """Stands for an output that was not computed, or a part of one: a list of `count` of its kind."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NoValue]:
        return iter([self] * self._count)

    def __getitem__(self, _: str | int) -> NoValue:
        return self

    def keys(self) -> tuple[str, ...]:
        """None by name, and yet any name is found."""
        return ()


@dataclass(frozen=True, slots=True)
class _Single:
    """The code of a stand-in."""

    count: int

    def __call__(self, **_: Any) -> NoValue:
        return NoValue(self.count)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The code of a stand-in whose instances are served together."""

    count: int

    def __call__(self, **given: Any) -> list[NoValue]:
        return [NoValue(self.count) for _ in next(iter(given.values()), [None])]
