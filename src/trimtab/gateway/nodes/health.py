"""Active checks: does a node answer, and what does it serve?

A node that fails some checks in a row is held; it is let go after some that succeed. A node that has never
answered is held at its first failure. Checks go on whatever the state of a node, so that it comes back even
when all are down. A check that runs into its time limit while the node works on something that is not
overdue says nothing: a server with one thread can't answer during a long prefill. A check that failed while
this process itself did not run is void and done again at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.client import Client, Page, UnansweredError
from trimtab.gateway.nodes.condition import LEAVING, Hold
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.rounds import Rounds
from trimtab.gateway.nodes.spec import Listing

_USUAL_PATH, _LIST_PATH = "/health", "/v1/models"
_MISSING = (404, 405, 501)
_MOST_VOID = 3  # in a row: a loop that is late all the time must not blind the checks


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """How nodes are checked."""

    period_s: float = 5.0
    jitter_frac: float = 0.1
    timeout_s: float = 2.0
    unhealthy_after: int = 3  # failures in a row
    healthy_after: int = 2  # successes in a row
    models_period_s: float = 30.0  # how often the list of models is read again


@dataclass(slots=True, eq=False)
class _Check:
    """How the checks of one node went."""

    rounds: Rounds
    failures: int = 0
    successes: int = 0
    voids: int = 0
    path: str = _USUAL_PATH
    listed_s: float = float("-inf")


class Checker:
    """Checks all nodes of a fleet. `answered(node)` is called after every check that a node passed."""

    def __init__(
        self,
        fleet: Fleet,
        options: HealthOptions | None = None,
        is_excused: Callable[[Node], bool] = lambda node: False,
        answered: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self._fleet, self._options = fleet, options or HealthOptions()
        self._is_excused, self._answered = is_excused, answered
        self._client = Client(self._options.timeout_s)
        self._checks: dict[int, _Check] = {}
        self._asked = 0  # pages that have not come yet
        fleet.pulse.on_beat.append(lambda: self._asked > 0)
        self._closing: set[asyncio.Task[None]] = set()
        self._is_running = False

    def start(self) -> None:
        """Check every node from now on, those that come later too."""
        self._is_running = True
        self._fleet.listeners.append(self)
        for node in self._fleet.present():
            self.on_added(node)

    async def close(self) -> None:
        """End all checks. It can be started again."""
        self._is_running = False
        if self in self._fleet.listeners:
            self._fleet.listeners.remove(self)
        checks, self._checks = list(self._checks.values()), {}
        await asyncio.gather(*(check.rounds.close() for check in checks), *self._closing)
        await self._client.close()

    def check_now(self, node: Node) -> None:
        """Do not wait for the period."""
        check = self._checks.get(node.idx)
        if check is not None:
            check.rounds.now()

    def on_added(self, node: Node) -> None:
        """A listener's call."""
        if not self._is_running or node.idx in self._checks:
            return
        rounds = Rounds(
            f"check of {node.name}",
            lambda: self._turn(node),
            self._options.period_s,
            self._options.jitter_frac,
        )
        spec = self._fleet.condition(node).spec
        self._checks[node.idx] = _Check(rounds, path=spec.health_path or _USUAL_PATH)
        rounds.start()

    def on_removed(self, node: Node) -> None:
        """A listener's call."""
        check = self._checks.pop(node.idx, None)
        if check is not None:
            task = self._fleet.loop.create_task(check.rounds.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def on_switch(self, node: Node) -> None:
        """A listener's call."""

    def on_models(self, node: Node) -> None:
        """A listener's call."""

    def on_adapters(self, node: Node) -> None:
        """A listener's call."""

    def on_capacity(self, node: Node) -> None:
        """A listener's call."""

    async def _turn(self, node: Node) -> None:
        check = self._checks.get(node.idx)
        if check is None:  # removed while this turn was about to begin
            return
        begun_s = self._fleet.loop.time()
        try:
            page = await self._page(node, check)
            problem = _problem(page)
        except UnansweredError as error:
            if check.voids < _MOST_VOID and self._fleet.pulse.spans_gap(begun_s):
                check.voids += 1
                check.rounds.now()
                return
            if error.is_timeout and self._is_excused(node):
                return
            problem = str(error)
        check.voids = 0
        if problem:
            self._failed(node, check, problem)
        else:
            await self._list(node, check)
            self._passed(node, check)

    async def _page(self, node: Node, check: _Check) -> Page:
        page = await self._get(node, check.path)
        is_own_choice = not self._fleet.condition(node).spec.health_path
        if page.status in _MISSING and is_own_choice and check.path == _USUAL_PATH:
            check.path = _LIST_PATH
            page = await self._get(node, check.path)
        return page

    async def _get(self, node: Node, path: str) -> Page:
        condition = self._fleet.condition(node)
        address = replace(condition.address, server_name=node.server_name)
        self._fleet.pulse.start()
        self._asked += 1
        try:
            return await self._client.get(node, address, path)
        finally:
            self._asked -= 1

    def _failed(self, node: Node, check: _Check, problem: str) -> None:
        condition = self._fleet.condition(node)
        check.successes, check.failures = 0, check.failures + 1
        self._fleet.report(f"node {node.name}", problem)
        if check.failures >= self._options.unhealthy_after or not condition.was_up:
            self._fleet.hold(node, Hold.CHECKS, problem)

    def _passed(self, node: Node, check: _Check) -> None:
        condition = self._fleet.condition(node)
        check.failures, check.successes = 0, check.successes + 1
        self._fleet.report(f"node {node.name}", "")
        if Hold.CHECKS in condition.holds and (
            check.successes >= self._options.healthy_after or not condition.was_up
        ):
            self._fleet.release(node, Hold.CHECKS)
            if not condition.was_up:  # it was never ill, only late
                self._fleet.skip_warming(node)
        condition.was_up = True
        self._answered(node)

    async def _list(self, node: Node, check: _Check) -> None:
        """Read what it serves, when it is time or it was away. No list is no fault: images have none."""
        now_s = self._fleet.loop.time()
        is_back = Hold.CHECKS in self._fleet.condition(node).holds
        is_leaving = self._fleet.condition(node).holds.keys() & LEAVING
        if is_leaving or (not is_back and now_s - check.listed_s < self._options.models_period_s):
            return
        check.listed_s = now_s
        try:
            page = await self._get(node, _LIST_PATH)
            listing = parse_listing(page.body) if page.status == 200 else None
        except UnansweredError:
            listing = None
        if listing is not None:
            self._fleet.set_listing(node, listing)
        is_blind = listing is None and not node.models
        self._fleet.report(
            f"models of {node.name}", "it lists no models, and its entry names none" if is_blind else ""
        )


def parse_listing(body: bytes) -> Listing | None:
    """The answer of /v1/models; None where it is none. An entry with a `parent` is an adapter."""
    try:
        entries: Any = json.loads(body)["data"]
        named = [(entry["id"], entry.get("parent")) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(isinstance(name, str) and name for name, _ in named):
        return None
    models = tuple(dict.fromkeys(name for name, parent in named if not parent))
    return Listing(models, {name: str(parent) for name, parent in named if parent})


def _problem(page: Page) -> str:
    """What is wrong with an answer; "" = nothing."""
    if page.status < 300 or page.status == 429:  # too busy to talk is alive
        return ""
    if page.status < 400:
        return f"it redirects ({page.status}), which is not followed"
    if page.status in (401, 403):
        return f"it refuses our credentials ({page.status})"
    return f"its check answers {page.status}"
