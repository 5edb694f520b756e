"""Chains in virtual time by what their stages cost: as they declare it, or as it was in a recorded run.

No code of a stage runs. An output has as many items as it is told to have, any part of it is there, and
conditions hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.chains.plan import ChainPlan, PlannedStage
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode


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
    plan: ChainPlan, nodes: Sequence[StageNode], speeds: Mapping[str, float], costs: ChainCosts
) -> SimulatedWorkers:
    """Simulated workers for a chain. Raises UsageError with the stages of which too little is known."""
    _check_names(plan, costs)
    unknown = [step.name for step in plan.steps if not _service_s(step, costs)]
    if unknown:
        raise UsageError(
            "declares no cost", field=f"{plan.name}.cost_s", value=", ".join(unknown),
            expected="seconds of an attempt: @stage(cost_s=…), or a recorded run (--like RUN)",
        )  # fmt: skip
    uncounted = [step.name for step in plan.steps if step.splits and step.name not in costs.items]
    if uncounted:
        raise UsageError(
            "is mapped over, and nothing says how many items it makes", field=f"{plan.name}.items",
            value=", ".join(uncounted), expected="a count for each (--items STAGE=COUNT)",
        )  # fmt: skip
    stand_ins = {step.code_name: _stand_in(step, costs) for step in plan.steps}
    return SimulatedWorkers(nodes, stand_ins, speeds)


def _check_names(plan: ChainPlan, costs: ChainCosts) -> None:
    known = [step.name for step in plan.steps]
    for name in (*costs.service_s, *costs.load_s, *costs.items):
        if name not in known:
            raise UsageError("no such stage", field=plan.name, value=name, expected=", ".join(known))


def _service_s(step: PlannedStage, costs: ChainCosts) -> float:
    return costs.service_s.get(step.name, step.stage.stage_options.cost_s)


def _stand_in(step: PlannedStage, costs: ChainCosts) -> StandIn:
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
