"""What the admin port can do to the gateway: of one process, or of a parent with its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError, UsageError
from trimtab.gateway.admin.control import Json, Status
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.gateway import Gateway
from trimtab.gateway.jobs.service import JobService
from trimtab.gateway.model import Health
from trimtab.gateway.observe import exposition, status
from trimtab.gateway.observe.book import Book
from trimtab.gateway.observe.status import NodeFigures
from trimtab.version import __version__

if TYPE_CHECKING:
    from trimtab.gateway.workers import Workers

Reload = Callable[[], GatewayConfig]


class LocalControl:
    """Implements `admin.control.Control`. `reload` reads the configuration again; None = there is no file."""

    def __init__(self, gateway: Gateway, reload: Reload | None, service: JobService) -> None:
        self._gateway, self._reload, self._service = gateway, reload, service
        self._began_s = time.time()

    async def nodes(self) -> list[NodeFigures]:
        """All nodes."""
        gateway = self._gateway
        return status.node_figures(gateway.metrics.book(), gateway.fleet.present(), gateway.loop.time())

    async def add_node(self, spec: Json) -> NodeFigures:
        """Take in a node."""
        name = await self._gateway.register(spec)
        return next(figures for figures in await self.nodes() if figures["name"] == name)

    async def drain(self, name: str) -> bool:
        """Give it nothing new."""
        return self._on_node(name, self._gateway.fleet.drain)

    async def undrain(self, name: str) -> bool:
        """Let it have work again."""
        return self._on_node(name, self._gateway.fleet.undrain)

    async def remove(self, name: str) -> bool:
        """Drain it, then forget it."""
        return self._on_node(name, self._gateway.fleet.remove)

    def _on_node(self, name: str, change: Callable[[str], Any]) -> bool:
        try:
            change(name)
        except ConfigError:
            return False
        return True

    async def reload(self) -> Json:
        """Read the configuration again."""
        if self._reload is None:
            raise UsageError("there is no configuration file to read again", field="reload")
        return await self._gateway.reload(self._reload())

    async def replay(self) -> Json:
        """Replay the recording under the live and the shadow policy."""
        replays = self._gateway.comparison.replays
        told = None if replays is None else await replays.run()
        if told is None:
            raise UsageError(
                "there is nothing to replay",
                field="shadow",
                expected="a shadow policy without experiment, and `record`",
            )
        return told

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request."""
        return self._gateway.receipts.find(request_id)

    async def usage(self, tenant: str | None) -> list[Json]:
        """What tenants have used of models."""
        return await self._service.usage.told(tenant)

    async def metrics(self) -> bytes:
        """The text of `/metrics`."""
        await self.count_jobs()
        return exposition.exposition(self._gateway.metrics.book())

    async def status(self) -> Status:
        """Everything that the dashboard shows."""
        await self.count_jobs()
        told = self.status_of(self._gateway.metrics.book(), [decider_figures(self._gateway)])
        told["nodes"] = await self.nodes()
        return told

    async def count_jobs(self) -> None:
        """What is told of jobs next is as of now: they are counted when somebody looks."""
        await self._service.count()

    def status_of(self, book: Book, figures: Sequence[Json]) -> Status:
        """All of the status but `nodes`: of one process, or of several with their book and figures."""
        gateway = self._gateway
        told: Status = {
            "version": __version__,
            "started_at": self._began_s,
            "listen": gateway.config.listen,
            "ready": gateway.is_ready,
            "draining": gateway.plane.context.draining,
            "queue": _queue(figures, gateway.decider.rules.held_max),
            "policy": {
                "name": gateway.decider.rules.default.spec,
                "decisions": sum(one["decisions"] for one in figures),
                "failures": sum(one["failures"] for one in figures),
                "decision_us": gateway.decider.notes.decision_s * 1e6 or None,
                "candidates": max(figures, key=lambda one: one["decisions"])["candidates"],
            },
            "shadow": _shadow(gateway.comparison.told(), figures),
            "jobs": dict(gateway.job_counts),
            "notes": [*gateway.problems, *(f"{who}: {what}" for who, what in gateway.fleet.problems.items())],
        }
        told.update(status.observed(book))  # type: ignore[typeddict-item]
        return told


class PooledControl:
    """Implements `admin.control.Control` for a parent: what is done to it is done to every worker."""

    def __init__(self, local: LocalControl, gateway: Gateway, workers: Workers) -> None:
        self._local, self._gateway, self._workers = local, gateway, workers

    async def nodes(self) -> list[NodeFigures]:
        """All nodes, with the loads of all workers, and as ill as the worst of them finds each."""
        figures = await self._workers.look()
        return self._nodes(self._book(), figures)

    async def add_node(self, spec: Json) -> NodeFigures:
        """Take in a node."""
        added = await self._local.add_node(spec)
        fleet = self._gateway.fleet
        await self._workers.add_node(fleet.condition(fleet.known(added["name"])).spec)
        return added

    async def drain(self, name: str) -> bool:
        """Give it nothing new."""
        return await self._local.drain(name) and await self._workers.on_node("drain", name)

    async def undrain(self, name: str) -> bool:
        """Let it have work again."""
        return await self._local.undrain(name) and await self._workers.on_node("undrain", name)

    async def remove(self, name: str) -> bool:
        """Drain it, then forget it."""
        return await self._local.remove(name) and await self._workers.on_node("remove", name)

    async def reload(self) -> Json:
        """Read the configuration again: the parent takes it first, and finds what is wrong with it."""
        done = await self._local.reload()
        await self._workers.reload(self._gateway.config)
        return done

    async def replay(self) -> Json:
        """Replay what was recorded: each worker records for itself, so there is no recording of all."""
        raise UsageError("each worker records a part only", field="workers", expected="1, to replay live")

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request; jobs are the parent's own."""
        return await self._local.receipt(request_id) or await self._workers.receipt(request_id)

    async def usage(self, tenant: str | None) -> list[Json]:
        """What tenants have used of models: workers report every half second."""
        return await self._local.usage(tenant)

    async def metrics(self) -> bytes:
        """The text of `/metrics`: all processes together."""
        await asyncio.gather(self._workers.look(), self._local.count_jobs())
        return exposition.exposition(self._book())

    async def status(self) -> Status:
        """Everything that the dashboard shows."""
        figures, _ = await asyncio.gather(self._workers.look(), self._local.count_jobs())
        book = self._book()
        told = self._local.status_of(book, [decider_figures(self._gateway), *figures])
        told["ready"] = any(one["ready"] for one in figures)
        told["nodes"] = self._nodes(book, figures)
        told["workers"] = [one["worker"] for one in figures]
        return told

    def _book(self) -> Book:
        return self._workers.book(Book.from_bytes(self._gateway.metrics.snapshot()))

    def _nodes(self, book: Book, figures: Sequence[Json]) -> list[NodeFigures]:
        gateway = self._gateway
        now_s = gateway.loop.time()
        nodes = status.node_figures(book, gateway.fleet.present(), now_s)
        for node in nodes:
            seen = [one["nodes"][node["name"]] for one in figures if node["name"] in one["nodes"]]
            if not seen:
                continue
            health, reason, _ = max(seen)
            if health > Health[node["health"].upper()]:
                node["health"], node["reason"] = Health(health).name.lower(), reason
            last_byte_s = max(at_s for _, _, at_s in seen)
            if node["in_flight"] and last_byte_s:
                node["silence_s"] = max(0.0, now_s - last_byte_s)
        return nodes


def decider_figures(gateway: Gateway) -> Json:
    """What one process has decided and holds back, as JSON may hold it; several of these add up."""
    decider = gateway.decider
    entries = [entry for pool in decider.pools.values() for entry in pool.entries.values()]
    waiting = [entry.exchange for entry in entries if entry.node_idx < 0]
    by_class: dict[str, int] = {}
    for exchange in waiting:
        model = exchange.facts.model if exchange.facts is not None else ""
        by_class[model] = by_class.get(model, 0) + 1
    now_s, pool = gateway.loop.time(), decider.pools[decider.rules.default.spec]
    told = decider.notes.tally.figures()
    return {
        "length": len(waiting),
        "oldest_s": max((now_s - x.arrived_s for x in waiting), default=0.0),
        "by_class": by_class,
        "decisions": decider.decisions,
        "failures": sum(p.policy_failures for p in decider.pools.values()),
        "candidates": pool.standing.told(decider.now_s()),
        "shadow_decisions": told.decisions,
        "shadow_differ": told.differ,
        "shadow_predicted": told.predicted,
        "shadow_predicted_s": told.predicted_difference_s.mean if told.predicted else 0.0,
    }


def _queue(figures: Sequence[Json], held_max: int) -> Json:
    by_class: dict[str, int] = {}
    for one in figures:
        for model, count in one["by_class"].items():
            by_class[model] = by_class.get(model, 0) + count
    return {
        "length": sum(one["length"] for one in figures),
        "most": held_max * len(figures),
        "oldest_s": max(one["oldest_s"] for one in figures),
        "by_class": by_class,
    }


def _shadow(told: Json | None, figures: Sequence[Json]) -> Json | None:
    """What the comparison of this process tells, with what all have counted."""
    if told is None or len(figures) == 1:
        return told
    decisions = sum(one["shadow_decisions"] for one in figures)
    predicted = sum(one["shadow_predicted"] for one in figures)
    sum_s = sum(one["shadow_predicted_s"] * one["shadow_predicted"] for one in figures)
    return told | {
        "decisions": decisions,
        "disagreement_frac": sum(one["shadow_differ"] for one in figures) / decisions if decisions else None,
        "predicted_difference_s": sum_s / predicted if predicted else None,
        "predicted_difference_frac": None,
    }
