"""The host of chains: the live loop decides, a backend runs the stages, a journal remembers.

It lives on one event loop. Everything that happens is told to the decision loop as an event; a turn lets it
decide. What it starts is made an attempt, or joins a batch. Both return what is to be sent (`Sent`), later
what has ended (`Ended`), and the host acts: it notes and sends the one, and gives the other to
`StageOutcomes`, which tells the loop what follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.chains.decision_loop import DecisionLoop
from trimtab.chains.graph import Chain
from trimtab.chains.host_state import HostState, outcome_of
from trimtab.chains.run_defaults import FUSED_S
from trimtab.chains.run_endings import RunEndings, log_begin
from trimtab.chains.run_intake import RunIntake
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import ChainRun, Ended, ItemRun, Sent, StageCounts, State
from trimtab.chains.shared_states import SharedStates
from trimtab.chains.stage_attempts import LEAST_S, StageAttempts
from trimtab.chains.stage_batches import StageBatches
from trimtab.chains.stage_limits import LimitedStages
from trimtab.chains.stage_outcomes import StageOutcomes
from trimtab.chains.stage_profiles import Profiling
from trimtab.chains.value_budget import ValueBudget
from trimtab.clusters.backend_cluster import placed_by_peaks
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Status
from trimtab.errors import TrimtabError, UsageError
from trimtab.live.stage_backend import (
    GrowingBackend,
    LosableBackend,
    NodeChange,
    Outcome,
    StageBackend,
    VirtualBackend,
)
from trimtab.validation.queue_section import QueueSpec

if TYPE_CHECKING:
    from trimtab.chains.run_metrics import StageMetrics

logger = logging.getLogger(__name__)

ROWS = 16_384  # of runs and stages that are in the loop at a time
INTERPRETED_IN_FLIGHT = 32  # inputs in the loop while decisions are not compiled and take milliseconds
_NEVER_S = float("inf")


class ChainHost(HostState):
    """Runs some chains on one backend.

    Args:
        in_flight: inputs of a run that are in the loop at a time, at most.
        place: folder or database of the journal; None = nothing is remembered.
        values: folder or URL of the store of values, if it is not in the journal's folder.
        metrics: counts what happens; None = nothing does.
        profile: what is profiled.
        fuse_s: see `Fusion`.
        values_gib: see `ValueBudget`.
        queues: hierarchical queues of the runs' tenants; None = they compete directly.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        backend: StageBackend,
        decider: Decider,
        *,
        in_flight: int = 1024,
        rows: int = ROWS,
        seed: int = 0,
        place: str | Path | None = None,
        values: str | Path = "",
        metrics: StageMetrics | None = None,
        profile: Profiling | None = None,
        fuse_s: float = FUSED_S,
        values_gib: float | None = None,
        queues: Mapping[str, QueueSpec] | None = None,
    ) -> None:
        super().__init__(chains, backend, profile or Profiling())
        self._metrics = metrics
        self._decider, self._rows, self._seed, self._queues = decider, rows, seed, queues
        self._turn_due = False
        self._loss: Exception | None = None  # of the backend's cluster
        self._timer: asyncio.TimerHandle | None = None
        self._endings = RunEndings(self)
        self.outcomes = StageOutcomes(self, self._endings, seed, metrics)
        self._intake = RunIntake(self, in_flight, self.outcomes, self._endings)
        self._budget = ValueBudget(self, values_gib)
        limits = LimitedStages(self)
        self._attempts = StageAttempts(self, self._budget, limits, fuse_s)
        self._batches = StageBatches(self, self._budget, limits)
        self._shared = SharedStates(self.steps)
        if place is not None:
            if isinstance(backend, VirtualBackend):
                raise UsageError("simulated work is not recorded", field="journal", expected="no journal")
            from trimtab.chains.recording import Recorder  # loads the database's packages

            self.recorder = Recorder(
                place,
                values,
                get=backend.get,
                refs=self.refs,
                cancelled=self._cancel_by_id,
                failed=self._crash,
            )

    @property
    def is_compiled(self) -> bool:
        """Whether decisions run as machine code."""
        return self.loop.is_compiled

    # Life.

    async def open(self) -> None:
        """Start the backend and the loop. Raises UsageError for stages that can't be placed."""
        self._event_loop = asyncio.get_running_loop()
        async with AsyncExitStack() as opened:  # what has started ends if a later part does not start
            opened.push_async_callback(self.backend.close)
            peaks_gib: dict[str, float] = {}
            if self.recorder is not None:
                await self.recorder.open(self.chains)
                opened.push_async_callback(self.recorder.close)
                peaks_gib = await self.recorder.peaks_gib(self.chains)
            self.loop = DecisionLoop(
                self.chains,
                placed_by_peaks(self.codes, peaks_gib, self.backend.nodes),
                self.backend.nodes,
                self._decider,
                queues=self._queues,
                hints_s={step.code_name: step.stage.stage_options.cost_s for step in self.steps},
                rows=self._rows,
                seed=self._seed,
                plans_inline=isinstance(self.backend, VirtualBackend),
                wake=self.wake,
            )
            opened.callback(self.loop.close)
            if not isinstance(self.backend, VirtualBackend):
                opened.push_async_callback(self._shared.close)
                await self._shared.open(self.backend)
                self.codes = self._shared.with_addresses(self.codes)
            await self.backend.open(self.codes, self._on_change)
            self._budget.open()
            await self.put_constants()
            if not self.is_compiled:
                self._intake.in_flight = min(self._intake.in_flight, INTERPRETED_IN_FLIGHT)
            await self._batches.open()
            await self.loop.open()
            if isinstance(self.backend, GrowingBackend):
                self.backend.follow_queue(self.demand)
            if isinstance(self.backend, LosableBackend):
                self.backend.tell_loss(self._on_loss)
            if self._metrics is not None:
                self._metrics.begin(self.chains, self.error_frac)
            self._opened = opened.pop_all()

    async def close(self) -> None:
        """Stop what runs, and the backend. With a journal, stopped runs can be resumed."""
        self.is_closing = True
        for run in list(self.runs.values()):
            self.cancel(run)
        if self._timer is not None:
            self._timer.cancel()
        await self.settled()
        await self._opened.aclose()

    # Runs.

    def add(self, run: ChainRun) -> None:
        """Begin a run."""
        if self._loss is not None:
            run.fail(self._loss)
            return
        run.begun_s = self.now_s()
        run.counts = [StageCounts() for _ in run.chain.steps]
        self.runs[run.id] = run
        if self._metrics is not None:
            self._metrics.watch(run)
        log_begin(run)
        self._intake.feed(run)
        self.wake()

    def cancel(self, run: ChainRun, state: State = State.CANCELLED) -> None:
        """End a run: its attempts are cancelled, inputs that have not begun are dropped."""
        self._intake.cancel(run, state)

    def _cancel_by_id(self, run_id: str) -> None:
        if (run := self.runs.get(run_id)) is not None:
            self.cancel(run)

    # Turns.

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._turn_due:
            self._turn_due = True
            self._event_loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        try:
            self._take_turn()
        except Exception as error:
            self._crash(error)

    def _crash(self, error: BaseException) -> None:
        """A fault of the host itself: end all runs, so that no caller waits for them."""
        if not isinstance(error, TrimtabError):  # callers are told, in words
            logger.exception("the host of chains failed", exc_info=error)
        runs, self.runs = self.runs, {}
        for run in runs.values():
            run.fail(error)

    def _on_loss(self, error: Exception) -> None:
        """The backend's cluster is gone. Runs end, and those in the journal can be resumed elsewhere."""
        self._loss, self.is_closing = error, True
        runs, self.runs = self.runs, {}
        for run in runs.values():
            self.spawn(self._endings.end_by_loss(run, error))

    def _take_turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = self.loop
        loop.step()
        self._budget.offer()
        for row, node in loop.runs.take_started():
            self._begin(*self.owners[row], node)
        self._batches.end_turn()
        ended = [
            (over, Status(status))
            for row, status, _ in loop.runs.take_ended()
            if (over := self.items.pop(row, None)) is not None
        ]
        for item, how in ended:  # all are out of flight, so that none gets a turn of another
            self._attempts.end_all(item)
            self._intake.end(item, how)
        if ended and self._budget.is_holding:  # another input is the first, and values are free
            self.wake()
        if (next_s := loop.next_event_s()) < _NEVER_S:
            self._timer = self._event_loop.call_later(max(0.0, next_s - loop.now_s()), self.wake)

    # Attempts.

    def _begin(self, item: ItemRun, at: StageInstance, node: int) -> None:
        """The loop has placed an instance."""
        begun: Sent | Ended | None
        if self._batches.takes(item.run.chain.steps[at.step]):
            begun = self._batches.begin(item, at, node)
        else:
            begun = self._attempts.begin(item, at, node)
        if isinstance(begun, Sent):
            self._note(begun)
        elif begun is not None:
            self.outcomes.take(begun)
            self.wake()

    def _note(self, sent: Sent) -> None:
        """Send attempts as soon as the journal has them, and those that follow them."""
        recorder = self.recorder
        if recorder is None:
            self._send(sent)
            return
        name = self.loop.node_names[sent.node]
        for item, at, attempt in sent.members:
            for member in item.in_turn(at, attempt)[1:]:
                recorder.note_attempt(item, member, item.attempts[member], name)
        last = len(sent.members) - 1
        for k, (item, at, attempt) in enumerate(sent.members):
            durable = partial(self._send, sent) if k == last else None  # stored in this order
            recorder.note_attempt(item, at, attempt, name, durable)

    def _send(self, sent: Sent) -> None:
        started = self._batches.start(sent) if sent.is_batch else self._attempts.start(sent)
        if started is None:
            return
        sent, work = started
        asyncio.ensure_future(work).add_done_callback(partial(self._on_outcome, sent))
        if not sent.is_batch and (wait_s := self._attempts.look_in_s(sent)) > 0.0:
            self._event_loop.call_later(wait_s, self._look, sent)

    def _look(self, sent: Sent) -> None:
        """An attempt has taken as long as it may. Where no other node has room it is looked at again."""
        if not self._attempts.wants_copy(sent):
            return
        if (copy := self._attempts.copy(sent)) is not None:
            self._note(copy)
        else:
            self._event_loop.call_later(LEAST_S, self._look, sent)

    def _on_outcome(self, sent: Sent, over: asyncio.Future[Outcome]) -> None:
        if over.cancelled():
            return
        part = self._batches if sent.is_batch else self._attempts
        try:
            for ended in part.take(sent, outcome_of(over)):
                self.outcomes.take(ended)
            self.wake()
        except Exception as error:
            self._crash(error)

    def _on_change(self, change: NodeChange) -> None:
        """A node has more or fewer places, or takes no new attempts."""
        self.loop.change_node(change)
        self.wake()
