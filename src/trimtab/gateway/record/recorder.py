"""Writes traffic as a trace.

Lines are made at the end of each turn of the event loop, while the requests' data is in the processor's
caches. A thread writes them. No objects of a request are kept meanwhile, which saves memory at high rates.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
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
from trimtab.gateway.record.redaction import HOUR_S, PROFILES
from trimtab.traces.gateway_format import (
    FILE_NAME,
    NODE_EVENTS,
    NodeEvent,
    RecordName,
    Redaction,
    file_name,
    new_recording_id,
)

if TYPE_CHECKING:
    from trimtab.domain.view import Plan  # loads numba
    from trimtab.gateway.nodes.fleet import Fleet


MOST_FILES = 16
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The folder of a recording, what stays of requests, and its limits."""

    folder: Path
    max_bytes: int = 64 << 20  # size of one file
    max_files: int = MOST_FILES
    keep_s: float = inf  # no request stays longer
    keep_bytes: float = inf  # size of all files
    max_rows: int = 50_000  # rows that wait to be written; more are dropped and counted
    redact: Redaction = "pseudonyms"

    @property
    def longest_file_s(self) -> float:
        """How long one file is written to: files are deleted as a whole, so they have to be short enough."""
        return min(self.keep_s / 10.0, DAY_S) if self.keep_s < inf else inf


class RotatedFiles:
    """Writes blocks of whole lines. Only the owner may read the files, because they show tenants' traffic.

    A file that is written to is locked, and no process deletes a locked file. A lock ends with its process.
    """

    def __init__(self, settings: RecordSettings, recording: str) -> None:
        self._settings, self._recording = settings, recording
        self._seq = 0
        self._file_fd = -1
        self._size_bytes = 0
        self._begun_s = 0.0

    @property
    def path(self) -> Path:
        """The current file."""
        return self._settings.folder / file_name(self._recording, 0, self._seq)

    def needs_head(self) -> bool:
        """Whether the next block begins a file."""
        is_old = time.time() - self._begun_s >= self._settings.longest_file_s
        return self._file_fd < 0 or is_old or self._size_bytes >= self._settings.max_bytes

    def write(self, block: bytes, first_lines: bytes = b"") -> None:
        """Append a block, in a new file if there are `first_lines` of one.

        Raises OSError; then the file holds no part of the block.
        """
        if first_lines:
            self.close()
            self._begin(first_lines)
        self._append(block)

    def close(self) -> None:
        """Close the current file. A later write begins another."""
        if self._file_fd >= 0:
            file_fd, self._file_fd = self._file_fd, -1
            os.close(file_fd)

    def _begin(self, first_lines: bytes) -> None:
        self._settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seq += 1
        self._file_fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size_bytes, self._begun_s = 0, time.time()
        try:
            fcntl.flock(self._file_fd, fcntl.LOCK_EX)
            self._append(first_lines)
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)  # a file without a head could not be read
            raise
        self.delete_old()

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

    def delete_old(self) -> None:
        """Delete what is beyond the limits, files of earlier recordings included, the oldest first.

        A file's last change is its last request; its first is at most `longest_file_s` older.
        """
        settings, beyond = self._settings, []
        last_s = time.time() - (settings.keep_s - settings.longest_file_s if settings.keep_s < inf else inf)
        files, kept_bytes = 1, float(settings.max_bytes)  # the current file, which has room to grow
        for entry in sorted(os.scandir(settings.folder), key=lambda entry: entry.name, reverse=True):
            if not FILE_NAME.fullmatch(entry.name) or entry.name == self.path.name:
                continue
            about = entry.stat()
            files, kept_bytes = files + 1, kept_bytes + about.st_size
            is_beyond = files > settings.max_files or kept_bytes > settings.keep_bytes
            if is_beyond or about.st_mtime < last_s:
                beyond.append(Path(entry.path))
        for path in reversed(beyond):
            _delete_unlocked(path)


def _delete_unlocked(path: Path) -> None:
    """Delete a file, unless a process writes to it."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


logger = logging.getLogger(__name__)

FLUSH_PERIOD_S = 0.25
ESTIMATES_PERIOD_S = 60.0
DELETION_PERIOD_S = 60.0
USE_PERIOD_S = 1.0  # at least between two lines of what others use of nodes
LINES_FROM = 16  # requests per batch: smaller batches cost more per request

_kept_of = attrgetter(*KEPT)


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
        lists: Callable[[str], bool] = lambda _: True,
        signals: Callable[[], Signals] = Signals,
        ticks_per_s: float = TICKS_PER_S,
    ) -> None:
        self.settings, self._snapshot, self._clock = settings, snapshot, clock
        self._profile = PROFILES[settings.redact]
        self.recording = new_recording_id(1 if self._profile.is_exact else HOUR_S)
        self.begun_s = clock()
        self.written = 0
        self.dropped = 0
        self.error = ""
        self._signals, self._use, self._use_due_s = signals, UseThinning(), 0.0
        self._names = Pseudonyms()
        self._writer = RowWriter(
            self.begun_s,
            self._class_names,
            self._names,
            candidates_of,
            adapter_of,
            lists,
            ticks_per_s,
            self._profile,
        )
        self._rows: list[tuple[Any, ...]] = []  # requests that have no line yet
        self._notes: list[bytes] = []
        self._blocks: list[bytes] = []  # lines of requests
        self._n_lines = 0  # lines in `_blocks`
        self._max_rows = settings.max_rows
        self._reported_dropped = 0
        self._estimates_due_s = 0.0
        self._deletion_due_s = self.begun_s + DELETION_PERIOD_S
        self._files = RotatedFiles(settings, self.recording)
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
            if self._clock() >= self._deletion_due_s and self.settings.keep_s < inf:
                self._deletion_due_s = self._clock() + DELETION_PERIOD_S
                await asyncio.shield(self._delete_old())

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
        head = self._new_head() if self._files.needs_head() else b""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._files.write, block, head)

    async def _delete_old(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._files.delete_old)
        except OSError as error:
            logger.warning("recording to %s: old files stay: %s", self.settings.folder, error)

    def note_estimates(self) -> None:
        """Record the current estimates with the next flush: a replay needs those of all classes."""
        self._estimates_due_s = self._now_s() + ESTIMATES_PERIOD_S
        self._note("estimates", classes=self._snapshot().classes)
        signals = self._signals()
        if signals.zones:
            self._note("signals", **signals_row(signals, self._writer.tenant_weights(signals)))

    def note_use(self) -> None:
        """Record with the next flush what others use of nodes, where that has changed."""
        self._use_due_s = self._now_s() + USE_PERIOD_S
        if news := self._use.changed(self._signals()):
            self._note("use", frac=news)

    def _new_head(self) -> bytes:
        """The first lines of a file, made on the event loop, because the snapshot reads live objects."""
        snapshot, at_s = self._snapshot(), self._now_s()
        self._use.forget()
        head = head_line(snapshot, at_s, self.recording, time.time() - at_s, self.settings.redact)
        return head + state_line(snapshot, at_s, self.begun_s, is_exact=self._profile.is_exact)


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
