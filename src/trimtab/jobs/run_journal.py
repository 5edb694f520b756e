"""The journal of chains: what was begun and what came out, durable in the order in which it happened.

One writer stores what was noted while an earlier transaction was under way in the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa

from trimtab.errors import StoreUnavailable, UsageError
from trimtab.jobs import run_rows
from trimtab.jobs.journal_log import JournalLog, left_files
from trimtab.jobs.journal_writer import ATTEMPTS, INPUTS, MEMO, RESULTS, JournalWriter, Told, store_files
from trimtab.jobs.run_rows import LEASE_S, AttemptRecord, InputRecord, ResultRecord, RunRecord
from trimtab.jobs.store.database import sqlite_file
from trimtab.jobs.store.job_store import JobStore
from trimtab.jobs.store.outages import OUTAGE_S
from trimtab.jobs.store.processes import leave, living, sign_of_life

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0

T = TypeVar("T")


class RunJournal:
    """A journal in SQLite or PostgreSQL.

    Args:
        cancelled: called with the id of a run that another process wants cancelled.
        failed: called with the reason when something could not be stored.
        kind: the command that lists its runs.
        outage_s: how long what is to be stored waits for a server that is away.
    """

    def __init__(
        self,
        url: str,
        *,
        cancelled: Callable[[str], None] = lambda run_id: None,
        failed: Callable[[BaseException], None] = lambda error: None,
        kind: str = "chain",
        outage_s: float = OUTAGE_S,
    ) -> None:
        self._store = JobStore(url, call_s=outage_s, outlives_power_loss=False, who="journal")
        self._file, self._outage_s = sqlite_file(url), outage_s
        self.owner = f"chains-{secrets.token_hex(8)}"
        self._cancelled, self._failed = cancelled, failed
        self._kind = kind
        self._beats: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Make or upgrade the tables, and give signs of life. Raises UsageError if there is no database."""
        await self._store.open()
        if not self._store.available:
            expected = None if self._file is None else f"{self._file} that can be written"
            raise UsageError(
                "the journal cannot be opened", field="store", value=self._store.reason, expected=expected
            )
        log = None if self._file is None else JournalLog(self._file, self.owner)
        self._writer = JournalWriter(self._store.engine, self._failed, log, self._outage_s)
        await self._beat()
        await self._store_left()
        self._beats = asyncio.create_task(self._keep_beating())

    async def close(self) -> None:
        """Store what waits."""
        if self._beats is not None:
            self._beats.cancel()
        await self._writer.close()
        if self._writer.is_broken:
            self._store.wait_no_more()
        with contextlib.suppress(StoreUnavailable):
            await self._store.write(partial(leave, process=self.owner))
        await self._store.close()

    async def _store_left(self) -> None:
        """Store what killed processes have noted."""
        if self._file is not None:
            for path in await self._store.write(partial(_stored_left, database=self._file)):
                path.unlink(missing_ok=True)

    # Runs.

    async def begin(self, run: RunRecord, inputs: Sequence[tuple[int, bytes]]) -> RunRecord:
        """Store a new run; or return the one that has its key."""
        return await self._store.write(partial(run_rows.begin, run=run, inputs=inputs))

    async def find(self, run_id: str) -> RunRecord:
        """A run. Raises UsageError if there is none."""
        found = await self._store.read(partial(run_rows.by_id, run_id=run_id))
        if found is None:
            raise UsageError(
                "no such run", field="run", value=run_id, expected=f"an id of `trimtab {self._kind} list`"
            )
        return found

    async def take_over(self, run_id: str) -> None:
        """Work on a run. Raises UsageError if another process does.

        Waits for one that gives no sign of life: it was killed, or could not say that it stopped.
        """
        seen_s: float | None = None
        while not await self._store.write(partial(run_rows.take_over, run_id=run_id, owner=self.owner)):
            last_s = await self._store.read(partial(run_rows.owner_seen_s, run_id=run_id))
            if seen_s is None:
                logger.warning(
                    "run %s: waiting for its process, for %.0f s if that is silent", run_id, LEASE_S
                )
            elif last_s != seen_s:
                raise UsageError(
                    "another process works on this run",
                    field="run",
                    value=run_id,
                    expected="one that has stopped",
                )
            seen_s = last_s
            await asyncio.sleep(1.5 * BEAT_S)
        await self._store_left()

    async def _read(self, work: Callable[[sa.Connection], T]) -> T:
        """What `work` returns, after all records of this process are stored."""
        await self._writer.flushed()
        return await self._store.read(work)

    async def newest(self, limit: int) -> list[RunRecord]:
        """The last runs."""
        return await self._store.read(partial(run_rows.newest, limit=limit))

    async def request_cancel(self, run_id: str) -> bool:
        """Ask for a run to be cancelled. False if no process works on it."""
        return await self._store.write(partial(run_rows.request_cancel, run_id=run_id))

    async def note_models(self, run_id: str, stage: str, records: Sequence[Sequence[object]]) -> None:
        """What was measured of models of a stage; of each model, as it runs, the first report stays."""
        await self._store.write(partial(run_rows.note_models, run_id=run_id, stage=stage, records=records))

    async def end(self, run_id: str, state: str) -> None:
        """A run is over, after all that was noted of it."""
        await self._writer.flushed()
        await self._store.write(
            partial(run_rows.end, run_id=run_id, owner=self.owner, state=state, now_s=time.time())
        )

    async def inputs(self, run_id: str) -> list[InputRecord]:
        """The inputs of a run."""
        return await self._read(partial(run_rows.inputs_of, run_id=run_id))

    async def results(self, run_id: str) -> list[ResultRecord]:
        """The results of a run's stages."""
        return await self._read(partial(run_rows.results_of, run_id=run_id))

    async def attempts(self, run_id: str) -> list[AttemptRecord]:
        """The attempts of a run's stages."""
        return await self._read(partial(run_rows.attempts_of, run_id=run_id))

    async def begin_failed_again(self, run_id: str, states: Sequence[str] = ("failed", "cancelled")) -> int:
        """Inputs that ended in these states begin again; returns how many."""
        return await self._store.write(partial(run_rows.begin_failed_again, run_id=run_id, states=states))

    async def add_inputs(self, run_id: str, inputs: Sequence[tuple[int, bytes]]) -> None:
        """Store further inputs of a run."""
        await self._store.write(partial(run_rows.add_inputs, run_id=run_id, inputs=inputs))

    async def change_input(self, run_id: str, number: int, given: bytes) -> None:
        """Store another input in the place of one."""
        await self._store.write(partial(run_rows.change_input, run_id=run_id, number=number, given=given))

    async def change_options(self, run_id: str, options: str) -> None:
        """Store other options of a run."""
        await self._store.write(partial(run_rows.change_options, run_id=run_id, options=options))

    async def peaks(self, chain: str, runs: int) -> list[run_rows.Peak]:
        """The most memory that each stage of a chain has taken in its last runs."""
        return await self._store.read(partial(run_rows.peaks_of, chain=chain, runs=runs))

    async def remembered(self, most: int) -> dict[str, run_rows.KeptOutput]:
        """Kept outputs by key, those of most worth."""
        return await self._store.read(partial(run_rows.remembered, most=most))

    async def evict(self, most_bytes: int) -> tuple[list[bytes], float]:
        """Drop kept outputs of least worth per byte until the others fit."""
        return await self._store.write(partial(run_rows.evict, most_bytes=most_bytes))

    # Copies of runs.

    async def page(self, table: str, run_id: str, first: int) -> list[run_rows.Row]:
        """Rows of a table, of one run, from `first` on."""
        return await self._read(partial(run_rows.page, table=table, run_id=run_id, first=first))

    async def refusal_of_copy(self, run: RunRecord) -> str:
        """Why a run of another journal cannot be added; "" = it can."""
        return await self._store.write(partial(run_rows.refusal, run=run))

    async def add_rows(self, table: str, rows: Sequence[run_rows.Row]) -> None:
        """Add rows of a run of another journal."""
        await self._store.write(partial(run_rows.add_rows, table=table, rows=rows))

    async def add_copy(self, run: RunRecord) -> None:
        """Add a run of another journal, after its rows."""
        await self._store.write(partial(run_rows.add_run, run=run))

    # What happens in runs: stored in order, many at a time.

    def note_attempt(self, run_id: str, attempt: AttemptRecord, durable: Told | None = None) -> None:
        """An attempt is about to begin; `durable` is called when that is stored."""
        self._writer.add(ATTEMPTS, (run_id, *attempt), durable)

    def note_result(self, run_id: str, result: ResultRecord) -> None:
        """An instance has a result; of several the first stays."""
        self._writer.add(RESULTS, (run_id, *result))

    def note_input(self, run_id: str, number: int, state: str, error: str) -> None:
        """An input is over. It ends once."""
        self._writer.add(INPUTS, (state, error, time.time(), run_id, number))

    def remember(self, key: str, output: bytes, size_bytes: int, service_s: float, credit: float) -> None:
        """Keep an output for equal inputs."""
        self._writer.add(MEMO, (key, output, size_bytes, service_s, credit))

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            with contextlib.suppress(StoreUnavailable):
                for run_id in await self._beat():
                    self._cancelled(run_id)

    async def _beat(self) -> list[str]:
        return await self._store.write(partial(_beaten, owner=self.owner))


def _beaten(connection: sa.Connection, owner: str) -> list[str]:
    sign_of_life(connection, owner)
    return run_rows.to_cancel(connection, owner)


def _stored_left(connection: sa.Connection, database: Path) -> list[Path]:
    files = left_files(database, set(connection.scalars(living(connection, LEASE_S))))
    store_files(connection, files)
    return files
