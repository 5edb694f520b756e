"""What operators did to nodes: kept over restarts, shared by replicas, undone on purpose only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from support.databases import opened_store
from trimtab.errors import ConfigError
from trimtab.gateway.app.node_changes import NodeChanges
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.discovery import reconcile
from trimtab.gateway.nodes.fleet import Fleet, FleetOptions
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.jobs import JobStore, StoreUnavailable

CONFIGURED = ("a", "b", "c")


def spec(name: str) -> NodeSpec:
    return NodeSpec(name, "http://127.0.0.1:9")


class Replica:
    """A fleet of three configured nodes, and the changes of operators."""

    def __init__(self, store: JobStore) -> None:
        self.fleet = Fleet(asyncio.get_running_loop(), FleetOptions(drain_s=0.0))
        self.reload()
        self.changes = NodeChanges(store, self.fleet, register=self._register, reconcile=self.reload)

    def reload(self) -> None:
        assert reconcile(self.fleet, "config", [spec(name) for name in CONFIGURED]) == []

    async def _register(self, entry: Mapping[str, Any]) -> str:
        return self.fleet.add(spec(entry["name"]), "admin").name

    def seen(self) -> dict[str, str]:
        """Nodes that are there, and whether they get work."""
        return {
            node.name: "works" if self.fleet.gets_work(node) else node.health.name.lower()
            for node in self.fleet.present()
        }

    async def end(self) -> None:
        await self.changes.close()
        self.fleet.close()


CHANGED = {"a": "draining", "c": "works", "new": "works"}


async def changed(replica: Replica) -> None:
    await replica.changes.open()
    await replica.changes.drain("a")
    await replica.changes.remove("b")
    assert await replica.changes.add({"name": "new"}) == "new"
    assert replica.seen() == CHANGED


async def test_it_holds_over_a_reload_and_a_restart(store_url: str) -> None:
    async with opened_store(store_url) as store:
        first = Replica(store)
        await changed(first)
        first.reload()
        assert first.seen() == CHANGED
        await first.end()
        second = Replica(store)
        assert second.seen() == dict.fromkeys(CONFIGURED, "works")
        await second.changes.open()
        assert second.seen() == CHANGED
        shown = [change.shown() for change in second.changes.all()]
        assert [(one["name"], one["status"], one["added"]) for one in shown] == [
            ("a", "drained", False),
            ("b", "removed", False),
            ("new", "in_service", True),
        ]
        await second.end()


async def test_it_ends_when_an_operator_undoes_it(store_url: str) -> None:
    async with opened_store(store_url) as store:
        replica = Replica(store)
        await changed(replica)
        await replica.changes.drain("new")
        for name in ("a", "b"):
            await replica.changes.undrain(name)
        await replica.changes.remove("new")
        assert replica.seen() == dict.fromkeys(CONFIGURED, "works")
        assert replica.changes.all() == []
        with pytest.raises(ConfigError):
            await replica.changes.undrain("none")
        await replica.end()
        again = Replica(store)
        await again.changes.open()
        assert again.seen() == dict.fromkeys(CONFIGURED, "works")
        await again.end()


async def test_replicas_take_over_each_others_changes(store_url: str) -> None:
    async with opened_store(store_url) as store:
        first, second = Replica(store), Replica(store)
        await second.changes.open()
        await changed(first)
        await second.changes.sync()
        assert second.seen() == CHANGED
        await second.changes.undrain("a")
        await second.changes.undrain("b")
        await second.changes.remove("new")
        await first.changes.sync()
        assert first.seen() == dict.fromkeys(CONFIGURED, "works")
        await first.end()
        await second.end()


async def test_without_the_database_it_holds_and_is_written_later(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("no answer")

    async with opened_store(store_url) as store:
        replica = Replica(store)
        with monkeypatch.context() as patched:
            patched.setattr(store, "read", away)
            patched.setattr(store, "write", away)
            await changed(replica)
            await replica.changes.sync()
            assert replica.seen() == CHANGED
        await replica.changes.sync()
        assert replica.seen() == CHANGED
        await replica.end()
        again = Replica(store)
        await again.changes.open()
        assert again.seen() == CHANGED
        await again.end()


async def test_a_drained_node_that_comes_later_or_comes_back_is_drained(store_url: str) -> None:
    async with opened_store(store_url) as store:
        first = Replica(store)
        first.fleet.add(spec("found"), "dns:x")
        await first.changes.open()
        await first.changes.drain("found")
        await first.end()
        second = Replica(store)
        await second.changes.open()
        node = second.fleet.add(spec("found"), "dns:x")
        assert node.health is Health.DRAINING
        second.fleet.options = FleetOptions(drain_s=60.0)
        node.in_flight = 1
        second.fleet.dismiss(node)
        assert second.fleet.add(spec("found"), "dns:x") is node  # it was leaving
        assert not second.fleet.gets_work(node)
        await second.end()
