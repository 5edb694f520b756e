"""Writes traffic as a trace.

Lines are made at the end of each turn of the event loop, while the requests' data is in the processor's
caches. A thread writes them. No objects of a request are kept meanwhile, which saves memory at high rates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import UsageError
from trimtab.gateway.model import DecisionListener, Exchange, Health, LoadEvent, Node, Observer
from trimtab.gateway.nodes.fleet import FleetListener
from trimtab.gateway.record.pseudonyms import Pseudonyms
from trimtab.gateway.record.recorded_rows import (
    KEPT,
    TICKS_PER_S,
    CandidatesOf,
    RowWriter,
    Signals,
    Snapshot,
    UseThinning,
    head_line,
    line,
    node_row,
    plan_row,
    signals_row,
    state_line,
)
from trimtab.traces.gateway_format import (
    FILE_NAME,
    NODE_EVENTS,
    NodeEvent,
    RecordName,
    file_name,
    new_recording_id,
)

if TYPE_CHECKING:
    from trimtab.domain.view import Plan  # loads numba
    from trimtab.gateway.nodes.fleet import Fleet


class RotatedFiles:
    """Writes blocks of whole lines. Only the owner may read the files, because they show tenants' traffic.

    `first_lines` gives the lines at the beginning of every file.
    """

    def __init__(
        self,
        folder: Path,
        recording: str,
        max_bytes: int,
        max_files: int,
        first_lines: Callable[[], bytes],
    ) -> None:
        self._folder, self._recording = folder, recording
        self._max_bytes, self._max_files, self._first_lines = max_bytes, max_files, first_lines
        self._seq = 0
        self._file_fd = -1
        self._size_bytes = 0

    @property
    def path(self) -> Path:
        """The current file."""
        return self._folder / file_name(self._recording, 0, self._seq)

    def needs_head(self) -> bool:
        """Whether the next block begins a file. Then the caller prepares the result of `first_lines`."""
        return self._file_fd < 0 or self._size_bytes >= self._max_bytes

    def write(self, block: bytes) -> None:
        """Append a block. Raises OSError; then the file holds no part of the block."""
        if self._file_fd >= 0 and self._size_bytes >= self._max_bytes:
            self.close()
        if self._file_fd < 0:
            self._begin()
        self._append(block)

    def close(self) -> None:
        """Close the current file. A later write begins another."""
        if self._file_fd >= 0:
            file_fd, self._file_fd = self._file_fd, -1
            os.close(file_fd)

    def _begin(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seq += 1
        self._file_fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size_bytes = 0
        try:
            self._append(self._first_lines())
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)  # a file without a head could not be read
            raise
        self._delete_old()

    def _append(self, block: bytes) -> None:
        left = memoryview(block)
        try:
            while left:
                left = left[os.write(self._file_fd, left) :]
        except OSError:
            os.ftruncate(self._file_fd, self._size_bytes)
            os.lseek(self._file_fd, self._size_bytes, os.SEEK_SET)
            raise
        self._size_bytes += len(block)

    def _delete_old(self) -> None:
        """Delete all but the newest files, including files of earlier recordings."""
        names = sorted(entry.name for entry in self._folder.iterdir() if FILE_NAME.fullmatch(entry.name))
        for name in names[: -self._max_files]:
            (self._folder / name).unlink(missing_ok=True)


logger = logging.getLogger(__name__)

FLUSH_PERIOD_S = 0.25
ESTIMATES_PERIOD_S = 60.0
USE_PERIOD_S = 1.0  # at least between two lines of what others use of nodes
LINES_FROM = 16  # requests per batch: smaller batches cost more per request

_kept_of = attrgetter(*KEPT)


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The folder of a recording, and its limits."""

    folder: Path
    max_bytes: int = 64 << 20  # size of one file
    max_files: int = 16
    max_rows: int = 50_000  # rows that wait to be written; more are dropped and counted


class Recorder(Observer, DecisionListener):
    """An Observer that records. Its calls neither raise nor wait.

    `written`, `dropped` and `error` (of the last write that failed, "" once one succeeds) are for metrics.
    `clock` is the loop's.
    """

    def __init__(
        self,
        settings: RecordSettings,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
        *,
        candidates_of: CandidatesOf = lambda _: (),
        adapter_of: Callable[[str], str] = lambda _: "",
        signals: Callable[[], Signals] = Signals,
        ticks_per_s: float = TICKS_PER_S,
    ) -> None:
        self.settings, self._snapshot, self._clock = settings, snapshot, clock
        self.recording, self.begun_s = new_recording_id(), clock()
        self.written = 0
        self.dropped = 0
        self.error = ""
        self._signals, self._use, self._use_due_s = signals, UseThinning(), 0.0
        self._names = Pseudonyms()
        self._writer = RowWriter(
            self.begun_s, self._class_names, self._names, candidates_of, adapter_of, ticks_per_s
        )
        self._rows: list[tuple[Any, ...]] = []  # requests that have no line yet
        self._notes: list[bytes] = []
        self._blocks: list[bytes] = []  # lines of requests
        self._n_lines = 0  # lines in `_blocks`
        self._max_rows = settings.max_rows
        self._reported_dropped = 0
        self._estimates_due_s = 0.0
        self._first_lines = b""
        self._files = RotatedFiles(
            settings.folder, self.recording, settings.max_bytes, settings.max_files, self._head
        )
        self._thread = ThreadPoolExecutor(1, "trimtab-record")
        self._task: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()

    # The Observer's calls

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Make lines, up to the limit until the next flush."""
        room = self._max_rows - self._n_lines - len(self._rows)
        if room < len(exchanges):
            self.dropped += len(exchanges) - room
            exchanges = exchanges[:room]
        self._rows.extend(map(_kept_of, exchanges))
        if len(self._rows) >= LINES_FROM:
            self._make_lines()

    def _make_lines(self) -> None:
        rows, self._rows = self._rows, []
        block, count = self._writer.lines(rows)
        self._blocks.append(block)
        self._n_lines += count

    # Events other than requests

    def node_event(self, node: Node, what: NodeEvent) -> None:
        """Record that a node is `up`, `down`, `drained`, `added`, `removed`, or changed its `capacity`."""
        if what not in NODE_EVENTS:
            raise ValueError(f"no node event: {what!r}; one of {NODE_EVENTS}")
        self._note("node", what=what, node=node_row(node), reason=node.reason)

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """Record a policy's new plan."""
        self._note("plan", policy=policy, plan=plan_row(plan))

    def loaded(self, event: LoadEvent) -> None:
        """Record a call that loads or unloads a model or adapter."""
        self._note(
            "load",
            node=event.node.name,
            item=event.item,
            action=event.action,
            outcome=event.outcome,
            seconds=event.seconds,
        )

    def _note(self, record: RecordName, **fields: Any) -> None:
        if len(self._notes) < self._max_rows:
            self._notes.append(line(record, self._now_s(), **fields))

    def _now_s(self) -> float:
        return self._clock() - self.begun_s

    # Start and end

    async def open(self) -> None:
        """Start the recording. The first file exists when this returns.

        Raises:
            UsageError: it cannot be written.
        """
        self._prepare_head()
        try:
            await self._in_thread(b"")
        except OSError as error:
            self._thread.shutdown(wait=False)
            raise UsageError(
                f"cannot be written: {error.strerror or error}",
                file=str(self.settings.folder),
                field="record",
            ) from error
        self._estimates_due_s = self._now_s() + ESTIMATES_PERIOD_S
        self._task = asyncio.get_running_loop().create_task(self._flush_for_ever())

    async def close(self) -> None:
        """Write the remaining rows with the latest estimates, and stop. Does nothing if `open` failed."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.note_estimates()
        await self.flush()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._files.close)
        self._thread.shutdown(wait=True)

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            if self._now_s() >= self._estimates_due_s:
                self.note_estimates()
            if self._now_s() >= self._use_due_s:
                self.note_use()
            if self._rows or self._blocks or self._notes or self.dropped > self._reported_dropped:
                await asyncio.shield(self.flush())

    async def flush(self) -> None:
        """Write all rows so far. A write failure is counted, not raised."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        self._make_lines()
        lines, self._notes, self._blocks = [*self._notes, *self._blocks], [], []
        count, self._n_lines = self._n_lines, 0
        if self.dropped > self._reported_dropped:
            lines.append(line("dropped", self._now_s(), rows=self.dropped - self._reported_dropped))
        block = b"".join(lines)
        if not block:
            return
        if self._files.needs_head():
            self._prepare_head()
        reported = self.dropped
        try:
            await self._in_thread(block)
        except OSError as error:
            self.dropped += count
            self._report(str(error.strerror or error))
            return
        self._report("")
        self._reported_dropped = reported
        self.written += count

    def _report(self, error: str) -> None:
        """Set `error`, and log each change."""
        if error == self.error:
            return
        self.error = error
        if error:
            logger.warning("recording to %s: rows are lost: %s", self.settings.folder, error)
        else:
            logger.info("recording to %s: works again; %d rows were lost", self.settings.folder, self.dropped)

    def _class_names(self) -> list[str]:
        return [one["name"] for one in self._snapshot().classes]

    async def _in_thread(self, block: bytes) -> None:
        """Write in the recorder's thread, so that a slow disk delays no request."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._files.write, block)

    def note_estimates(self) -> None:
        """Record the current estimates with the next flush: a replay needs those of all classes."""
        self._estimates_due_s = self._now_s() + ESTIMATES_PERIOD_S
        self._note("estimates", classes=self._snapshot().classes)
        signals = self._signals()
        if signals.zones:
            weights = {self._names.tenant(name): w for name, w in signals.tenant_weights.items()}
            self._note("signals", **signals_row(signals, weights))

    def note_use(self) -> None:
        """Record with the next flush what others use of nodes, where that has changed."""
        self._use_due_s = self._now_s() + USE_PERIOD_S
        if news := self._use.changed(self._signals()):
            self._note("use", frac=news)

    def _head(self) -> bytes:
        return self._first_lines

    def _prepare_head(self) -> None:
        """Prepare the head on the event loop, because the snapshot reads live objects."""
        snapshot, at_s = self._snapshot(), self._now_s()
        self._use.forget()
        begun_utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - at_s))
        head = head_line(snapshot, at_s, self.recording, begun_utc)
        self._first_lines = head + state_line(snapshot, at_s, self.begun_s)


class NodeEvents(FleetListener):
    """Records added, removed and changed nodes. Changed models are not recorded: the next head has them."""

    def __init__(self, fleet: Fleet, recorder: Recorder) -> None:
        self._fleet, self._recorder = fleet, recorder

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "added")

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "removed")

    def on_switch(self, node: Node) -> None:
        """Record that the node gets work from now on, or none. A draining node finishes its requests."""
        if self._fleet.gets_work(node):
            what: NodeEvent = "up"
        else:
            what = "drained" if node.health is Health.DRAINING else "down"
        self._recorder.node_event(node, what)

    def on_capacity(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "capacity")
