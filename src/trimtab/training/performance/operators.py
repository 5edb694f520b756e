"""Composable operators: seconds of a step as the sum of its operators, each measured by itself.

Idea: an operator is measured once for each type of GPU, at a few sizes; any model that is made of known
operators has a predicted step without being run. What an operator of another type of GPU takes follows from
one measurement there, or from the roofline: the slower of arithmetic and memory.
Source: the survey's fourth way; Williams et al., Roofline, CACM 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.performance.profiled_runs import Curves, ProfiledRuns
from trimtab.training.performance.samples import Samples

OPERATORS = ProfiledRuns(along="size", groups=("operator",))
"""One curve for each operator, by its size, such as tokens."""


@dataclass(frozen=True)
class Step:
    """The parts of a step."""

    operators: tuple[str, ...]
    sizes: tuple[float, ...]
    times: tuple[int, ...]  # how often each runs, such as once a layer


def step_seconds(curves: Curves, steps: Sequence[Step]) -> Floats:
    """The sum over the operators of each step; nan where one was never measured."""
    found = []
    for step in steps:
        columns = {"operator": np.array(step.operators), "size": np.array(step.sizes, np.float64)}
        each = curves.seconds(Samples(columns, np.full(len(step.operators), np.nan)))
        found.append(float((each * np.array(step.times)).sum()))
    return np.array(found)


@dataclass(frozen=True)
class GpuRates:
    """The limits of a type of GPU."""

    flop_per_s: float
    bytes_per_s: float


def roofline_seconds(flop: float, moved_bytes: float, gpu: GpuRates) -> float:
    """No fewer: arithmetic and memory overlap at best."""
    return max(flop / gpu.flop_per_s, moved_bytes / gpu.bytes_per_s)
