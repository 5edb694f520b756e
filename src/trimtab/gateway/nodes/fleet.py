"""All nodes, in the order of their index, and which of them get work.

A part that finds a reason to withhold a node calls `hold`, and `release` when the reason is gone. A node gets
work while nothing holds it. So health checks, circuit breaker, outlier ejection, inactivity timeout and drain
are independent of each other. Listeners are told of every change.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from trimtab.errors import ConfigError
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, authorization, parse_base, tls_context
from trimtab.gateway.nodes.health_rule import SlowStart, SlowStartOptions
from trimtab.gateway.nodes.node_state import (
    FAULTS,
    LEAVING,
    MAY_HAVE_RESTARTED,
    NEEDS_SLOW_START,
    HealthEvent,
    Hold,
    Listing,
    NodeSpec,
    NodeState,
)
from trimtab.gateway.nodes.tenant_holds import TenantHolds
from trimtab.gateway.stalled_streams import StallDetector


class FleetListener:
    """A part that follows the nodes overrides the methods that it needs. Calls must not raise or wait."""

    def on_added(self, node: Node) -> None:
        """The fleet has a new node, at the end; or a removed one is back at its old index."""

    def on_removed(self, node: Node) -> None:
        """The node is gone. Its index stays taken."""

    def on_switch(self, node: Node) -> None:
        """The node gets work from now on, or gets none: see `Fleet.gets_work`."""

    def on_tenant_released(self, node: Node, tenant: str) -> None:
        """The node is no longer withheld from this tenant: see `nodes.tenant_holds`."""

    def on_models(self, node: Node) -> None:
        """`node.models` or its adapters have changed."""

    def on_adapters(self, node: Node) -> None:
        """The node holds other adapters or models: `NodeState.held`."""

    def on_capacity(self, node: Node) -> None:
        """`node.max_requests` has changed, or the part of it that slow start allows."""

    def on_report(self, node: Node, source: str, values: Mapping[str, float]) -> None:
        """`node.reported` has other values, these from this source; none = its reports are too old."""

    def on_round_trip(self, node: Node, seconds: float) -> None:
        """A health check of the node took this long."""


class RemovalHook(FleetListener):
    """Calls `removed(node)` when a node is gone."""

    def __init__(self, removed: Callable[[Node], None]) -> None:
        self._removed = removed

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._removed(node)


logger = logging.getLogger(__name__)

_IDLE_LOOK_S = 0.05  # how often a draining node is looked at


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How nodes come and go."""

    drain_s: float = 30.0  # how long a removed node may go on with its requests
    slow_start: SlowStartOptions = field(default_factory=SlowStartOptions)


class Fleet:
    """The nodes. All calls come from the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: FleetOptions | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.loop = loop
        self.stall_detector = StallDetector(loop)
        self.options = options or FleetOptions()
        self.nodes: list[Node] = []
        self.listeners: list[FleetListener] = []
        self.problems: dict[str, str] = {}  # source → what is wrong now
        self.drained: set[str] = set()  # names of nodes that get no work, present or not, until `undrain`
        self.removed: set[str] = set()  # names of nodes that no source brings back
        self._slow_start = SlowStart(loop, self.options.slow_start, changed=self._slow_start_changed)
        self.tenant_holds = TenantHolds(loop, self._tenant_hold_ended)
        self._states: list[NodeState] = []
        self._by_name: dict[str, Node] = {}
        self._environment = environment
        self._leaving: asyncio.TimerHandle | None = None

    # --- membership

    def add(self, spec: NodeSpec, source: str = "config") -> Node:
        """A new node, or one that left and is back. Raises ConfigError for a name in use or a bad entry."""
        known = self._by_name.get(spec.name)
        if known is not None and not self._is_leaving(known):
            raise ConfigError("is the name of another node", field="name", value=spec.name)
        if known is not None and self.state(known).spec == spec:
            return self._restore(known, source)
        address = parse_base(spec.url)
        node = self._made(spec, address)
        self.nodes.append(node)
        state = NodeState(spec, address, source, _declared(spec, node.models))
        state.held_models = _none_held(spec)
        self._states.append(state)
        self._by_name[spec.name] = node
        self._tell("on_added", node)
        self._keep_drained(node)
        return node

    def update(self, node: Node, spec: NodeSpec) -> bool:
        """Change a running node; False = the change needs a new node: add and remove."""
        state = self.state(node)
        if _identity(spec) != _identity(state.spec) or self._is_leaving(node):
            return False
        if spec.hooks != state.spec.hooks:
            state.held_models = _none_held(spec)
        state.spec = spec
        node.max_tokens, node.type_name = spec.max_tokens, spec.type_name or spec.name
        node.is_429_its_own = spec.is_429_its_own
        self._serve(node, state.listing or Listing(node.models, {}))
        self.set_capacity(node, spec.max_requests)
        return True

    def replace(self, node: Node, spec: NodeSpec, source: str) -> Node:
        """Add another node of the same name; the old one drains. Raises ConfigError for a bad entry."""
        self._made(spec, parse_base(spec.url))  # raises before the old one is touched
        self.dismiss(node)
        return self.add(spec, source)

    def find(self, name: str) -> Node | None:
        """The node of this name that is not gone."""
        node = self._by_name.get(name)
        return None if node is None or Hold.REMOVED in self.state(node).holds else node

    def present(self) -> list[Node]:
        """The nodes that are not gone, draining ones included."""
        return [node for node in self.nodes if Hold.REMOVED not in self.state(node).holds]

    def drain(self, name: str) -> Node:
        """Give the node no new work; it stays. Raises ConfigError for an unknown name."""
        node = self.known(name)
        self.drained.add(name)
        self.hold(node, Hold.DRAINING, "draining")
        return node

    def undrain(self, name: str) -> Node:
        """Give the node work again, unless another reason holds it; a removal is called off."""
        node = self.known(name)
        self.drained.discard(name)
        self.state(node).remove_by_s = math.inf
        self.release(node, Hold.DRAINING)
        return node

    def remove(self, name: str, drain_s: float | None = None) -> Node:
        """Drain the node until it is idle, or for `drain_s`. Raises ConfigError for an unknown name."""
        node = self.known(name)
        self.dismiss(node, drain_s)
        return node

    def dismiss(self, node: Node, drain_s: float | None = None) -> None:
        """`remove` by node instead of name. Its name is free at once."""
        self.hold(node, Hold.DRAINING, "draining, to be removed")
        drain_s = self.options.drain_s if drain_s is None else drain_s
        state = self.state(node)
        state.remove_by_s = min(state.remove_by_s, self.loop.time() + drain_s)
        self._look_at_leaving()

    # --- which nodes get work

    def state(self, node: Node) -> NodeState:
        """The state of a node; read only."""
        return self._states[node.idx]

    def gets_work(self, node: Node) -> bool:
        """Whether nothing holds it."""
        return not self._states[node.idx].holds

    def known(self, name: str) -> Node:
        """The node of this name. Raises ConfigError where there is none."""
        node = self.find(name)
        if node is None:
            raise ConfigError("is no node", field="name", value=name, expected="a node of GET /admin/nodes")
        return node

    def hold(self, node: Node, hold: Hold, reason: str, for_s: float | None = None) -> None:
        """Give the node no new work, until `release` or for a time. A later hold of its kind replaces it."""
        state = self.state(node)
        was_open = state.is_open
        self._forget_timer(node, hold)
        state.holds[hold] = reason
        if hold in NEEDS_SLOW_START:
            self._slow_start.happened(HealthEvent.FAULT, node, state)
        if hold in MAY_HAVE_RESTARTED:
            if state.held_models:
                state.held_models = set()
                self._tell("on_adapters", node)
            self._hold_adapters(node, set(state.listing.adapters if state.listing else ()))
        if for_s is not None:
            state.until_s[hold] = self.loop.time() + for_s
            state.timers[hold] = self.loop.call_later(for_s, self.release, node, hold)
        self._after(node, state, was_open)

    def release(self, node: Node, hold: Hold) -> None:
        """End this hold. After a fault the node is on trial, then ramps up."""
        state = self.state(node)
        self._forget_timer(node, hold)
        if state.holds.pop(hold, None) is None:
            return
        if hold in NEEDS_SLOW_START and not state.holds.keys() & NEEDS_SLOW_START:
            self._slow_start.happened(HealthEvent.CLEARED, node, state)
        self._after(node, state, was_open=False)

    def hold_for(self, node: Node, hold: Hold, reason: str, for_s: float, tenant: str | None) -> None:
        """`hold` for what this tenant alone has met at the node; None = several have. See `tenant_holds`."""
        if tenant is None or not self.tenant_holds.others_are_active(tenant):
            self.hold(node, hold, reason, for_s)
            if tenant is not None:
                self.tenant_holds.provisional[node.idx, hold] = tenant
            return
        self.tenant_holds.keep(node, hold, reason, tenant, for_s)
        if hold in FAULTS:
            logger.warning("node %s: %s; only for tenant %s", node.name, reason, tenant)

    def meet(self, tenant: str) -> list[int]:
        """A request of this tenant has come; returns positions of the nodes that are withheld from it."""
        holds = self.tenant_holds
        holds.note(tenant)
        for (node_idx, hold), cause in list(holds.provisional.items()):
            if cause != tenant:
                node, state = self.nodes[node_idx], self._states[node_idx]
                holds.keep(node, hold, state.holds[hold], cause, state.until_s[hold] - self.loop.time())
                self.release(node, hold)
        return holds.of(tenant)

    def n_withheld_for_faults(self) -> int:
        """Nodes that get no work because of a fault, those that leave excepted."""
        return sum(
            1 for state in self._states if state.holds.keys() & FAULTS and not state.holds.keys() & LEAVING
        )

    def n_staying(self) -> int:
        """Nodes that are neither removed nor draining."""
        return sum(1 for state in self._states if not state.holds.keys() & LEAVING)

    # --- how much work

    def ramp_frac(self, node: Node, now_s: float) -> float:
        """The part of its capacity that a node may use, 0..1; 0 = one request, on trial."""
        return self._slow_start.ramp_frac(self._states[node.idx], now_s)

    def allowed_requests(self, node: Node, now_s: float) -> int:
        """Requests that the node may have in flight now, if it gets work: at least 1."""
        return max(1, math.ceil(self.ramp_frac(node, now_s) * node.max_requests - 1e-9))

    def end_trial(self, node: Node) -> None:
        """The node passed its trial: the ramp begins. Without a trial nothing happens."""
        self._slow_start.happened(HealthEvent.ANSWERED, node, self.state(node))

    @property
    def on_trial(self) -> AbstractSet[int]:
        """Positions of the nodes that must answer one request before they get more."""
        return self._slow_start.on_trial

    def skip_slow_start(self, node: Node) -> None:
        """Allow all its capacity at once: it never failed."""
        self._slow_start.happened(HealthEvent.SKIPPED, node, self.state(node))

    def set_capacity(self, node: Node, max_requests: int) -> None:
        """Another capacity in requests, at least 1."""
        if max_requests != node.max_requests:
            node.max_requests = max(1, max_requests)
            self._tell("on_capacity", node)

    # --- models and adapters

    def set_listing(self, node: Node, listing: Listing) -> None:
        """Take over the node's own list. Models that its entry declares stay; adapters for them are added."""
        state = self.state(node)
        before, state.listing = state.listing, listing
        gone = set() if before is None else before.adapters.keys() - listing.adapters.keys()
        self._serve(node, listing)
        self._hold_adapters(node, (state.held_adapters - gone) | listing.adapters.keys())

    def report_adapters(self, node: Node, active: tuple[str, ...]) -> None:
        """The node reports that these adapters have requests there."""
        self._hold_adapters(node, self.state(node).held_adapters.union(active))

    def set_held(self, node: Node, item: str, *, is_held: bool) -> None:
        """The node holds this model or adapter from now on, or no longer."""
        state = self.state(node)
        if item in state.adapters:
            self._hold_adapters(
                node, state.held_adapters | {item} if is_held else state.held_adapters - {item}
            )
        elif state.held_models is not None and (item in state.held_models) is not is_held:
            state.held_models ^= {item}
            self._tell("on_adapters", node)

    def _serve(self, node: Node, listing: Listing) -> None:
        state = self.state(node)
        models = state.spec.models or listing.models
        adapters = _declared(state.spec, models)
        adapters |= {name: base for name, base in listing.adapters.items() if base in models or not base}
        if (models, adapters) != (node.models, state.adapters):
            node.models, state.adapters = models, adapters
            self._tell("on_models", node)

    def _hold_adapters(self, node: Node, held: set[str]) -> None:
        state = self.state(node)
        held &= state.adapters.keys()
        if held != state.held_adapters:
            state.held_adapters = held
            self._tell("on_adapters", node)

    def reports(self, node: Node, source: str, values: Mapping[str, float]) -> None:
        """The node's reported values have changed, by a page of this source; none = its page is too old."""
        for listener in self.listeners:
            listener.on_report(node, source, values)

    def took(self, node: Node, seconds: float) -> None:
        """A round trip to the node took this long."""
        for listener in self.listeners:
            listener.on_round_trip(node, seconds)

    def checked(self, node: Node, problem: str) -> None:
        """The result of a health check; "" = the node passed it."""
        self.report(f"node {node.name}", problem)
        state = self.state(node)
        state.fails_checks = bool(problem)
        self._log_health(node, state)

    def report(self, source: str, problem: str) -> None:
        """Note a problem that stops nothing; "" = it is solved. Logged once for each change."""
        if self.problems.get(source, "") == problem:
            return
        if problem:
            logger.warning("%s: %s", source, problem)
            self.problems[source] = problem
        else:
            logger.info("%s: solved", source)
            self.problems.pop(source, None)

    def close(self) -> None:
        """Cancel all timers."""
        self.tenant_holds.close()
        for state in self._states:
            state.cancel_timers()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    # --- internals

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
            ssl=tls_context(address.tls, spec.ca_file),
            base_path=address.path,
            server_name=spec.server_name,
            is_429_its_own=spec.is_429_its_own,
        )

    def _restore(self, node: Node, source: str) -> Node:
        """Take the same node back at its old index, with a key that may be new."""
        state = self.state(node)
        node.authorization = authorization(state.spec.api_key_env, self._environment)
        node.ssl = tls_context(node.tls, state.spec.ca_file)
        was_gone = Hold.REMOVED in state.holds
        state.source, state.remove_by_s = source, math.inf
        if was_gone:
            state.holds.clear()
            self._slow_start.happened(HealthEvent.RETURNED, node, state)
            state.was_up = False
            state.listing, state.held_adapters, state.held_models = None, set(), _none_held(state.spec)
            state.write_health(node)
            self._tell("on_added", node)
        else:
            self.release(node, Hold.DRAINING)
        self._keep_drained(node)
        return node

    def _keep_drained(self, node: Node) -> None:
        if node.name in self.drained:
            self.hold(node, Hold.DRAINING, "draining")

    def _is_leaving(self, node: Node) -> bool:
        return self.state(node).remove_by_s < math.inf

    def _after(self, node: Node, state: NodeState, was_open: bool) -> None:
        state.write_health(node)
        self._log_health(node, state)
        if state.is_open is not was_open:
            self._tell("on_switch", node)

    def _log_health(self, node: Node, state: NodeState) -> None:
        """Log a change of health. A node on trial, or whose last check failed, may be dead still: not up."""
        may_be_dead = state.is_open and (state.is_on_trial or state.fails_checks)
        if node.health is state.logged_health or may_be_dead:
            return
        state.logged_health = node.health
        logger.log(
            logging.INFO if state.is_open else logging.WARNING,
            "node %s: %s%s",
            node.name,
            node.health.name.lower(),
            f" ({node.reason})" if node.reason else "",
        )

    def _slow_start_changed(self, node: Node) -> None:
        self._log_health(node, self.state(node))
        self._tell("on_capacity", node)

    def _tenant_hold_ended(self, node: Node, tenant: str) -> None:
        for listener in self.listeners:
            listener.on_tenant_released(node, tenant)

    def _tell(self, event: str, node: Node) -> None:
        for listener in self.listeners:
            getattr(listener, event)(node)

    def _forget_timer(self, node: Node, hold: Hold) -> None:
        state = self.state(node)
        self.tenant_holds.provisional.pop((node.idx, hold), None)
        state.until_s.pop(hold, None)
        timer = state.timers.pop(hold, None)
        if timer is not None:
            timer.cancel()

    def _look_at_leaving(self) -> None:
        """Remove the draining nodes that are idle or overdue; look again while any is left."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        now_s, is_any_left = self.loop.time(), False
        for node in self.present():
            state = self.state(node)
            if state.remove_by_s == math.inf:
                continue
            if node.in_flight == 0 or now_s >= state.remove_by_s:
                self._gone(node, state)
            else:
                is_any_left = True
        if is_any_left:
            self._leaving = self.loop.call_later(_IDLE_LOOK_S, self._look_at_leaving)

    def _gone(self, node: Node, state: NodeState) -> None:
        self._slow_start.happened(HealthEvent.REMOVED, node, state)
        state.cancel_timers()
        self.tenant_holds.forget(node)
        state.holds = {Hold.REMOVED: "removed"}
        state.write_health(node)
        for source in [name for name in self.problems if name.endswith(f" {node.name}")]:
            del self.problems[source]
        self._tell("on_removed", node)


def _declared(spec: NodeSpec, models: tuple[str, ...]) -> dict[str, str]:
    """Adapters that the entry names → their model: the node's only one, else "" = unknown."""
    return dict.fromkeys(spec.adapters, models[0] if len(models) == 1 else "")


def _none_held(spec: NodeSpec) -> set[str] | None:
    """The models that a new node is known to hold: all, without calls that load them."""
    return None if spec.hooks is None or spec.hooks.models is None else set()


def _identity(spec: NodeSpec) -> tuple[object, ...]:
    """The fields that make a node what it is: connections and estimates depend on them."""
    return (spec.name, spec.url, spec.server_name, spec.ca_file, spec.api_key_env, spec.type_name, spec.auto)
