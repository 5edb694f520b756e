"""Possible work of a scenario, for policies that use rollouts before the first arrival."""

from __future__ import annotations

import functools

import numpy as np

from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy
from trimtab.experiments.scenario.build.run_inputs import build
from trimtab.experiments.scenario.spec.scenario import Scenario

MOST = 1024  # requests
OTHER_SEEDS = 1 << 62  # from here on, so that no run of small seeds is told its own requests


def scenario_workload(
    policy: Policy, scenario: Scenario, seed: int, load: float | None = None
) -> np.ndarray | None:
    """WORK of another seed, for policies that use rollouts; None for a recorded trace."""
    if Need.ROLLOUT not in policy.all_needs or scenario.workload.generate is None:
        return None
    return _declared(scenario, (seed + OTHER_SEEDS) % (2 * OTHER_SEEDS), load)


@functools.lru_cache(maxsize=1)
def _declared(scenario: Scenario, seed: int, load: float | None) -> np.ndarray:
    work: np.ndarray = build(scenario, seed, load).requests.work[:MOST].copy()
    work.flags.writeable = False
    return work
