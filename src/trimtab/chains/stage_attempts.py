"""Attempts at stages within their limits; second ones at instances that take much longer than expected."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Final

from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import Copy, Ended, ItemRun, Sent
from trimtab.chains.stage_limits import LimitedStages
from trimtab.chains.value_budget import ValueBudget
from trimtab.live.stage_backend import BEFORE, Argument, Attempt, Following, Outcome

LEAST_S: Final = 0.05  # stages that take less are not watched any closer


class StageAttempts:
    """Makes attempts, and tells which outcomes count. Of two attempts at an instance the first result counts.

    Args:
        budget: of values, which may hold attempts back.
        fuse_s: see `Fusion`.
    """

    def __init__(self, host: HostState, budget: ValueBudget, limits: LimitedStages, fuse_s: float) -> None:
        self._host, self._budget, self._limits = host, budget, limits
        self._fusion = Fusion(host, fuse_s)

    def begin(self, item: ItemRun, at: StageInstance, node: int) -> Sent | Ended | None:
        """What to send for an instance that the loop has placed; its end, if it is known; None: it waits."""
        if self._budget.holds_back(item, at):
            self._limits.pass_by(item, at)
            return None
        if self._limits.holds_back(item, at):
            return None
        item.run.counts[at.step].queued -= 1
        if (served := item.served.pop(at, None)) is not None:  # it failed in an attempt before
            return served
        attempt = self._fusion.new_attempt(item, at, node)
        for member in item.in_turn(at, attempt):
            item.run.counts[member.step].running += 1
        return Sent(node, [(item, at, attempt)])

    def end_all(self, item: ItemRun) -> None:
        """Cancel the attempts of a run that is over."""
        for attempt in (*item.attempts.values(), *(copy.attempt for copy in item.copies.values())):
            self._host.backend.cancel(attempt)
        for at in list(item.copies):
            self._forget_copy(item, at)
        for at in item.attempts:
            item.run.counts[at.step].running -= 1
            step = item.run.chain.steps[at.step]
            if not step.stage.is_batched:  # its batch goes on
                self._limits.end(step)
        item.attempts.clear()
        self._limits.end_run(item)

    def start(self, sent: Sent) -> tuple[Sent, Awaitable[Outcome]] | None:
        """Start an attempt that the journal has. None: it has ended meanwhile."""
        item, at, attempt = sent.members[0]
        if not _is_awaited(item, at, attempt):
            return None
        return sent, self._host.start(sent.node, attempt, self._host.arguments(item, at))

    def take(self, sent: Sent, outcome: Outcome) -> Iterator[Ended]:
        """The end of an attempt, if a caller still waits for it."""
        item, at, attempt = sent.members[0]
        if not _is_awaited(item, at, attempt):  # the run is over, or another attempt took its place
            self._host.refs.drop(outcome.values)
            return
        if outcome.error is not None and self._goes_on(item, at, attempt):
            return
        self._end_others(item, at, attempt)
        for member in item.in_turn(at, attempt):
            del item.attempts[member]
            item.run.counts[member.step].running -= 1
        self._limits.end(item.run.chain.steps[at.step])
        yield Ended(item, at, attempt, sent.node, outcome)

    # Second attempts.

    def look_in_s(self, sent: Sent) -> float:
        """How long an attempt may take until a second one is wanted; 0 = as long as it likes."""
        item, at, _ = sent.members[0]
        step = item.run.chain.steps[at.step]
        multiple = step.stage.stage_options.speculate
        if multiple <= 0.0:
            return 0.0
        costs, c = self._host.loop.costs, self._host.class_of(step)
        expected_s = costs.expected_s(c, sent.node, item.sizes[at.step]) if costs.is_learned(c) else 0.0
        return max(LEAST_S, multiple * expected_s)

    def wants_copy(self, sent: Sent) -> bool:
        """Whether an attempt that has taken as long as it may still runs, alone."""
        item, at, attempt = sent.members[0]
        return item.attempts.get(at) is attempt and at not in item.copies

    def copy(self, sent: Sent) -> Sent | None:
        """A second attempt at the same instance; None: no other node has room."""
        item, at, _ = sent.members[0]
        host, size = self._host, item.sizes[at.step]
        c = host.class_of(item.run.chain.steps[at.step])
        if not host.loop.costs.is_learned(c):
            return None
        other = host.loop.other_node(item.row(at), sent.node, c, size)
        if other < 0:
            return None
        expected_s = host.loop.costs.expected_s(c, other, size)
        host.loop.add_load(other, 1, expected_s)
        item.run.counts[at.step].copies += 1
        attempt = item.new_attempt(at)
        item.copies[at] = Copy(attempt, other, expected_s)
        return Sent(other, [(item, at, attempt)])

    def _forget_copy(self, item: ItemRun, at: StageInstance) -> None:
        """An instance is over, or its second attempt is."""
        if (copy := item.copies.pop(at, None)) is not None:
            self._host.loop.add_load(copy.node, -1, -copy.expected_s)

    def _goes_on(self, item: ItemRun, at: StageInstance, failed: Attempt) -> bool:
        """Whether another attempt at the instance still runs. It takes the place of the failed one."""
        if (copy := item.copies.get(at)) is None or copy.attempt is item.attempts[at]:
            return False
        if failed is copy.attempt:
            self._forget_copy(item, at)
        else:
            item.attempts[at] = copy.attempt
        return True

    def _end_others(self, item: ItemRun, at: StageInstance, ended: Attempt) -> None:
        """Cancel the other attempt at an instance that is over."""
        if (copy := item.copies.get(at)) is not None:
            for attempt in {item.attempts[at], copy.attempt} - {ended}:
                self._host.backend.cancel(attempt)
            self._forget_copy(item, at)


def _is_awaited(item: ItemRun, at: StageInstance, attempt: Attempt) -> bool:
    """Whether the outcome of an attempt counts."""
    if item.attempts.get(at) is attempt:
        return True
    copy = item.copies.get(at)
    return copy is not None and copy.attempt is attempt


class Fusion:
    """Makes attempts of one stage or of several.

    Args:
        below_s: expected service of each of several; 0 = every stage has an attempt of its own.
    """

    def __init__(self, host: HostState, below_s: float) -> None:
        self._host, self._below_s = host, below_s

    def new_attempt(self, item: ItemRun, at: StageInstance, node: int) -> Attempt:
        """The next attempt at an instance, with those that follow it. They count as begun."""
        following: Following | None = None
        for member in reversed(self._after(item, at, node)):
            attempt = item.attempts[member] = item.new_attempt(member, following)
            following = Following(attempt, self._inputs(item, member))
        attempt = item.attempts[at] = item.new_attempt(at, following)
        return attempt

    def _after(self, item: ItemRun, at: StageInstance, node: int) -> list[StageInstance]:
        """The instances that run with this one."""
        found: list[StageInstance] = []
        if self._is_short(item, at, node):
            after = item.after(at)
            while after is not None and self._is_short(item, after, node):
                found.append(after)
                after = item.after(after)
        return found

    def _is_short(self, item: ItemRun, at: StageInstance, node: int) -> bool:
        if item.tried.get(at, 0) or (item.number, at) in item.run.known:
            return False
        c = self._host.class_of(item.run.chain.steps[at.step])
        return self._host.loop.costs.expected_s(c, node, item.sizes[at.step]) < self._below_s

    def _inputs(self, item: ItemRun, at: StageInstance) -> list[Argument]:
        """The arguments of an instance. What is missing is the output of the one before."""
        return [
            replace(argument, refs=tuple(BEFORE if ref is None else ref for ref in argument.refs))
            for argument in self._host.arguments(item, at)
        ]
