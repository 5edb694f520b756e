"""Active health checks, and the list of models that a node serves.

Some failed checks in a row hold a node; some successful ones release it. Until there are enough of them the
check is repeated every REPEAT_S, so that the period does not decide how long a dead node gets work. A node
that has never answered is held at its first failure. Checks go on in every state of a node, so that it comes
back even when all are down. A check that times out while the node works on requests that are not overdue is
ignored: a server with one thread cannot answer during a long prefill. A check that failed while this process
itself was stalled is void and repeated at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.fleet import Fleet, FleetListener
from trimtab.gateway.nodes.node_calls import Page, ProbeClient, UnansweredError
from trimtab.gateway.nodes.node_state import LEAVING, Hold, Listing
from trimtab.gateway.nodes.periodic import PeriodicTask

_DEFAULT_PATH, _LIST_PATH = "/health", "/v1/models"
_MISSING = (404, 405, 501)
REPEAT_S = 1.0
_MOST_VOID = 3  # in a row: a loop that is always late must not disable the checks


@dataclass(frozen=True, slots=True)
class HealthCheckOptions:
    """How often nodes are checked, and when they change state."""

    period_s: float = 5.0
    jitter_frac: float = 0.1
    timeout_s: float = 2.0
    unhealthy_threshold: int = 3  # failures in a row
    healthy_threshold: int = 2  # successes in a row
    models_period_s: float = 30.0  # how often the list of models is read again


@dataclass(slots=True, eq=False)
class _Check:
    """The results of one node's checks."""

    task: PeriodicTask
    failures: int = 0
    successes: int = 0
    voids: int = 0
    path: str = _DEFAULT_PATH
    listed_s: float = float("-inf")


class HealthChecker(FleetListener):
    """Checks all nodes of a fleet. `passed(node)` is called after every check that a node passed."""

    def __init__(
        self,
        fleet: Fleet,
        options: HealthCheckOptions | None = None,
        is_excused: Callable[[Node], bool] = lambda node: False,
        passed: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self._fleet, self._options = fleet, options or HealthCheckOptions()
        self._is_excused, self._on_passed = is_excused, passed
        self._client = ProbeClient(self._options.timeout_s)
        self._checks: dict[int, _Check] = {}
        self._pending = 0  # pages that have not arrived yet
        fleet.stall_detector.on_beat.append(lambda: self._pending > 0)
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
        await asyncio.gather(*(check.task.close() for check in checks), *self._closing)
        await self._client.close()

    def check_now(self, node: Node) -> None:
        """Do not wait for the period."""
        check = self._checks.get(node.idx)
        if check is not None:
            check.task.now()

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        if not self._is_running or node.idx in self._checks:
            return
        task = PeriodicTask(
            f"check of {node.name}",
            lambda: self._check(node),
            self._options.period_s,
            self._options.jitter_frac,
        )
        spec = self._fleet.state(node).spec
        self._checks[node.idx] = _Check(task, path=spec.health_path or _DEFAULT_PATH)
        task.start()

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        check = self._checks.pop(node.idx, None)
        if check is not None:
            task = self._fleet.loop.create_task(check.task.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _check(self, node: Node) -> None:
        check = self._checks.get(node.idx)
        if check is None:  # removed while this run was about to begin
            return
        begun_s = self._fleet.loop.time()
        try:
            page = await self._page(node, check)
            took_s = self._fleet.loop.time() - begun_s
            problem = _problem(page)
        except UnansweredError as error:
            if check.voids < _MOST_VOID and self._fleet.stall_detector.spans_gap(begun_s):
                check.voids += 1
                check.task.now()
                return
            if error.is_timeout and self._is_excused(node):
                return
            problem = str(error)
        check.voids = 0
        if problem:
            self._failed(node, check, problem)
        else:
            self._fleet.took(node, took_s)
            if await self._list(node, check):
                self._passed(node, check)
            else:
                self._repeat(check)

    async def _page(self, node: Node, check: _Check) -> Page:
        page = await self._get(node, check.path)
        is_own_choice = not self._fleet.state(node).spec.health_path
        if page.status in _MISSING and is_own_choice and check.path == _DEFAULT_PATH:
            check.path = _LIST_PATH
            page = await self._get(node, check.path)
        return page

    async def _get(self, node: Node, path: str) -> Page:
        state = self._fleet.state(node)
        address = replace(state.address, server_name=node.server_name)
        self._fleet.stall_detector.start()
        self._pending += 1
        try:
            return await self._client.get(node, address, path)
        finally:
            self._pending -= 1

    def _failed(self, node: Node, check: _Check, problem: str) -> None:
        state = self._fleet.state(node)
        check.successes, check.failures = 0, check.failures + 1
        self._fleet.checked(node, problem)
        if check.failures >= self._options.unhealthy_threshold or not state.was_up:
            self._fleet.hold(node, Hold.CHECKS, problem)
        else:
            self._repeat(check)

    def _repeat(self, check: _Check) -> None:
        """Check again soon: this result decides nothing yet."""
        self._fleet.loop.call_later(min(REPEAT_S, self._options.period_s), check.task.now)

    def _passed(self, node: Node, check: _Check) -> None:
        state = self._fleet.state(node)
        check.failures, check.successes = 0, check.successes + 1
        self._fleet.checked(node, "")
        if Hold.CHECKS in state.holds:
            if check.successes >= self._options.healthy_threshold or not state.was_up:
                self._fleet.release(node, Hold.CHECKS)
                if not state.was_up:  # it never failed, it only started late
                    self._fleet.skip_slow_start(node)
            else:
                self._repeat(check)
        state.was_up = True
        self._on_passed(node)

    async def _list(self, node: Node, check: _Check) -> bool:
        """Read the list of models when it is due or the node is back. Without a list nothing is wrong.

        False = which models it serves is not known yet: its list does not come.
        """
        now_s = self._fleet.loop.time()
        is_back = Hold.CHECKS in self._fleet.state(node).holds
        is_leaving = self._fleet.state(node).holds.keys() & LEAVING
        if is_leaving or (not is_back and now_s - check.listed_s < self._options.models_period_s):
            return True
        listing, source = None, f"models of {node.name}"
        try:
            page = await self._get(node, _LIST_PATH)
            listing = parse_listing(page.body) if page.status == 200 else None
        except UnansweredError as error:
            if not node.models:
                self._fleet.report(source, f"its list of models does not come: {error}")
                return False
        check.listed_s = now_s
        if listing is not None:
            self._fleet.set_listing(node, listing)
        has_no_models = listing is None and not node.models
        self._fleet.report(source, "it lists no models, and its entry names none" if has_no_models else "")
        return True


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
    """The fault of an answer; "" = none."""
    if page.status < 300 or page.status == 429:  # too busy to talk is alive
        return ""
    if page.status < 400:
        return f"it redirects ({page.status}), which is not followed"
    if page.status in (401, 403):
        return f"it refuses our credentials ({page.status})"
    return f"its check answers {page.status}"
