"""Short stages that run one after the other in one attempt, so that the way to the worker is paid once.

A chain's plan says which stage may follow which. Whether they are short enough is decided as the first one
starts, from what is expected of each on its node: at first what they declare, then what is measured.

Each stage keeps its own attempts, results and errors. An instance runs with others in its first attempt only,
so that after a lost worker or a timeout each one answers for itself.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import Instance
from trimtab.chains.run_state import ItemRun
from trimtab.live.stage_backend import BEFORE, Argument, Attempt, Following


class Fusion:
    """Makes attempts of one stage or of several.

    Args:
        below_s: expected service of each of several; 0 = every stage has an attempt of its own.
    """

    def __init__(self, host: HostState, below_s: float) -> None:
        self._host, self._below_s = host, below_s

    def new_attempt(self, item: ItemRun, at: Instance, node: int) -> Attempt:
        """The next attempt at an instance, with those that follow it. They count as begun."""
        following: Following | None = None
        for member in reversed(self._after(item, at, node)):
            attempt = item.attempts[member] = item.new_attempt(member, following)
            following = Following(attempt, self._inputs(item, member))
        attempt = item.attempts[at] = item.new_attempt(at, following)
        return attempt

    def _after(self, item: ItemRun, at: Instance, node: int) -> list[Instance]:
        """The instances that run with this one."""
        found: list[Instance] = []
        if self._is_short(item, at, node):
            after = item.after(at)
            while after is not None and self._is_short(item, after, node):
                found.append(after)
                after = item.after(after)
        return found

    def _is_short(self, item: ItemRun, at: Instance, node: int) -> bool:
        if item.tried.get(at, 0) or (item.number, at) in item.run.known:
            return False
        c = self._host.class_of(item.run.plan.steps[at.step])
        return self._host.loop.costs.expected_s(c, node, item.sizes[at.step]) < self._below_s

    def _inputs(self, item: ItemRun, at: Instance) -> list[Argument]:
        """The arguments of an instance. What is missing is the output of the one before."""
        return [
            replace(argument, refs=tuple(BEFORE if ref is None else ref for ref in argument.refs))
            for argument in self._host.arguments(item, at)
        ]
