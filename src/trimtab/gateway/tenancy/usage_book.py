"""Usage per tenant, model and day: summed in memory, written every second and at the end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from trimtab.jobs import JobStore, StoreUnavailable
from trimtab.jobs.store.database import upsert
from trimtab.jobs.store.processes import sign_of_life
from trimtab.jobs.store.schema import processes, usage

_COUNTS = ("requests", "prompt_tokens", "completion_tokens", "service_s")


@dataclass(slots=True)
class Totals:
    """A tenant's usage of a model in a day."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    service_s: float = 0.0


_Book = dict[tuple[str, str, str], Totals]  # by tenant, model and day


class UsageBook:
    """Sums up usage; `run` writes it. A batch that could not be written is kept and retried."""

    def __init__(self, store: JobStore, *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._store, self._clock = store, clock
        self._writer = secrets.token_hex(8)  # id of this writer, for the numbers of its batches
        self._open: _Book = defaultdict(Totals)
        self._sent: _Book = {}  # frozen until the database has it: its number makes a retry safe
        self._batch = 0
        self._flushing = asyncio.Lock()
        self._day = ""
        self._day_ends_s = 0.0

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """Add a served request. Never raises or waits."""
        now_s = self._clock()
        if now_s >= self._day_ends_s:
            self._day = datetime.fromtimestamp(now_s, UTC).date().isoformat()
            self._day_ends_s = (now_s // 86_400 + 1) * 86_400
        totals = self._open[tenant, model, self._day]
        totals.requests += 1
        totals.prompt_tokens += prompt_tokens
        totals.completion_tokens += completion_tokens
        totals.service_s += service_s

    async def flush(self) -> None:
        """Write all usage so far. Raises StoreUnavailable; no usage is lost."""
        async with self._flushing:
            await self._send()  # the batch of a failed try
            self._sent, self._open = self._open, defaultdict(Totals)
            self._batch += 1
            await self._send()  # later usage waits for the next flush, else this might never end

    async def _send(self) -> None:
        if self._sent:
            await self._store.write(partial(self._write, book=self._sent, batch=self._batch))
            self._sent = {}

    async def run(self, period_s: float = 1.0) -> None:
        """Flush every `period_s` until cancelled. Call `flush` once more afterwards."""
        while True:
            await asyncio.sleep(period_s)
            if self._open or self._sent:
                with suppress(StoreUnavailable):  # `JobStore.available` shows it; the batch is kept
                    await self.flush()

    async def totals(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """All usage so far by tenant and model, for JSON; None = all tenants.

        `since` is the first day (UTC). Raises StoreUnavailable.
        """
        await self.flush()
        names = (usage.c.tenant, usage.c.model)
        sums = [sa.func.sum(usage.c[name]).label(name) for name in _COUNTS]
        query = sa.select(*names, *sums, sa.func.min(usage.c.day).label("since")).group_by(*names)
        if tenant is not None:
            query = query.where(usage.c.tenant == tenant)
        rows = await self._store.read(lambda connection: connection.execute(query.order_by(*names)).all())
        return [dict(row._mapping) | {name: int(getattr(row, name)) for name in _COUNTS[:3]} for row in rows]

    def _write(self, connection: sa.Connection, book: _Book, batch: int) -> None:
        if not _batch_is_new(connection, self._writer, batch):
            return  # written already: the answer to its COMMIT was lost
        rows = [
            {"tenant": tenant, "model": model, "day": day} | {name: getattr(totals, name) for name in _COUNTS}
            for (tenant, model, day), totals in sorted(book.items())
        ]
        insert = upsert(connection, usage)
        sums = {name: usage.c[name] + insert.excluded[name] for name in _COUNTS}
        keys = [usage.c.tenant, usage.c.model, usage.c.day]
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=sums), rows)


def _batch_is_new(connection: sa.Connection, writer: str, batch: int) -> bool:
    """Mark the batch as added. False = it was already marked."""
    sign_of_life(connection, writer)
    done = connection.execute(
        sa.update(processes)
        .where(processes.c.id == writer, processes.c.usage_batch < batch)
        .values(usage_batch=batch)
    )
    return done.rowcount > 0
