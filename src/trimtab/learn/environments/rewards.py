"""What an agent that dispatches requests is rewarded for.

Every reward is a mean over the requests of an episode, spread over its steps: the sum of an episode's rewards
is a figure of that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.engine.state import State
from trimtab.errors import UsageError
from trimtab.experiments.scenario.build import RunInputs
from trimtab.validation.names import nearest


class Reward(NamedTuple):
    """A reward: its unit, and what the rewards of an episode add up to."""

    unit: str
    total: str


REWARDS: Final[Mapping[str, Reward]] = {
    "completion": Reward("s", "− mean completion: seconds from arrival to end"),
    "tail": Reward("s²", "− mean squared completion, in which the slowest requests count most"),
    "utilisation": Reward("share of slots", "+ slot seconds computed, of all until the last arrival"),
    "slo": Reward("share of requests", "− requests not served within the `slo_s` of their class"),
    "cost": Reward("USD", "− mean price of the slot time that requests held, loads included"),
}
COMPLETION, TAIL, UTILISATION, SLO, COST = range(len(REWARDS))

# `tally` of a run: sums so far; then seconds until the last arrival, of a usual request, and slots
N_TALLIES: Final = 6
IN_SYSTEM_S, BUSY_S, PAID_USD, SPAN_S, USUAL_S, SLOTS = range(N_TALLIES)

_FINISHED = int(Status.FINISHED)


def weights_of(reward: str | Mapping[str, float], known: Mapping[str, Reward]) -> np.ndarray:
    """Weight of each known reward, from a name or from names with weights. Raises UsageError."""
    given = {reward: 1.0} if isinstance(reward, str) else dict(reward)
    for name in given:
        if name not in known:
            expected = nearest(name, tuple(known))
            raise UsageError("is no reward", field="reward", value=name, expected=expected)
    return np.array([float(given.get(name, 0.0)) for name in known])


def check_reward(weights: np.ndarray, inputs: RunInputs) -> None:
    """Refuse a reward that a scenario cannot give. Raises UsageError."""
    if weights[SLO] != 0.0 and not np.isfinite(inputs.slo_s).any():
        raise UsageError("no class has a target", field="reward", value="slo", expected="`slo_s` of classes")
    if weights[COST] != 0.0 and not inputs.cluster.usd_per_hour.any():
        expected = "`usd_per_hour` of node types"
        raise UsageError("no node has a price", field="reward", value="cost", expected=expected)


@helper
def _ended(s: State, weights: Any, open_from: int, limit_s: Any, counted: Any) -> tuple[float, int]:
    """Reward for the requests that ended since it was last asked, and the first request not over."""
    total = 0.0
    for i in range(open_from, s.counts.arrived[0]):
        if counted[i] == 0 and s.requests.status[i] >= _FINISHED:
            counted[i] = 1
            is_served = s.requests.status[i] == _FINISHED
            end_s = s.requests.finish_s[i] if is_served else s.requests.ended_s[i]
            took_s = end_s - s.work.arrival_s[i]
            total -= weights[TAIL] * took_s * took_s
            if s.config.runs[0] == 1:
                total -= weights[COMPLETION] * took_s
            if not is_served or took_s > limit_s[i]:
                total -= weights[SLO]
        if counted[i] == 1 and i == open_from:
            open_from += 1
    return total, open_from


@helper
def _of_nodes(s: State, weights: Any, tally: Any, n: int) -> float:
    """Reward for the slot time of services that ended since it was last asked."""
    busy_s, paid_usd = 0.0, 0.0
    for j in range(len(s.nodes.up)):
        busy_s += s.hidden.busy_slot_s[j]
        usd_per_s = s.views[0].usd_per_s[s.nodes.type_idx[j]]
        paid_usd += s.hidden.allocated_slot_s[j] * usd_per_s / max(1, s.nodes.slots[j])
    total = weights[UTILISATION] * (busy_s - tally[BUSY_S]) / (tally[SLOTS] * max(tally[SPAN_S], 1e-9))
    total -= weights[COST] * (paid_usd - tally[PAID_USD]) / n
    tally[BUSY_S], tally[PAID_USD] = busy_s, paid_usd
    return float(total)


@helper
def reward_since(
    s: State, weights: Any, tally: Any, open_from: int, limit_s: Any, counted: Any
) -> tuple[float, int]:
    """Reward since it was last asked, and the first request that is not over.

    weights [rewards]; tally [N_TALLIES]; limit_s, counted [requests].
    """
    n, total, is_chained = max(1, s.counts.work[0]), 0.0, s.config.runs[0] == 1
    if weights[COMPLETION] != 0.0 and not is_chained:
        total -= weights[COMPLETION] * (s.counts.in_system_s[0] - tally[IN_SYSTEM_S]) / n
        tally[IN_SYSTEM_S] = s.counts.in_system_s[0]
    if weights[TAIL] != 0.0 or weights[SLO] != 0.0 or (weights[COMPLETION] != 0.0 and is_chained):
        ended, open_from = _ended(s, weights, open_from, limit_s, counted)
        total += ended / n
    if weights[UTILISATION] != 0.0 or weights[COST] != 0.0:
        total += _of_nodes(s, weights, tally, n)
    return total, open_from
