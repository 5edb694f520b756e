"""The inputs of a run as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.chains.plan import INPUT, ChainPlan, PlannedStep
from trimtab.chains.run_progress import GivenInputs
from trimtab.live.stage_backend import Ref
from trimtab.live.value_codec import at_path, encode


def sizes(plan: ChainPlan, inputs: Mapping[str, Any]) -> list[float]:
    """How much work an attempt at each stage is, as far as the chain's inputs say; else 1."""
    if not plan.is_sized:
        return [1.0] * len(plan.steps)
    return [_size(step, inputs) for step in plan.steps]


def _size(step: PlannedStep, inputs: Mapping[str, Any]) -> float:
    name = step.stage.stage_options.size
    for argument in step.arguments if name else ():
        source = argument.source
        if argument.name == name and source is not None and source.step == INPUT and not source.each:
            value = at_path(inputs[source.parameter], source.path)
            return float(len(value) if hasattr(value, "__len__") else value)
    return 1.0


def given_inputs(plan: ChainPlan, inputs: Mapping[str, Any], put: Callable[[bytes], Ref]) -> GivenInputs:
    """The values of a run's inputs. Raises Unserialisable, and what a missing path raises."""
    refs = {name: put(encode(value)) for name, value in inputs.items()}
    splits = tuple(
        [tuple([put(encode(item)) for item in at_path(inputs[n], path)]) for n, path in plan.input_splits]
    )
    conditions = [
        (c.parameter, c.path) for c in plan.input_conditions if at_path(inputs[c.parameter], c.path)
    ]
    return GivenInputs(refs, splits, frozenset(conditions))
