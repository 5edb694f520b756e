"""All nodes, in the order of their index, and who gets work.

Whoever finds a reason to withhold a node says so with `hold` and takes it back with `release`; a node gets
work while nothing holds it. So checks, breaker, ejection, silence and drain need not know of each other.
Listeners hear of every change.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.errors import ConfigError
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, parse_base
from trimtab.gateway.nodes.condition import COLD, FAULTS, LEAVING, MAY_BE_ANEW, Condition, Hold
from trimtab.gateway.nodes.credentials import authorization, tls_context
from trimtab.gateway.nodes.spec import Listing, NodeSpec
from trimtab.gateway.nodes.warming import Warming, WarmingOptions
from trimtab.gateway.pulse import Pulse

logger = logging.getLogger(__name__)

_IDLE_LOOK_S = 0.05  # how often a draining node is looked at


class Listener(Protocol):
    """Who must know what the nodes do. Calls must not raise or wait."""

    def on_added(self, node: Node) -> None:
        """A new node, at the end; or one that was removed and is back at its old index."""

    def on_removed(self, node: Node) -> None:
        """It is gone: nothing runs there, or its time was up. Its index stays taken."""

    def on_switch(self, node: Node) -> None:
        """It gets work from now on, or gets none: see `Fleet.gets_work`."""

    def on_models(self, node: Node) -> None:
        """`node.models` or its adapters have changed."""

    def on_adapters(self, node: Node) -> None:
        """It holds other adapters: `Condition.held_adapters`."""

    def on_capacity(self, node: Node) -> None:
        """`node.max_requests`, or what a warming node may take of it, has changed."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How nodes come and go."""

    drain_s: float = 30.0  # the longest that a removed node may finish its work
    warming: WarmingOptions = field(default_factory=WarmingOptions)


class Fleet:
    """The nodes. All calls come from the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: FleetOptions | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.loop = loop
        self.pulse = Pulse(loop)
        self.options = options or FleetOptions()
        self.nodes: list[Node] = []
        self.listeners: list[Listener] = []
        self.problems: dict[str, str] = {}  # who says it → what is wrong now
        self._warming = Warming(loop, self.options.warming, tell=lambda node: self._tell("on_capacity", node))
        self._conditions: list[Condition] = []
        self._by_name: dict[str, Node] = {}
        self._environment = environment
        self._leaving: asyncio.TimerHandle | None = None

    # who there is

    def add(self, spec: NodeSpec, source: str = "config") -> Node:
        """A new node, or one that left and is back. Raises ConfigError for a name in use or a bad entry."""
        known = self._by_name.get(spec.name)
        if known is not None and not self._is_leaving(known):
            raise ConfigError("is the name of another node", field="name", value=spec.name)
        if known is not None and self.condition(known).spec == spec:
            return self._welcome_back(known, source)
        address = parse_base(spec.url)
        node = self._made(spec, address)
        self.nodes.append(node)
        self._conditions.append(Condition(spec, address, source, _declared(spec, node.models)))
        self._by_name[spec.name] = node
        self._tell("on_added", node)
        return node

    def update(self, node: Node, spec: NodeSpec) -> bool:
        """Change what may change while it runs; False = it must be another node: add and remove."""
        condition = self.condition(node)
        if _identity(spec) != _identity(condition.spec) or self._is_leaving(node):
            return False
        condition.spec = spec
        node.max_tokens, node.type_name = spec.max_tokens, spec.type_name or spec.name
        self._serve(node, condition.listing or Listing(node.models, {}))
        self.set_capacity(node, spec.max_requests)
        return True

    def replace(self, node: Node, spec: NodeSpec, source: str) -> Node:
        """Another node of the same name; the old one drains and goes. Raises ConfigError for a bad entry."""
        self._made(spec, parse_base(spec.url))  # before the old one is touched
        self.dismiss(node)
        return self.add(spec, source)

    def find(self, name: str) -> Node | None:
        """The node of this name that is not gone."""
        node = self._by_name.get(name)
        return None if node is None or Hold.REMOVED in self.condition(node).holds else node

    def present(self) -> list[Node]:
        """The nodes that are not gone, draining ones included."""
        return [node for node in self.nodes if Hold.REMOVED not in self.condition(node).holds]

    def drain(self, name: str) -> Node:
        """It gets no new work from now on; it stays. Raises ConfigError for an unknown name."""
        node = self.known(name)
        self.hold(node, Hold.DRAINING, "draining")
        return node

    def undrain(self, name: str) -> Node:
        """It gets work again, unless something else holds it or it is being removed."""
        node = self.known(name)
        self.condition(node).remove_by_s = math.inf
        self.release(node, Hold.DRAINING)
        return node

    def remove(self, name: str, drain_s: float | None = None) -> Node:
        """Drain it; it is gone when idle, or after `drain_s`. Raises ConfigError for an unknown name."""
        node = self.known(name)
        self.dismiss(node, drain_s)
        return node

    def dismiss(self, node: Node, drain_s: float | None = None) -> None:
        """`remove`, for a node that is at hand. Its name is free at once."""
        self.hold(node, Hold.DRAINING, "draining, to be removed")
        drain_s = self.options.drain_s if drain_s is None else drain_s
        condition = self.condition(node)
        condition.remove_by_s = min(condition.remove_by_s, self.loop.time() + drain_s)
        self._look_at_leaving()

    # who gets work

    def condition(self, node: Node) -> Condition:
        """All that is known of a node; for reading."""
        return self._conditions[node.idx]

    def gets_work(self, node: Node) -> bool:
        """Whether nothing holds it."""
        return not self._conditions[node.idx].holds

    def known(self, name: str) -> Node:
        """The node of this name. Raises ConfigError where there is none."""
        node = self.find(name)
        if node is None:
            raise ConfigError("is no node", field="name", value=name, expected="a node of GET /admin/nodes")
        return node

    def hold(self, node: Node, hold: Hold, reason: str, for_s: float | None = None) -> None:
        """Withhold a node, until `release` or for a time. A second hold of one kind replaces the first."""
        condition = self.condition(node)
        was_open = condition.is_open
        self._forget_timer(condition, hold)
        condition.holds[hold] = reason
        if hold in COLD:
            self._warming.stop(node, condition)
        if hold in MAY_BE_ANEW:
            self._hold_adapters(node, set(condition.listing.adapters if condition.listing else ()))
        if for_s is not None:
            condition.until_s[hold] = self.loop.time() + for_s
            condition.timers[hold] = self.loop.call_later(for_s, self.release, node, hold)
        self._after(node, condition, was_open)

    def release(self, node: Node, hold: Hold) -> None:
        """Let a node go from this hold. After a fault it is on trial, then warms up."""
        condition = self.condition(node)
        self._forget_timer(condition, hold)
        if condition.holds.pop(hold, None) is None:
            return
        if hold in COLD and not condition.holds.keys() & COLD:
            self._warming.begin_trial(node, condition)
        self._after(node, condition, was_open=False)

    def n_withheld_for_faults(self) -> int:
        """Nodes that are here to stay but get no work because something is wrong with them."""
        return sum(
            1
            for condition in self._conditions
            if condition.holds.keys() & FAULTS and not condition.holds.keys() & LEAVING
        )

    def n_staying(self) -> int:
        """Nodes that are neither gone nor going."""
        return sum(1 for condition in self._conditions if not condition.holds.keys() & LEAVING)

    # how much work

    def ramp_frac(self, node: Node, now_s: float) -> float:
        """What part of its capacity a node may use, 0..1: 0 = one request, on trial."""
        return self._warming.ramp_frac(self._conditions[node.idx], now_s)

    def allowed_requests(self, node: Node, now_s: float) -> int:
        """How many requests it may have in flight now, were it to get work: at least 1."""
        return max(1, math.ceil(self.ramp_frac(node, now_s) * node.max_requests - 1e-9))

    def warm(self, node: Node) -> None:
        """Its trial was passed: the ramp begins. Without a trial nothing happens."""
        self._warming.passed(node, self.condition(node))

    @property
    def on_trial(self) -> AbstractSet[int]:
        """Positions of the nodes that must answer one request before they get more."""
        return self._warming.on_trial

    def skip_warming(self, node: Node) -> None:
        """All its capacity at once: it was never known to be ill."""
        self._warming.stop(node, self.condition(node))
        self._tell("on_capacity", node)

    def set_capacity(self, node: Node, max_requests: int) -> None:
        """Another capacity in requests, at least 1."""
        if max_requests != node.max_requests:
            node.max_requests = max(1, max_requests)
            self._tell("on_capacity", node)

    # what they serve

    def set_listing(self, node: Node, listing: Listing) -> None:
        """What the node itself lists. Models that its entry declares stay; adapters for them are added."""
        condition = self.condition(node)
        before, condition.listing = condition.listing, listing
        gone = set() if before is None else before.adapters.keys() - listing.adapters.keys()
        self._serve(node, listing)
        self._hold_adapters(node, (condition.held_adapters - gone) | listing.adapters.keys())

    def report_adapters(self, node: Node, active: tuple[str, ...]) -> None:
        """These have work there, by its own report."""
        self._hold_adapters(node, self.condition(node).held_adapters.union(active))

    def served_adapter(self, node: Node, name: str) -> None:
        """It has answered for this adapter: so it holds it."""
        held = self._conditions[node.idx].held_adapters
        if name not in held:
            self._hold_adapters(node, held | {name})

    def _serve(self, node: Node, listing: Listing) -> None:
        condition = self.condition(node)
        models = condition.spec.models or listing.models
        adapters = _declared(condition.spec, models)
        adapters |= {name: base for name, base in listing.adapters.items() if base in models or not base}
        if (models, adapters) != (node.models, condition.adapters):
            node.models, condition.adapters = models, adapters
            self._tell("on_models", node)

    def _hold_adapters(self, node: Node, held: set[str]) -> None:
        condition = self.condition(node)
        held &= condition.adapters.keys()
        if held != condition.held_adapters:
            condition.held_adapters = held
            self._tell("on_adapters", node)

    def report(self, source: str, problem: str) -> None:
        """Something is wrong that stops nothing; "" = it is right again. Logged once for each change."""
        if self.problems.get(source, "") == problem:
            return
        if problem:
            logger.warning("%s: %s", source, problem)
            self.problems[source] = problem
        else:
            logger.info("%s: all right again", source)
            self.problems.pop(source, None)

    def close(self) -> None:
        """No timer is left."""
        for condition in self._conditions:
            condition.cancel_timers()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    # inside

    def _made(self, spec: NodeSpec, address: Address) -> Node:
        if not spec.name:
            raise ConfigError("is missing", field="name", expected="a name")
        if spec.max_requests < 1:
            raise ConfigError("is too small", field="capacity", value=spec.max_requests, expected="1 or more")
        return Node(
            name=spec.name,
            url=spec.url,
            idx=len(self.nodes),
            host=address.host,
            port=address.port,
            tls=address.tls,
            models=spec.models,
            max_requests=spec.max_requests,
            max_tokens=spec.max_tokens,
            type_name=spec.type_name or spec.name,
            authorization=authorization(spec.api_key_env, self._environment),
            ssl=tls_context(address.tls, spec.ca),
            base_path=address.path,
            server_name=spec.server_name,
        )

    def _welcome_back(self, node: Node, source: str) -> Node:
        """The same node at its old index, with a key that may be new."""
        condition = self.condition(node)
        node.authorization = authorization(condition.spec.api_key_env, self._environment)
        node.ssl = tls_context(node.tls, condition.spec.ca)
        was_gone = Hold.REMOVED in condition.holds
        condition.source, condition.remove_by_s = source, math.inf
        if was_gone:
            condition.holds.clear()
            condition.was_up = False
            condition.listing, condition.held_adapters = None, set()
            condition.write_health(node)
            self._tell("on_added", node)
        else:
            self.release(node, Hold.DRAINING)
        return node

    def _is_leaving(self, node: Node) -> bool:
        return self.condition(node).remove_by_s < math.inf

    def _after(self, node: Node, condition: Condition, was_open: bool) -> None:
        before = node.health
        condition.write_health(node)
        if node.health is not before:
            logger.log(
                logging.INFO if condition.is_open else logging.WARNING,
                "node %s: %s%s",
                node.name,
                node.health.name.lower(),
                f" ({node.reason})" if node.reason else "",
            )
        if condition.is_open is not was_open:
            self._tell("on_switch", node)

    def _tell(self, event: str, node: Node) -> None:
        for listener in self.listeners:
            getattr(listener, event)(node)

    def _forget_timer(self, condition: Condition, hold: Hold) -> None:
        condition.until_s.pop(hold, None)
        timer = condition.timers.pop(hold, None)
        if timer is not None:
            timer.cancel()

    def _look_at_leaving(self) -> None:
        """Let go whoever is idle or late; look again while somebody is left."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        now_s, is_any_left = self.loop.time(), False
        for node in self.present():
            condition = self.condition(node)
            if condition.remove_by_s == math.inf:
                continue
            if node.in_flight == 0 or now_s >= condition.remove_by_s:
                self._gone(node, condition)
            else:
                is_any_left = True
        if is_any_left:
            self._leaving = self.loop.call_later(_IDLE_LOOK_S, self._look_at_leaving)

    def _gone(self, node: Node, condition: Condition) -> None:
        self._warming.stop(node, condition)
        condition.cancel_timers()
        condition.holds = {Hold.REMOVED: "removed"}
        condition.write_health(node)
        for source in [said for said in self.problems if said.endswith(f" {node.name}")]:
            del self.problems[source]
        self._tell("on_removed", node)


def _declared(spec: NodeSpec, models: tuple[str, ...]) -> dict[str, str]:
    """Adapters that the entry names → their model: where the node has just one, that; else "" = not said."""
    return dict.fromkeys(spec.adapters, models[0] if len(models) == 1 else "")


def _identity(spec: NodeSpec) -> tuple[object, ...]:
    """What can't change without becoming another node: connections and estimates hang on it."""
    return (spec.name, spec.url, spec.server_name, spec.ca, spec.api_key_env, spec.type_name, spec.auto)
