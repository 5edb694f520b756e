"""Limits of tenants that replicas with one store share.

Each replica keeps buckets of its own, writes every SYNC_S what it has taken from them, and takes from its own
what the others have taken. So over a long time all replicas together admit what one would. Between two
syncs a replica does not know what the others admit: all together may exceed a limit by what the others
admit in SYNC_S (and the time of the store), which the buckets then lack. Without the store each replica has
the whole limits for itself.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.gateway.tenancy.tenant_limits import Elsewhere, Limits, Taken
from trimtab.jobs import JobStore, StoreUnavailable
from trimtab.jobs.store.database import database_now_s, upsert
from trimtab.jobs.store.schema import limit_counts

SYNC_S: Final = 1.0
LEASE_S: Final = 15.0  # requests in flight of a replica that is silent for longer do not count
_REFRESH_S: Final = 5.0  # of rows that have requests in flight
_KEPT_S: Final = 3600.0  # rows of replicas that have ended; by then every bucket is full again
_SKEW_S: Final = 5.0  # a row may be written this long before it can be read

_Key = tuple[str, str]  # process and tenant


class SharedLimits:
    """Exchanges with the other replicas what was taken from limits."""

    def __init__(self, store: JobStore, tenants: Iterable[Tenant], now_s: Callable[[], float]) -> None:
        """`now_s`: the loop's clock."""
        self._store, self._tenants, self._now_s = store, tenants, now_s
        self._process = secrets.token_hex(8)
        self._written: dict[str, tuple[Taken, float]] = {}  # by tenant, with the loop's time
        self._seen: dict[_Key, tuple[float, float]] = {}  # requests and tokens that were counted here
        self._read_s = 0.0  # the database's time of the last sync; 0 = none yet
        self._task = PeriodicTask("shared limits", self.sync, SYNC_S, first_after_s=SYNC_S)

    async def open(self) -> None:
        """Begin where the other replicas are, and follow them."""
        await self.sync()
        self._task.start()

    async def close(self) -> None:
        """Stop. What is in flight here stops counting elsewhere after LEASE_S."""
        await self._task.close()

    async def sync(self) -> None:
        """Write what was taken here, and count what was taken elsewhere."""
        limits: dict[str, Limits] = {
            tenant.name: tenant.limits
            for tenant in self._tenants
            if tenant.limits is not None and tenant.limits.is_bounded
        }
        if not limits:
            return
        now_s = self._now_s()
        taken = {name: of.taken(now_s) for name, of in limits.items()}
        changed = {name: one for name, one in taken.items() if self._is_new(name, one, now_s)}
        exchange = partial(_exchange, process=self._process, taken=changed, since_s=self._read_s)
        try:
            database_s, rows = await (self._store.write if changed else self._store.read)(exchange)
        except StoreUnavailable:
            return
        self._written |= {name: (one, now_s) for name, one in changed.items()}
        is_first, self._read_s = not self._read_s, database_s
        if is_first:
            self._begin_with(limits, rows, database_s)
        elsewhere = self._elsewhere(rows, database_s)
        for name, of in limits.items():
            of.count_elsewhere(now_s, elsewhere.get(name, Elsewhere()))

    def _is_new(self, name: str, taken: Taken, now_s: float) -> bool:
        before, written_s = self._written.get(name, (None, 0.0))
        if before is None:
            return bool(taken.requests or taken.tokens or taken.in_flight)
        is_old = taken.in_flight > 0 and now_s - written_s >= _REFRESH_S
        return is_old or taken[:2] != before[:2] or taken[4:] != before[4:]

    def _begin_with(self, limits: Mapping[str, Limits], rows: Iterable[Any], database_s: float) -> None:
        """A new replica has no more left than the others, or those before it."""
        now_s = self._now_s()
        for row in rows:
            self._seen[row.process, row.tenant] = row.requests, row.tokens
            if row.tenant in limits:
                age_s = max(0.0, database_s - row.seen_s)
                limits[row.tenant].lower(now_s, row.requests_left, row.tokens_left, age_s)

    def _elsewhere(self, rows: Iterable[Any], database_s: float) -> dict[str, Elsewhere]:
        found: defaultdict[str, Elsewhere] = defaultdict(Elsewhere)
        for row in rows:
            requests, tokens = self._seen.get((row.process, row.tenant), (0.0, 0.0))
            self._seen[row.process, row.tenant] = row.requests, row.tokens
            is_alive = database_s - row.seen_s < LEASE_S
            before = found[row.tenant]
            found[row.tenant] = Elsewhere(
                before.requests + row.requests - requests,
                before.tokens + row.tokens - tokens,
                before.in_flight + is_alive * row.in_flight,
                before.jobs + is_alive * row.jobs,
            )
        return found


def _exchange(
    connection: sa.Connection, process: str, taken: Mapping[str, Taken], since_s: float
) -> tuple[float, list[Any]]:
    """Write this replica's rows; returns the database's time and the others' rows that may be new."""
    now_s = float(connection.execute(sa.select(database_now_s(connection))).scalar_one())
    if taken:
        insert = upsert(connection, limit_counts)
        values = {c.name: insert.excluded[c.name] for c in limit_counts.c if not c.primary_key}
        keys = [limit_counts.c.process, limit_counts.c.tenant]
        connection.execute(
            insert.on_conflict_do_update(index_elements=keys, set_=values),
            [
                {"process": process, "tenant": name, "seen_s": now_s, **one._asdict()}
                for name, one in sorted(taken.items())
            ],
        )
        connection.execute(sa.delete(limit_counts).where(limit_counts.c.seen_s < now_s - _KEPT_S))
    from_s = min(now_s - LEASE_S, since_s - _SKEW_S)
    others = sa.select(limit_counts).where(limit_counts.c.process != process, limit_counts.c.seen_s > from_s)
    return now_s, list(connection.execute(others).all())
