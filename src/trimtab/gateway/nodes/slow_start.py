"""Slow start: after a fault a node gets one request on trial, then a growing part of its capacity."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.node_state import NodeState


@dataclass(frozen=True, slots=True)
class SlowStartOptions:
    """How fast a node ramps up."""

    slow_start_s: float = 10.0  # from trial to full capacity
    ramp_steps: int = 10  # updates of the capacity on the way
    least_ramp_frac: float = 0.1
    trial_s: float = 5.0  # a trial without a failure ends after this, or with the first good answer


class SlowStart:
    """Trials and ramps. `changed(node)` is called whenever a node may take more or fewer requests."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: SlowStartOptions, changed: Callable[[Node], None]
    ) -> None:
        self._loop, self._options, self._changed = loop, options, changed
        self.on_trial: set[int] = set()  # positions of nodes

    def ramp_frac(self, state: NodeState, now_s: float) -> float:
        """The part of its capacity that a node may use, 0..1; 0 = one request, on trial."""
        if state.is_on_trial:
            return 0.0
        if self._options.slow_start_s <= 0:
            return 1.0
        part = (now_s - state.ramp_from_s) / self._options.slow_start_s
        return min(1.0, max(self._options.least_ramp_frac, part))

    def begin_trial(self, node: Node, state: NodeState) -> None:
        """Allow one request; the ramp follows after `trial_s` without a failure, or a call of `passed`."""
        self.stop(node, state)
        state.ramp_from_s = math.inf
        self.on_trial.add(node.idx)
        state.ramp_timer = self._loop.call_later(self._options.trial_s, self.passed, node, state)
        self._changed(node)

    def passed(self, node: Node, state: NodeState) -> None:
        """The node passed its trial: the ramp begins. Without a trial nothing happens."""
        if state.is_on_trial:
            state.ramp_from_s = self._loop.time()
            self.on_trial.discard(node.idx)
            self._step(node, state, 0)

    def stop(self, node: Node, state: NodeState) -> None:
        """End trial and ramp: the node may use all its capacity."""
        self.on_trial.discard(node.idx)
        state.ramp_from_s = -math.inf
        state.cancel_slow_start()

    def _step(self, node: Node, state: NodeState, step: int) -> None:
        state.cancel_slow_start()
        self._changed(node)
        if step < self._options.ramp_steps and self._options.slow_start_s > 0:
            wait_s = self._options.slow_start_s / self._options.ramp_steps
            state.ramp_timer = self._loop.call_later(wait_s, self._step, node, state, step + 1)
