"""Seconds of a step from its parts: features of a graph's tasks, and sums over operators.

Graph features: seconds of a task of a computation graph from where it stands and what flows through it.

Idea: degree, depth, bytes in and out, and the kind of operator are known before anything runs; a regression
of logarithms over them predicts the seconds of tasks, and the sum over the graph those of a step.
Source: the survey's third way, in its simplest form: features by hand and a log-linear regression
(`job_metadata`), not a graph neural network.

Composable operators: seconds of a step as the sum of its operators, each measured by itself.

Idea: an operator is measured once for each type of GPU, at a few sizes; any model that is made of known
operators has a predicted step without being run. What an operator of another type of GPU takes follows from
one measurement there, or from the roofline: the slower of arithmetic and memory.
Source: the survey's fourth way; Williams et al., Roofline, CACM 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.performance.job_metadata import JobMetadata
from trimtab.training.performance.profiled_runs import Curves, ProfiledRuns, Samples

GRAPH_NUMBERS = ("in_degree", "out_degree", "in_bytes", "out_bytes", "depth")


def task_samples(
    seconds: Mapping[str, float],
    kinds: Mapping[str, str],
    edges: Sequence[tuple[str, str, float]],
) -> Samples:
    """Rows of the tasks of a graph. `edges`: source, target and bytes; it has no cycle. Counts are plus 1."""
    names = list(seconds)
    place = {name: i for i, name in enumerate(names)}
    n = len(names)
    degree, flow = np.ones((2, n)), np.ones((2, n))
    following: list[list[int]] = [[] for _ in names]
    waits = np.zeros(n, np.int64)
    for source, target, size in edges:
        i, j = place[source], place[target]
        degree[1, i] += 1
        degree[0, j] += 1
        flow[1, i] += size
        flow[0, j] += size
        following[i].append(j)
        waits[j] += 1
    columns = {
        "in_degree": degree[0],
        "out_degree": degree[1],
        "in_bytes": flow[0],
        "out_bytes": flow[1],
        "depth": _depths(following, waits),
        "kind": np.array([kinds[name] for name in names]),
    }
    return Samples(columns, np.array([seconds[name] for name in names], np.float64))


def _depths(following: list[list[int]], waits: np.ndarray) -> np.ndarray:
    """One more than the longest path from a source."""
    depth, left = np.ones(len(following)), waits.copy()
    ready = np.flatnonzero(left == 0).tolist()
    while ready:
        i = ready.pop()
        for j in following[i]:
            depth[j] = max(depth[j], depth[i] + 1)
            left[j] -= 1
            if left[j] == 0:
                ready.append(j)
    return depth


def graph_features(*, with_kind: bool = True) -> JobMetadata:
    """The regression over the features of a graph; without kinds it must do with the graph alone."""
    return JobMetadata(GRAPH_NUMBERS, ("kind",) if with_kind else (), ridge=1e-3)


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
