"""Batches: instances of one stage, of several inputs and runs, that a worker serves in one call.

The loop decides where and when, as for single instances. One that it starts is put back until its batch is
full or has waited long enough; then the one that starts next takes the others with it, in its slot, and what
still waits for a slot in the loop's queue, as far as there is room. A batch that fails is tried again one by
one, so that an instance which cannot be served fails alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.chains.graph import StageCall
from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import Ended, ItemRun, Sent
from trimtab.chains.stage_limits import LimitedStages
from trimtab.chains.value_budget import ValueBudget
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, Ref, StageError
from trimtab.live.value_codec import encode
from trimtab.words import counted

CALLS: Final = 4.0  # times what a call takes: so long others are let pass that lead to further instances
RECENT: Final = 0.3  # weight of the last call in what one takes

Member = tuple[ItemRun, StageInstance]


@dataclass
class _Gathered:
    """Instances of one stage that wait for others."""

    most: int
    wait_s: float
    sources: frozenset[int]  # classes of the stages before it
    call_s: float = 0.0  # what a call takes; 0 = none has ended
    members: list[Member] = field(default_factory=list)
    since_s: float = 0.0  # of the first
    has_grown: bool = False  # in this turn
    offered: Member | None = None  # the one that the loop was asked to start
    is_held_back: bool = False  # by a limit of the stage; the offered one waits for its turn
    timer: asyncio.TimerHandle | None = None


class StageBatches:
    """Gathers batches, and tells how their instances ended.

    Args:
        budget: of values, which may hold instances back.
    """

    def __init__(self, host: HostState, budget: ValueBudget, limits: LimitedStages) -> None:
        self._host, self._budget, self._limits = host, budget, limits
        self._gathered = {
            step.code_name: _Gathered(
                step.stage.stage_options.batch,
                step.stage.stage_options.batch_wait_s,
                frozenset(host.class_of(chain.steps[before]) for before in chain.all_before(k)),
            )
            for chain in host.chains
            for k, step in enumerate(chain.steps)
            if step.stage.is_batched
        }
        self._numbers = itertools.count(1)
        self._absent: Ref | None = None

    async def open(self) -> None:
        """Make what stands for a missing value known to the backend."""
        if self._gathered:
            self._absent = await self._host.backend.put(encode(None))

    def takes(self, step: StageCall) -> bool:
        """Whether a stage is batched."""
        return step.code_name in self._gathered

    def begin(self, item: ItemRun, at: StageInstance, node: int) -> Sent | None:
        """The batch to send now that the loop has placed an instance; None: it waits."""
        step = item.run.chain.steps[at.step]
        gathered = self._gathered[step.code_name]
        if at in item.attempts:  # it joined a batch before its turn came: the slot is for others
            self._host.loop.runs.lose(item.row(at), self._host.now_s(), float("inf"))
            self._host.wake()
            return None
        if item.tried.get(at, 0):  # a failed batch is tried again one by one
            return None if self._limits.holds_back(item, at) else self._begun(node, [(item, at)])
        gathered.members = [member for member in gathered.members if self._host.is_waiting(*member)]
        me = item, at
        is_offered = me in gathered.members
        if is_offered:
            gathered.members.remove(me)
            gathered.offered = None
        elif self._budget.holds_back(item, at):
            return None
        joining = self._joining(step, gathered.most - 1 - len(gathered.members))
        is_full = len(gathered.members) + 1 + len(joining) >= gathered.most
        if not is_offered and (gathered.is_held_back or not is_full):
            self._put_back(gathered, me)
            return None
        gathered.is_held_back = self._limits.holds_back(item, at)
        if gathered.is_held_back:  # others may join until its turn comes
            gathered.members.insert(0, me)
            gathered.offered = me
            return None
        batch = [me, *gathered.members[: gathered.most - 1], *joining]
        gathered.members = gathered.members[gathered.most - 1 :]
        if gathered.offered is not None and gathered.offered not in gathered.members:
            gathered.offered = None
        gathered.since_s = self._host.now_s()
        return self._begun(node, batch)

    def _joining(self, step: StageCall, most: int) -> list[Member]:
        """Instances that wait for a slot in the loop's queue and are not tried one by one, the first ones."""
        if most <= 0:
            return []
        waiting = map(self._host.owners.__getitem__, self._host.loop.runs.held(self._host.class_of(step)))
        joins = (
            (item, at)
            for item, at in waiting
            if self._host.is_waiting(item, at) and not item.tried.get(at, 0) and self._budget.allows(item)
        )
        return list(itertools.islice(joins, most))

    def _put_back(self, gathered: _Gathered, me: Member) -> None:
        now_s = self._host.now_s()
        if not gathered.members:
            gathered.since_s = now_s
        gathered.members.append(me)
        gathered.has_grown = True
        self._host.loop.runs.lose(me[0].row(me[1]), now_s, float("inf"))
        self._host.wake()

    def end_turn(self) -> None:
        """Ask for a slot for what has waited long enough. With no wait: once nothing more comes.

        While stages before it wait for a slot, they get it first: no worker is idle, and the batch fills.
        """
        for gathered in self._gathered.values():
            has_grown, gathered.has_grown = gathered.has_grown, False
            if not gathered.members or has_grown:
                continue
            if gathered.offered is not None and self._host.is_waiting(*gathered.offered):
                continue
            gathered.is_held_back = False
            left_s = gathered.since_s + self._wait_s(gathered) - self._host.now_s()
            if left_s > 0.0 and len(gathered.members) < gathered.most:
                self._wake_in(gathered, left_s)
                continue
            gathered.members = [member for member in gathered.members if self._host.is_waiting(*member)]
            if gathered.members:
                item, at = gathered.offered = gathered.members[0]
                self._host.loop.runs.offer(item.row(at), self._host.now_s())
                self._host.wake()

    def _wait_s(self, gathered: _Gathered) -> float:
        """How long the first of a batch waits for others."""
        is_fed = not gathered.sources.isdisjoint(self._host.loop.runs.held_classes())
        return max(gathered.wait_s, CALLS * gathered.call_s) if is_fed else gathered.wait_s

    def _wake_in(self, gathered: _Gathered, wait_s: float) -> None:
        if gathered.timer is not None:
            gathered.timer.cancel()
        gathered.timer = asyncio.get_running_loop().call_later(wait_s, self._host.wake)

    # Sending.

    def _begun(self, node: int, members: Sequence[Member]) -> Sent:
        """A batch whose attempts count as begun."""
        sent = []
        for item, at in members:
            attempt = item.attempts[at] = item.new_attempt(at)
            counts = item.run.counts[at.step]
            counts.queued -= 1
            counts.running += 1
            sent.append((item, at, attempt))
        return Sent(node, sent, is_batch=True)

    def start(self, sent: Sent) -> tuple[Sent, Awaitable[Outcome]] | None:
        """Start a batch that the journal has, without those that are over; None: nothing is left of it.

        Its attempt is its own, so that the end of one run does not stop the others.
        """
        awaited = [one for one in sent.members if _is_awaited(*one)]
        holder = sent.members[0]
        step = holder[0].run.chain.steps[holder[1].step]
        if holder not in awaited and awaited:  # its slot is free again: the others wait for another one
            for item, at, _ in awaited:
                self._again(item, at, is_leader=False)
            awaited = []
        if not awaited:
            self._limits.end(step)
            return None
        members = tuple(attempt for _, _, attempt in awaited) if step.stage.context_name else ()
        whole = Attempt(f"batch-{next(self._numbers)}", step.code_name, 0, 1, "", members=members)
        left = sent._replace(members=awaited)
        return left, self._served(whole, left)

    async def _served(self, whole: Attempt, sent: Sent) -> Outcome:
        each = [self._host.arguments(item, at) for item, at, _ in sent.members]
        inputs = [
            Argument(
                first.name,
                tuple(self._absent if (ref := inputs[k].refs[0]) is None else ref for inputs in each),
                True,
                first.path,
            )
            for k, first in enumerate(each[0])
        ]
        return await self._host.start(sent.node, whole, inputs)

    # Outcomes.

    def take(self, sent: Sent, outcome: Outcome) -> Iterator[Ended]:
        """The ends of those instances of a batch that a caller still waits for."""
        members = sent.members
        item, at, _ = members[0]
        step, count = item.run.chain.steps[at.step], len(outcome.outputs) - 1
        if outcome.error is None and count != len(members):
            text = f"a batch of {len(members)} gave {counted(count, 'output')}; expected one for each"
            self._host.refs.drop(outcome.outputs)
            outcome = Outcome(service_s=outcome.service_s, error=StageError(Cause.RAISED, "ValueError", text))
        if outcome.error is None:
            self._host.refs.drop(outcome.outputs[:1])
            self._learn(step, outcome.service_s)
        for k, (item, at, attempt) in enumerate(members):
            if not _is_awaited(item, at, attempt):
                self._host.refs.drop(outcome.outputs[k + 1 : k + 2])
            elif outcome.error is not None and len(members) > 1:
                yield Ended(item, at, attempt, sent.node, outcome, is_retried=True)
                self._again(item, at, is_leader=k == 0)
            else:
                self._end(item, at)
                yield Ended(item, at, attempt, sent.node, _share(outcome, k, len(members)))
        self._limits.end(step)

    def _learn(self, step: StageCall, service_s: float) -> None:
        gathered = self._gathered[step.code_name]
        weight = RECENT if gathered.call_s else 1.0
        gathered.call_s += weight * (service_s - gathered.call_s)

    def _end(self, item: ItemRun, at: StageInstance) -> None:
        del item.attempts[at]
        item.run.counts[at.step].running -= 1

    def _again(self, item: ItemRun, at: StageInstance, *, is_leader: bool) -> None:
        """An instance is started again, alone."""
        self._end(item, at)
        counts, runs = item.run.counts[at.step], self._host.loop.runs
        counts.queued += 1
        counts.retries += 1
        now_s = self._host.now_s()
        if is_leader:
            runs.lose(item.row(at), now_s, now_s)
        else:
            runs.offer(item.row(at), now_s)
        self._host.wake()


def _share(outcome: Outcome, k: int, count: int) -> Outcome:
    """The outcome of one instance of a batch: an equal share of the time."""
    if outcome.error is not None:
        return outcome
    return replace(
        outcome,
        outputs=outcome.outputs[k + 1 : k + 2],
        fan_out=(),
        service_s=outcome.service_s / count,
        load_s=outcome.load_s if k == 0 else 0.0,
        profile=outcome.profile if k == 0 else b"",
        models=outcome.models if k == 0 else (),
    )


def _is_awaited(item: ItemRun, at: StageInstance, attempt: Attempt) -> bool:
    return item.attempts.get(at) is attempt
