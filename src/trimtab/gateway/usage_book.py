"""Usage per tenant, model and day: added up in memory, written every second and at the end."""

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
from trimtab.jobs.store.processes import sign_of_life
from trimtab.jobs.store.schema import processes, usage
from trimtab.jobs.store.sql_dialect import upsert

_COUNTS = ("requests", "prompt_tokens", "completion_tokens", "service_s")


@dataclass(slots=True)
class Totals:
    """What a tenant has used of a model in a day."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    service_s: float = 0.0


_Book = dict[tuple[str, str, str], Totals]  # by tenant, model and day


class UsageBook:
    """Adds up usage; `run` writes it. A batch that could not be written is kept and tried again."""

    def __init__(self, store: JobStore, *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._store, self._clock = store, clock
        self._writer = secrets.token_hex(8)  # whose batches are numbered
        self._open: _Book = defaultdict(Totals)
        self._sent: _Book = {}  # frozen until the database has it: its number makes a second try harmless
        self._batch = 0
        self._flushing = asyncio.Lock()
        self._day = ""
        self._day_ends_s = 0.0

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """One more request that was served. Never raises or waits."""
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
        """Write what has come up to now. Raises StoreUnavailable; nothing is lost by that."""
        async with self._flushing:
            await self._send()  # what an earlier try has left
            self._sent, self._open = self._open, defaultdict(Totals)
            self._batch += 1
            await self._send()  # what comes meanwhile is for the next flush: else this had no end

    async def _send(self) -> None:
        if self._sent:
            await self._store.write(partial(self._write, book=self._sent, batch=self._batch))
            self._sent = {}

    async def run(self, period_s: float = 1.0) -> None:
        """Flush every `period_s`, until cancelled; call `flush` once more then."""
        while True:
            await asyncio.sleep(period_s)
            if self._open or self._sent:
                with suppress(StoreUnavailable):  # `JobStore.available` tells; the batch is kept
                    await self.flush()

    async def totals(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """All usage up to now by tenant and model, as JSON may hold it; None = of all tenants.

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
            return  # the answer to its COMMIT was lost
        rows = [
            {"tenant": tenant, "model": model, "day": day} | {name: getattr(totals, name) for name in _COUNTS}
            for (tenant, model, day), totals in sorted(book.items())
        ]
        insert = upsert(connection, usage)
        sums = {name: usage.c[name] + insert.excluded[name] for name in _COUNTS}
        keys = [usage.c.tenant, usage.c.model, usage.c.day]
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=sums), rows)


def _batch_is_new(connection: sa.Connection, writer: str, batch: int) -> bool:
    """Mark the batch as added; False = it already was."""
    sign_of_life(connection, writer)
    done = connection.execute(
        sa.update(processes)
        .where(processes.c.id == writer, processes.c.usage_batch < batch)
        .values(usage_batch=batch)
    )
    return done.rowcount > 0
