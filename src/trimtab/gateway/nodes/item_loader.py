"""Loads and unloads models and adapters on nodes, as a plan places them or a request needs them.

What is not confirmed is not resident: a call that fails or takes too long, or a node that is lost, leaves the
item absent, and the next try waits. A node has one call under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from trimtab.gateway.model import LoadEvent, Node
from trimtab.gateway.nodes.fleet import Fleet, FleetListener
from trimtab.gateway.nodes.load_hooks import HookCall, ItemHooks, LoadHooks
from trimtab.gateway.nodes.node_calls import HookClient, HookError
from trimtab.gateway.nodes.node_state import MAY_HAVE_RESTARTED
from trimtab.gateway.nodes.periodic import PeriodicTask

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.05  # how often a load that a plan wants looks for a free slot
MOST_BACKOFFS: Final = 16  # a back-off is at most so many times the first
_Key = tuple[int, str]  # node and item


@dataclass(slots=True)
class _Failures:
    count: int = 0
    until_s: float = 0.0  # no try before


class ItemLoader(FleetListener):
    """All calls come from the event loop's thread. `told` is called with every call that ended."""

    def __init__(self, fleet: Fleet, told: Callable[[LoadEvent], None], period_s: float = 2.0) -> None:
        self._fleet, self._told, self._client = fleet, told, HookClient()
        self.victims: Callable[[Node, str], Sequence[str]] = lambda _node, _item: ()
        self.is_in_use: Callable[[Node, str], bool] = lambda _node, _item: False
        self._wanted: dict[int, tuple[str, ...]] = {}
        self._failures: defaultdict[_Key, _Failures] = defaultdict(_Failures)
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loads: dict[_Key, asyncio.Task[bool]] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}  # the one under way, by node
        self._placing: dict[int, asyncio.Task[None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._probing = PeriodicTask("residency", self.probe, period_s)
        fleet.listeners.append(self)
        for node in fleet.nodes:
            self.on_added(node)

    def start(self) -> None:
        """Ask nodes what they hold from now on."""
        self._probing.start()

    async def close(self) -> None:
        """Stop everything."""
        await self._probing.close()
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._placing.values(), *self._loads.values(), *self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    # --- what is where

    def holds(self, node: Node, item: str) -> bool:
        """Whether the node is known to hold a model or an adapter."""
        return item in self._fleet.state(node).held()

    def loading(self, node: Node) -> list[str]:
        """The items that a node is loading."""
        return sorted(item for idx, item in self._loads if idx == node.idx)

    def missing(self, node: Node, model: str) -> list[str]:
        """The items that the node must load before it can serve a request for this model or adapter."""
        state = self._fleet.state(node)
        found = []
        for item in (state.adapters.get(model, ""), model):
            hooks = self._hooks(node).of(node, state.adapters, item) if item else None
            if hooks is not None and not hooks.loads_on_request and item not in state.held():
                found.append(item)
        return found

    # --- loading

    async def bring(self, node: Node, items: Iterable[str]) -> bool:
        """Load these; returns whether the node holds them all."""
        for item in items:
            if not await asyncio.shield(self.load(node, item)):
                return False
        return True

    def load(self, node: Node, item: str) -> asyncio.Task[bool]:
        """Load an item, once for all who need it; its result: whether the node holds it."""
        key = node.idx, item
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._fleet.loop.create_task(self._load(node, item))
            task.add_done_callback(lambda _: self._loads.pop(key, None))
        return task

    def place(self, node: Node, items: Sequence[str]) -> None:
        """Load these ahead of requests, in this order, while the node has a free slot."""
        self._wanted[node.idx] = tuple(items)
        self._place_now(node)

    def _place_now(self, node: Node) -> None:
        if node.idx in self._wanted and node.idx not in self._placing:
            task = self._placing[node.idx] = self._fleet.loop.create_task(self._place(node))
            task.add_done_callback(lambda _: self._placing.pop(node.idx, None))

    async def _place(self, node: Node) -> None:
        while True:
            wanted = self._wanted[node.idx]
            for item in wanted:
                while node.in_flight >= node.max_requests:
                    await asyncio.sleep(LOOK_S)
                if self._may_load(node, item):
                    await self.load(node, item)
            if self._hooks(node).unload_unplaced:
                for item in sorted(self._fleet.state(node).held() - set(wanted)):
                    await self._unload(node, item)
            if wanted == self._wanted[node.idx]:
                return

    def _may_load(self, node: Node, item: str) -> bool:
        state = self._fleet.state(node)
        is_due = self._fleet.loop.time() >= self._failures[node.idx, item].until_s
        is_possible = self._hooks(node).of(node, state.adapters, item) is not None and state.is_open
        return is_due and is_possible and not self.holds(node, item)

    async def _load(self, node: Node, item: str) -> bool:
        async with self._locks[node.idx]:
            hooks = self._hooks(node).of(node, self._fleet.state(node).adapters, item)
            if hooks is None or self.holds(node, item):
                return hooks is not None
            if self._fleet.loop.time() < self._failures[node.idx, item].until_s:
                return False
            if await self._is_there(node, item, hooks):
                self._fleet.set_held(node, item, is_held=True)
                return True
            for victim in self.victims(node, item):
                await self._unload_locked(node, victim)
            outcome = await self._call(node, item, "load", hooks.load)
            if outcome == "done":
                self._failures.pop((node.idx, item), None)
                self._fleet.set_held(node, item, is_held=True)
                return True
            self._back_off(node, item)
            if outcome == "timeout" and hooks.unload is not None:
                await self._call(node, item, "unload", hooks.unload)  # it may be loaded yet
            return False

    async def _unload(self, node: Node, item: str) -> None:
        async with self._locks[node.idx]:
            await self._unload_locked(node, item)

    async def _unload_locked(self, node: Node, item: str) -> None:
        hooks = self._hooks(node).of(node, self._fleet.state(node).adapters, item)
        if hooks is None or hooks.unload is None or self.is_in_use(node, item) or not self.holds(node, item):
            return
        self._fleet.set_held(node, item, is_held=False)  # no request may count on it from now on
        await self._call(node, item, "unload", hooks.unload)

    async def _call(self, node: Node, item: str, action: str, hook: HookCall) -> str:
        """Make one call; returns its outcome."""
        begun_s, problem = self._fleet.loop.time(), ""
        adapters = self._fleet.state(node).adapters
        names = {"model": adapters.get(item, item), "adapter": item if item in adapters else ""}
        call = self._calls[node.idx] = self._fleet.loop.create_task(self._client.call(node, hook, names))
        outcome = "done"
        try:
            async with asyncio.timeout(self._hooks(node).timeout_s):
                await call
        except TimeoutError:
            outcome, problem = "timeout", f"no answer within {self._hooks(node).timeout_s:g} s"
        except HookError as error:
            outcome, problem = "failed", str(error)
        except asyncio.CancelledError:
            if not call.cancelled() or _is_being_cancelled():
                raise
            outcome, problem = "lost", "the node was lost"
        finally:
            self._calls.pop(node.idx, None)
        seconds = self._fleet.loop.time() - begun_s
        level = logging.WARNING if problem else logging.INFO
        logger.log(level, "node %s: %s %s: %s", node.name, action, item, problem or f"{seconds:.3g} s")
        self._told(LoadEvent(node, item, action, outcome, seconds))
        return outcome

    async def _is_there(self, node: Node, item: str, hooks: ItemHooks) -> bool:
        """Whether the node says that it holds the item."""
        if hooks.probe is None:
            return False
        with contextlib.suppress(HookError, TimeoutError):
            async with asyncio.timeout(self._hooks(node).timeout_s):
                return item in await self._client.held(node, hooks.probe, frozenset((item,)))
        return False

    def _back_off(self, node: Node, item: str) -> None:
        failures = self._failures[node.idx, item]
        factor = min(2**failures.count, MOST_BACKOFFS)
        failures.count += 1
        wait_s = factor * self._hooks(node).backoff_s
        failures.until_s = self._fleet.loop.time() + wait_s
        timer = self._timers.get(node.idx)
        if timer is None or timer.when() > failures.until_s or timer.when() < self._fleet.loop.time():
            if timer is not None:
                timer.cancel()
            self._timers[node.idx] = self._fleet.loop.call_later(wait_s, self._place_now, node)

    # --- what nodes say

    async def probe(self) -> None:
        """Ask the nodes that can tell what they hold."""
        for node in self._fleet.present():
            hooks = self._fleet.state(node).spec.hooks
            if hooks is not None and hooks.models is not None and hooks.models.probe is not None:
                await self._probe(node, hooks.models, hooks)

    async def _probe(self, node: Node, models: ItemHooks, hooks: LoadHooks) -> None:
        assert models.probe is not None
        if self._locks[node.idx].locked():
            return  # a call changes it
        try:
            async with asyncio.timeout(hooks.timeout_s):
                held = await self._client.held(node, models.probe, frozenset(node.models))
        except (HookError, TimeoutError) as error:
            self._fleet.report(f"residency of {node.name}", str(error) or "no answer")
            return
        self._fleet.report(f"residency of {node.name}", "")
        if not self._locks[node.idx].locked():
            for item in node.models:
                self._fleet.set_held(node, item, is_held=item in held)

    # --- FleetListener

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        if self._fleet.state(node).spec.hooks is not None:
            node.loader = self

    def on_switch(self, node: Node) -> None:
        """End the call to a node that is lost; place again on one that is back."""
        state = self._fleet.state(node)
        if node.loader is None:
            return
        if state.holds.keys() & MAY_HAVE_RESTARTED:
            if node.idx in self._calls:
                self._calls[node.idx].cancel()
        elif state.is_open:
            self._place_now(node)

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._wanted.pop(node.idx, None)
        if node.idx in self._calls:
            self._calls[node.idx].cancel()

    def _hooks(self, node: Node) -> LoadHooks:
        hooks = self._fleet.state(node).spec.hooks
        return _NO_HOOKS if hooks is None else hooks


_NO_HOOKS: Final = LoadHooks(timeout_s=inf)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
