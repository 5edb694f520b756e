"""Changes of nodes by the admin API: added, drained, removed. A change holds until another undoes it.

The store keeps it, so a reload and a restart change nothing of it, and replicas that share a database share
it. While the database is away a change holds in this process and is written later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

import orjson
import sqlalchemy as sa

from trimtab.errors import UsageError
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.jobs import JobStore, StoreUnavailable
from trimtab.jobs.store.schema import node_changes

logger = logging.getLogger(__name__)

Json = dict[str, Any]
SYNC_S: Final = 5.0  # how often changes of other replicas are read
_ADMIN: Final = "admin"  # source of nodes that the admin API added


class NodeStatus(Enum):
    """The wish of an operator for a node."""

    IN_SERVICE = "in_service"
    DRAINED = "drained"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The change of one node. A node in service that was not added has none."""

    name: str
    status: NodeStatus
    entry: Json | None  # of an added node, as in `nodes` of gateway.yaml; None = another source has it
    changed_s: float  # since 1970

    def shown(self) -> Json:
        """For operators."""
        return {
            "name": self.name,
            "status": self.status.value,
            "added": self.entry is not None,
            "changed_at": self.changed_s,
        }

    def note(self) -> str:
        """The change in words."""
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.changed_s))
        added = "added by an operator" if self.entry is not None else ""
        status = "" if self.status is NodeStatus.IN_SERVICE else f"{self.status.value} by an operator"
        return f"{', '.join(part for part in (added, status) if part)}, since {since}"


Changes = Mapping[str, NodeChange]


class NodeChanges:
    """Makes the changes, keeps them, and makes them again after a start.

    `register` adds a node from its entry and returns its name. `reconcile` makes the nodes of all other
    sources what the sources say.
    """

    def __init__(
        self,
        store: JobStore,
        fleet: Fleet,
        *,
        register: Callable[[Mapping[str, Any]], Awaitable[str]],
        reconcile: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._fleet, self._clock = store, fleet, clock
        self._register, self._reconcile = register, reconcile
        self._changes: dict[str, NodeChange] = {}
        self._unsaved: set[str] = set()
        self._leaving: dict[str, Json] = {}  # entries of added nodes that are removed and still drain
        self._saving = asyncio.Lock()
        self._task = PeriodicTask("changes of nodes", self.sync, SYNC_S, first_after_s=SYNC_S)

    async def open(self) -> None:
        """Make the changes that the store holds, and follow those of other replicas."""
        await self.sync()
        self._task.start()

    async def close(self) -> None:
        """Stop following."""
        await self._task.close()

    def all(self) -> list[NodeChange]:
        """Every change that is in force, by name."""
        return [self._changes[name] for name in sorted(self._changes)]

    # --- what operators do

    async def add(self, entry: Json) -> str:
        """Add a node; returns its name. Raises UsageError."""
        name = await self._register(entry)
        await self._set(name, NodeStatus.IN_SERVICE, entry)
        return name

    async def drain(self, name: str) -> None:
        """Give the node no new work. Raises ConfigError for an unknown name."""
        self._fleet.drain(name)
        await self._set(name, NodeStatus.DRAINED, self._entry(name))

    async def undrain(self, name: str) -> None:
        """Give the node work again; a removed node comes back from its source. Raises ConfigError."""
        change = self._changes.get(name)
        is_removed = change is not None and change.status is NodeStatus.REMOVED
        if not is_removed or self._fleet.find(name) is not None:
            self._fleet.undrain(name)
        self._fleet.removed.discard(name)
        if is_removed:
            self._reconcile()
        await self._set(name, NodeStatus.IN_SERVICE, self._leaving.pop(name, None) or self._entry(name))

    async def remove(self, name: str) -> None:
        """Drain the node, then remove it. Raises ConfigError for an unknown name."""
        node = self._fleet.remove(name)
        if self._fleet.state(node).source != _ADMIN:
            self._fleet.removed.add(name)
            await self._set(name, NodeStatus.REMOVED, None)
            return
        self._leaving = {n: e for n, e in self._leaving.items() if self._fleet.find(n) is not None}
        if (entry := self._entry(name)) is not None:
            self._leaving[name] = entry
        await self._set(name, NodeStatus.IN_SERVICE, None)

    def _entry(self, name: str) -> Json | None:
        change = self._changes.get(name)
        return None if change is None else change.entry

    # --- the store

    async def _set(self, name: str, status: NodeStatus, entry: Json | None) -> None:
        if status is NodeStatus.IN_SERVICE and entry is None:
            self._changes.pop(name, None)
        else:
            self._changes[name] = NodeChange(name, status, entry, self._clock())
        self._unsaved.add(name)
        try:
            async with self._saving:
                await self._save()
        except StoreUnavailable as error:
            logger.warning("the change of node %s is not stored yet: %s", name, error)

    async def _save(self) -> None:
        names, self._unsaved = self._unsaved, set()
        if not names:
            return
        try:
            wanted = {name: self._changes.get(name) for name in names}
            await self._store.write(partial(_write, changes=wanted))
        except BaseException:
            self._unsaved |= names
            raise

    async def sync(self) -> None:
        """Write what is not stored yet, and take over what other replicas have stored."""
        try:
            async with self._saving:
                await self._save()
                found = await self._store.read(_read)
                if self._unsaved:  # changed meanwhile
                    return
                before, self._changes = self._changes, found
        except StoreUnavailable:
            return
        await self._apply(before, found)

    async def _apply(self, before: Changes, after: Changes) -> None:
        changed = [name for name in sorted({*before, *after}) if _wish(before, name) != _wish(after, name)]
        self._fleet.removed = _names(after.values(), NodeStatus.REMOVED)
        self._fleet.drained |= _names(after.values(), NodeStatus.DRAINED)  # nodes may come later
        for name in changed:
            await self._apply_one(name, before.get(name), after.get(name))
        if any(name in before and before[name].status is NodeStatus.REMOVED for name in changed):
            self._reconcile()

    async def _apply_one(self, name: str, before: NodeChange | None, after: NodeChange | None) -> None:
        fleet, entry = self._fleet, None if after is None else after.entry
        status = NodeStatus.IN_SERVICE if after is None else after.status
        was_added = before is not None and before.entry is not None
        if status is NodeStatus.REMOVED or (was_added and entry is None):
            if fleet.find(name) is not None:
                fleet.remove(name)
            return
        if entry is not None and fleet.find(name) is None:
            source = f"node {name}, added by an operator"
            try:
                await self._register(entry)
                fleet.report(source, "")
            except UsageError as error:
                fleet.report(source, str(error))
        if fleet.find(name) is None:
            if status is NodeStatus.IN_SERVICE:
                fleet.drained.discard(name)
        elif status is NodeStatus.DRAINED:
            fleet.drain(name)
        else:
            fleet.undrain(name)


def _names(changes: Iterable[NodeChange], status: NodeStatus) -> set[str]:
    return {change.name for change in changes if change.status is status}


def _wish(changes: Changes, name: str) -> tuple[NodeStatus, Json | None] | None:
    change = changes.get(name)
    return None if change is None else (change.status, change.entry)


def _read(connection: sa.Connection) -> dict[str, NodeChange]:
    rows = connection.execute(sa.select(node_changes)).all()
    return {
        row.name: NodeChange(
            row.name, NodeStatus(row.status), orjson.loads(row.entry) if row.entry else None, row.changed_s
        )
        for row in rows
    }


def _write(connection: sa.Connection, changes: Mapping[str, NodeChange | None]) -> None:
    connection.execute(sa.delete(node_changes).where(node_changes.c.name.in_(changes)))
    rows = [
        {
            "name": change.name,
            "status": change.status.value,
            "entry": "" if change.entry is None else orjson.dumps(change.entry).decode(),
            "changed_s": change.changed_s,
        }
        for change in changes.values()
        if change is not None
    ]
    if rows:
        connection.execute(sa.insert(node_changes), rows)
