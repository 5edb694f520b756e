"""Two unequal servers and a policy that splits Poisson arrivals at random: each server is an M/M/1 queue."""

from __future__ import annotations

import numpy as np

from support.formulas import mg1_wait_s

FAST_S, SLOW_S, ARRIVALS_PER_S = 0.5, 1.0, 1.8

SCENARIO = f"""
name: split
cluster:
  types: {{fast: {{memory_gib: 1, speed: {1.0 / FAST_S}}}, slow: {{memory_gib: 1, speed: {1.0 / SLOW_S}}}}}
  nodes: [{{type: fast}}, {{type: slow}}]
classes: {{chat: {{unit_s: 1.0}}}}
workload:
  generate:
    requests: REQUESTS
    arrival: {{process: poisson, rate_per_s: {ARRIVALS_PER_S}}}
    mix: {{chat: {{share: 1}}}}
    size: {{distribution: exponential, mean: 1}}
"""

POLICIES = """
from dataclasses import dataclass
from typing import Annotated

import trimtab as tt
from trimtab.domain.parameters import Range, Tunable


@dataclass(frozen=True)
class Split(tt.Policy):
    draws = 1
    fast: Annotated[float, Range(0.0, 1.0), Tunable(0.3, 0.95)] = 0.6

    def init(self, cluster):
        return tt.memory(params=[self.fast])

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 0 if draws[0] < memory.params[0] else 1
        return 1


@dataclass(frozen=True)
class Idle(Split):
    without_effect: Annotated[float, Tunable(0.1, 10.0, "log")] = 1.0
    fast: float = 0.7


class Fixed(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 0
        return 1
"""


def mean_s(fast: float) -> float:
    """Mean completion where this share goes to the fast server."""
    shares = ((fast, FAST_S), (1.0 - fast, SLOW_S))
    return sum(share * (s + mg1_wait_s(share * ARRIVALS_PER_S, s, 1.0)) for share, s in shares)


def best_share() -> float:
    """The share of the fast server that is best, on a grid of 0.001."""
    grid = np.arange(0.46, 0.999, 0.001)
    return float(min(grid, key=mean_s))
