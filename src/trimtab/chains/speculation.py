"""Second attempts at instances that take much longer than expected. The first result counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import Instance
from trimtab.chains.run_state import ItemRun
from trimtab.live.stage_backend import Attempt

LEAST_S: Final = 0.05  # stages that take less are not watched any closer


class Speculation:
    """Watches the attempts of stages with `speculate`.

    Args:
        begin: sends a further attempt at an instance to a node, with its expected service.
    """

    def __init__(self, host: HostState, begin: Callable[[ItemRun, Instance, int, float], None]) -> None:
        self._host, self._begin = host, begin

    def watch(self, item: ItemRun, at: Instance, attempt: Attempt, node: int) -> None:
        """An attempt has been sent."""
        step = item.run.plan.steps[at.step]
        multiple = step.stage.stage_options.speculate
        if multiple > 0.0:
            costs, c = self._host.loop.costs, self._host.class_of(step)
            expected_s = costs.expected_s(c, node, item.sizes[at.step]) if costs.is_learned(c) else 0.0
            self._look_in(max(LEAST_S, multiple * expected_s), item, at, attempt, node)

    def forget(self, item: ItemRun, at: Instance) -> None:
        """An instance is over, or its second attempt is."""
        if (copy := item.copies.pop(at, None)) is not None:
            self._host.loop.add_load(copy.node, -1, -copy.expected_s)

    def _look_in(self, wait_s: float, item: ItemRun, at: Instance, attempt: Attempt, node: int) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._look, item, at, attempt, node)

    def _look(self, item: ItemRun, at: Instance, attempt: Attempt, node: int) -> None:
        """The attempt has taken as long as it may. Where no other node has room it is looked at again."""
        if item.attempts.get(at) is not attempt or at in item.copies:
            return
        host, size = self._host, item.sizes[at.step]
        c = host.class_of(item.run.plan.steps[at.step])
        other = -1
        if host.loop.costs.is_learned(c):
            other = host.loop.other_node(item.row(at), node, c, size)
        if other < 0:
            self._look_in(LEAST_S, item, at, attempt, node)
            return
        expected_s = host.loop.costs.expected_s(c, other, size)
        host.loop.add_load(other, 1, expected_s)
        item.run.counts[at.step].copies += 1
        self._begin(item, at, other, expected_s)
