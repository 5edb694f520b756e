"""How much work a node gets when it is back after a fault: one request on trial, then a ramp."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.condition import Condition


@dataclass(frozen=True, slots=True)
class WarmingOptions:
    """How long it takes."""

    slow_start_s: float = 10.0  # from trial to full capacity
    ramp_steps: int = 10  # how often listeners hear of it
    least_ramp_frac: float = 0.1
    trial_s: float = 5.0  # a trial without a failure ends after this, or with the first good answer


class Warming:
    """Trials and ramps. `tell(node)` is called whenever a node may take more, or less."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: WarmingOptions, tell: Callable[[Node], None]
    ) -> None:
        self._loop, self._options, self._tell = loop, options, tell
        self.on_trial: set[int] = set()  # positions of nodes

    def ramp_frac(self, condition: Condition, now_s: float) -> float:
        """What part of its capacity a node may use, 0..1: 0 = one request, on trial."""
        if condition.is_on_trial:
            return 0.0
        if self._options.slow_start_s <= 0:
            return 1.0
        part = (now_s - condition.warm_from_s) / self._options.slow_start_s
        return min(1.0, max(self._options.least_ramp_frac, part))

    def begin_trial(self, node: Node, condition: Condition) -> None:
        """One request; after a while without a failure, or when `passed` is called, the ramp."""
        self.stop(node, condition)
        condition.warm_from_s = math.inf
        self.on_trial.add(node.idx)
        condition.warm_timer = self._loop.call_later(self._options.trial_s, self.passed, node, condition)
        self._tell(node)

    def passed(self, node: Node, condition: Condition) -> None:
        """Its trial was passed: the ramp begins. Without a trial nothing happens."""
        if condition.is_on_trial:
            condition.warm_from_s = self._loop.time()
            self.on_trial.discard(node.idx)
            self._step(node, condition, 0)

    def stop(self, node: Node, condition: Condition) -> None:
        """Neither trial nor ramp any more: it counts as warm."""
        self.on_trial.discard(node.idx)
        condition.warm_from_s = -math.inf
        condition.cancel_warming()

    def _step(self, node: Node, condition: Condition, step: int) -> None:
        condition.cancel_warming()
        self._tell(node)
        if step < self._options.ramp_steps and self._options.slow_start_s > 0:
            wait_s = self._options.slow_start_s / self._options.ramp_steps
            condition.warm_timer = self._loop.call_later(wait_s, self._step, node, condition, step + 1)
