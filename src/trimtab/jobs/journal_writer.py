"""Writes the journal of chains: a thread with a connection of its own, and plain statements.

A statement of SQLAlchemy's takes several times as long as what it does here, for each stage of each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import sqlalchemy as sa

from trimtab.jobs.journal_log import JournalLog, Rows, rows_in
from trimtab.jobs.store.outages import OUTAGE_S, OutageRetry, is_away
from trimtab.jobs.store.schema import chain_attempts, chain_inputs, chain_memo, chain_results

Told = Callable[[], None]

RESULTS, INPUTS, MEMO, ATTEMPTS = range(4)  # kinds of rows, in the order in which a batch stores them
STORE_EVERY_S: Final = 0.05  # where a log keeps rows meanwhile
AT_A_TIME: Final = 32  # rows by one statement


class Batch:
    """Rows to store in one transaction, and whom to tell then."""

    __slots__ = ("file", "rows", "told")

    def __init__(self) -> None:
        self.rows: tuple[Rows, Rows, Rows, Rows] = ([], [], [], [])
        self.told: list[Told] = []
        self.file = ""  # of the log, which has these rows until they are stored


class JournalWriter:
    """Stores batches one after the other. What comes meanwhile goes into the next one.

    With a log, rows are durable at the end of the turn in which they were noted, and go to the database some
    hundred at a time.

    Args:
        failed: called on the event loop when a batch could not be stored; no later one is.
        outage_s: how long batches wait for a server that is away.
    """

    def __init__(
        self,
        engine: sa.Engine,
        failed: Callable[[BaseException], None],
        log: JournalLog | None = None,
        outage_s: float = OUTAGE_S,
    ) -> None:
        self._engine, self._failed, self._log = engine, failed, log
        self._connection: Any = None  # of the thread
        self._retry, self._outage_s = OutageRetry("journal"), outage_s
        self._loop = asyncio.get_running_loop()
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._turn, self._next = Batch(), Batch()  # `_turn`: not in the log yet
        self._is_turn_due = self._is_busy = self._is_broken = self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Future[None]] = set()
        self._thread = threading.Thread(target=self._work, name="trimtab-journal", daemon=True)
        self._thread.start()

    def add(self, kind: int, row: tuple[Any, ...], told: Told | None = None) -> None:
        """Store a row soon, after all earlier ones; `told` is called once it outlives this process."""
        self._turn.rows[kind].append(row)
        if told is not None:
            self._turn.told.append(told)
        self._end_turn_soon()

    async def flushed(self) -> None:
        """Return when the database has all that was noted so far."""
        if self._is_broken:
            return
        flush = self._loop.create_future()
        self._flushes.add(flush)
        self._is_urgent = True
        self._end_turn_soon()
        await flush

    @property
    def is_broken(self) -> bool:
        """Whether nothing more is stored."""
        return self._is_broken

    async def close(self) -> None:
        """Store what waits, and end the thread."""
        await self.flushed()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)

    def _end_turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._end_turn)  # after what else this turn of the loop notes

    def _end_turn(self) -> None:
        self._is_turn_due = False
        self._take_turn()
        if not self._is_broken:
            self._send_in_time()

    def _take_turn(self) -> None:
        """What was noted so far goes with the next batch."""
        turn, self._turn = self._turn, Batch()
        if self._is_broken:
            return
        for rows, new in zip(self._next.rows, turn.rows, strict=True):
            rows += new
        if self._log is None:
            self._next.told += turn.told
        elif any(turn.rows):
            try:
                self._log.write(turn.rows)
            except OSError as error:
                self._broke(error)
                return
            for tell in turn.told:
                tell()

    def _send_in_time(self) -> None:
        """Send what waits, now or in a while."""
        if self._is_busy:
            return
        if self._log is None or self._is_urgent:
            self._send()
        elif self._timer is None and any(self._next.rows):
            self._timer = self._loop.call_later(STORE_EVERY_S, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._take_turn()  # who waits until all is stored waits for it, too
        if self._is_broken:
            return
        self._timer, self._is_busy, self._is_urgent = None, True, False
        batch, self._next = self._next, Batch()
        if self._log is not None:
            batch.file = self._log.next_file()
        batch.told += [partial(self._release, flush) for flush in self._flushes]
        self._batches.put(batch)

    def _stored(self, batch: Batch) -> None:
        self._is_busy = False
        if self._is_urgent or any(self._next.rows):
            self._send_in_time()
        for tell in batch.told:
            tell()

    def _broke(self, error: BaseException) -> None:
        for flush in list(self._flushes):
            self._release(flush)  # nothing more will be stored: no waiter may stay
        if not self._is_broken:
            self._is_broken = True
            self._failed(error)

    def _release(self, flush: asyncio.Future[None]) -> None:
        self._flushes.discard(flush)
        if not flush.done():
            flush.set_result(None)

    def _work(self) -> None:
        try:
            while (batch := self._batches.get()) is not None:
                self._retry.run(partial(self._store, batch), monotonic() + self._outage_s)
                if batch.file:
                    Path(batch.file).unlink(missing_ok=True)
                self._loop.call_soon_threadsafe(self._stored, batch)
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self._loop.call_soon_threadsafe(self._broke, error)
        finally:
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    self._connection.close()

    def _store(self, batch: Batch) -> None:
        """Store a batch. Rows that are there already stay as they are, so it may be stored twice."""
        if self._connection is None:
            self._connection = self._engine.raw_connection()
        try:
            _store(self._connection, batch, self._engine.dialect.name)
        except Exception as error:
            if is_away(error):
                broken, self._connection = self._connection, None
                with contextlib.suppress(Exception):
                    broken.invalidate()
            raise


def store_files(connection: sa.Connection, paths: Sequence[Path]) -> None:
    """Store what files of logs hold."""
    cursor = connection.connection.cursor()
    try:
        for path in paths:
            for rows in rows_in(path):
                _insert(cursor, rows, "sqlite")
    finally:
        cursor.close()


def _store(connection: Any, batch: Batch, dialect: str) -> None:
    cursor = connection.cursor()
    try:
        if dialect == "sqlite":
            cursor.execute("BEGIN IMMEDIATE")
        _insert(cursor, batch.rows, dialect)
        if dialect == "sqlite":
            cursor.execute("COMMIT")
        else:
            connection.commit()
    except BaseException:
        with contextlib.suppress(Exception):
            connection.rollback()
        raise
    finally:
        cursor.close()


def _insert(cursor: Any, kinds: Sequence[Rows], dialect: str) -> None:
    """Store rows of each kind. In SQLite many by one statement: each takes the interpreter's lock anew."""
    for (head, row, tail), rows in zip(_statements(dialect), kinds, strict=True):
        first = 0
        if dialect == "sqlite" and head.startswith("INSERT"):
            while first + AT_A_TIME <= len(rows):
                values = itertools.chain.from_iterable(rows[first : first + AT_A_TIME])
                cursor.execute(head + ", ".join([row] * AT_A_TIME) + tail, tuple(values))
                first += AT_A_TIME
        if rows[first:]:
            cursor.executemany(head + row + tail, rows[first:])


@functools.cache
def _statements(dialect: str) -> tuple[tuple[str, str, str], ...]:
    """The statement of each kind of rows: its head, its values for one row, its tail."""
    mark = "?" if dialect == "sqlite" else "%s"

    def insert(table: sa.Table, conflict: str) -> tuple[str, str, str]:
        names = ", ".join(column.name for column in table.columns)
        marks = ", ".join(mark for _ in table.columns)
        return f"INSERT INTO {table.name} ({names}) VALUES ", f"({marks})", f" ON CONFLICT {conflict}"

    ended = (
        f"UPDATE {chain_inputs.name} SET state = {mark}, error = {mark}, ended_s = {mark} "
        f"WHERE run = {mark} AND number = {mark} AND state = 'running'"
    )
    return (
        insert(chain_results, "DO NOTHING"),
        (ended, "", ""),
        insert(chain_memo, "(key) DO UPDATE SET credit = excluded.credit"),
        insert(chain_attempts, "DO NOTHING"),
    )
