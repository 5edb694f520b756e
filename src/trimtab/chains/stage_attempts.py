"""Attempts at stages: noted in the journal, sent to the backend within the limits of their stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from trimtab.chains.fusion import Fusion
from trimtab.chains.host_state import HostState, outcome_of
from trimtab.chains.limited_stages import LimitedStages
from trimtab.chains.run_progress import Instance
from trimtab.chains.run_state import Copy, Ended, ItemRun
from trimtab.chains.speculation import Speculation
from trimtab.chains.value_budget import ValueBudget
from trimtab.live.stage_backend import Attempt, Outcome


class StageAttempts:
    """Sends attempts.

    Args:
        budget: of values, which may hold attempts back.
        fuse_s: see `Fusion`.
        ended: called with the outcome of each attempt that a caller still waits for.
        failed: called with a fault of the host itself.
    """

    def __init__(
        self,
        host: HostState,
        budget: ValueBudget,
        limits: LimitedStages,
        fuse_s: float,
        ended: Ended,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._host, self._budget, self._limits = host, budget, limits
        self._ended, self._failed = ended, failed
        self._fusion = Fusion(host, fuse_s)
        self._speculation = Speculation(host, self._begin_copy)

    def begin(self, item: ItemRun, at: Instance, node: int) -> None:
        """Send an attempt that the loop has placed."""
        host = self._host
        if self._budget.holds_back(item, at):
            self._limits.pass_by(item, at)
            return
        if self._limits.holds_back(item, at):
            return
        item.run.counts[at.step].queued -= 1
        if (served := item.served.pop(at, None)) is not None:  # it failed in an attempt before
            self._ended(item, at, *served)
            host.wake()
            return
        attempt = self._fusion.new_attempt(item, at, node)
        for member in item.in_turn(at, attempt):
            item.run.counts[member.step].running += 1
        self._note(item, at, attempt, node)

    def _begin_copy(self, item: ItemRun, at: Instance, node: int, expected_s: float) -> None:
        attempt = item.new_attempt(at)
        item.copies[at] = Copy(attempt, node, expected_s)
        self._note(item, at, attempt, node)

    def _note(self, item: ItemRun, at: Instance, attempt: Attempt, node: int) -> None:
        """Send an attempt as soon as the journal has it, and those that follow it."""
        host = self._host
        if host.recorder is None:
            self._send(item, at, attempt, node)
            return
        name, members = host.loop.node_names[node], item.in_turn(at, attempt)
        for member in members[1:]:
            host.recorder.note_attempt(item, member, item.attempts[member], name)
        send = partial(self._send, item, at, attempt, node)
        host.recorder.note_attempt(item, at, attempt, name, send)

    def end_all(self, item: ItemRun) -> None:
        """Cancel the attempts of a run that is over."""
        for attempt in (*item.attempts.values(), *(copy.attempt for copy in item.copies.values())):
            self._host.backend.cancel(attempt)
        for at in list(item.copies):
            self._speculation.forget(item, at)
        for at in item.attempts:
            item.run.counts[at.step].running -= 1
            step = item.run.plan.steps[at.step]
            if not step.stage.is_batched:  # its batch goes on
                self._limits.end(step)
        item.attempts.clear()
        self._limits.end_run(item)

    def _send(self, item: ItemRun, at: Instance, attempt: Attempt, node: int) -> None:
        """Send an attempt to the backend. The journal has it."""
        if not _is_awaited(item, at, attempt):
            return  # ended meanwhile
        sent = asyncio.ensure_future(self._host.start(node, attempt, self._host.arguments(item, at)))
        sent.add_done_callback(partial(self._on_outcome, item, at, attempt, node))
        self._speculation.watch(item, at, attempt, node)

    def _on_outcome(
        self, item: ItemRun, at: Instance, attempt: Attempt, node: int, sent: asyncio.Future[Outcome]
    ) -> None:
        if sent.cancelled():
            return
        try:
            self._take_outcome(item, at, attempt, node, sent)
        except Exception as error:
            self._failed(error)

    def _take_outcome(
        self, item: ItemRun, at: Instance, attempt: Attempt, node: int, sent: asyncio.Future[Outcome]
    ) -> None:
        outcome = outcome_of(sent)
        if not _is_awaited(item, at, attempt):  # the run is over, or another attempt took its place
            self._host.refs.drop(outcome.values)
            return
        if outcome.error is not None and self._goes_on(item, at, attempt):
            return
        self._end_others(item, at, attempt)
        for member in item.in_turn(at, attempt):
            del item.attempts[member]
            item.run.counts[member.step].running -= 1
        self._limits.end(item.run.plan.steps[at.step])
        self._ended(item, at, attempt, node, outcome)
        self._host.wake()

    def _goes_on(self, item: ItemRun, at: Instance, failed: Attempt) -> bool:
        """Whether another attempt at the instance still runs. It takes the place of the failed one."""
        if (copy := item.copies.get(at)) is None or copy.attempt is item.attempts[at]:
            return False
        if failed is copy.attempt:
            self._speculation.forget(item, at)
        else:
            item.attempts[at] = copy.attempt
        return True

    def _end_others(self, item: ItemRun, at: Instance, ended: Attempt) -> None:
        """Cancel the other attempt at an instance that is over."""
        if (copy := item.copies.get(at)) is not None:
            for attempt in {item.attempts[at], copy.attempt} - {ended}:
                self._host.backend.cancel(attempt)
            self._speculation.forget(item, at)


def _is_awaited(item: ItemRun, at: Instance, attempt: Attempt) -> bool:
    """Whether the outcome of an attempt counts."""
    if item.attempts.get(at) is attempt:
        return True
    copy = item.copies.get(at)
    return copy is not None and copy.attempt is attempt
