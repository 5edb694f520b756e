"""The log of decisions: what was known, the shadow policy's choices, failures of policies, time taken."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import NamedTuple

import numpy as np

from trimtab.domain.view import Plan
from trimtab.engine.run_row_writer import record_struct
from trimtab.engine.state import DECISION
from trimtab.gateway.decide.pool import PolicyPool, Turned
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.shadow import ShadowStatistics
from trimtab.gateway.model import DecisionListener, Exchange

logger = logging.getLogger(__name__)


_new = tuple.__new__
_node_idx = record_struct(DECISION, ("node_idx",)).unpack  # on the path of recorded requests


class Decision(NamedTuple):
    """The latest decision about a request: what the dispatcher knew and chose."""

    policy: str
    nodes: tuple[str, ...]  # names of all nodes, by position
    packed: bytes  # of its record
    matched: Mapping[int, int]  # node → blocks of the prompt that it seems to have
    fallback: bool

    @property
    def record(self) -> np.void:
        """The record, as `DECISION` declares it."""
        record: np.void = np.frombuffer(self.packed, DECISION)[0]
        return record

    @property
    def node_idx(self) -> tuple[int, ...]:
        """The candidates' positions, best first."""
        return tuple([j for j in _node_idx(self.packed) if j >= 0])


class DecisionLog:
    """Observes decisions; nothing here changes one."""

    def __init__(self, registry: Registry) -> None:
        self.decision_s = 0.0  # running mean of the timed decisions; 0 = none yet
        self.shadow = ShadowStatistics()
        self.listeners: list[DecisionListener] = []
        self._registry = registry

    def timed_turn(self, pool: PolicyPool, now_s: float) -> Turned:
        """A turn with its duration measured, per new request."""
        n_new, begun_s = len(pool.newcomers), perf_counter()  # a plan that comes meanwhile settles them
        turned = pool.turn(now_s)
        took_s = (perf_counter() - begun_s) / n_new
        self.decision_s = took_s if not self.decision_s else 0.9 * self.decision_s + 0.1 * took_s
        return turned

    def decision(self, pool: PolicyPool, exchange: Exchange) -> Decision:
        """The decision that started a request."""
        packed = pool.live.decision(exchange.row)
        values = pool.choice.spec, self._registry.names, packed, exchange.matched, pool.failed > 0
        return _new(Decision, values)  # the constructor takes twice as long

    def compare_with_shadow(self, pool: PolicyPool, newcomers: Iterable[Exchange]) -> None:
        """Compare the decisions of both policies."""
        noted, decisions = pool.live.decisions, []
        for exchange in newcomers:
            if exchange.tenant is not None and exchange.tenant.is_private:
                continue
            live_idx, home_idx, row = exchange.node_idx, exchange.spec.affinity_node_idx, exchange.row
            live_s = noted.estimate_s[row] if live_idx >= 0 else 0.0
            decisions.append((live_idx, home_idx, noted.shadow_idx[row], live_s, noted.shadow_s[row]))
        self.shadow.note(decisions)

    def failures(self, pool: PolicyPool) -> None:
        """Log the failures of the policy in the pool's last turn."""
        count = pool.policy_failures
        if count.bit_length() != (count - pool.failed).bit_length():  # the 1st, the 2nd, the 4th …
            logger.error("%s; least connections decides instead (%d so far)", pool.live.last_failure, count)
        for _ in range(pool.failed):
            for listener in self.listeners:
                listener.policy_failed(pool.choice.spec)

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A plan of the policy takes force."""
        for listener in self.listeners:
            listener.plan_changed(policy, plan)
