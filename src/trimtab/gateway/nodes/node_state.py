"""The state of one node: the reasons why it gets no work, and its health as a state machine.

A node gets work while no `Hold` is set. How much it gets is its `Phase`; `TRANSITIONS` says which event leads
from which phase to which, and with what effect. The table is drawn in docs/guides/serve.md.

The meaning of a node's error status: whether the node is at fault, or the request.

A 503 is about the node (RFC 9110 §15.6.4). A 429 is about the sender (RFC 6585 §4): the request's key or its
model has used up its rate, and the node has room for others. Some servers answer 429 when they are full
themselves. They say so in the error's type (text-generation-inference: `overloaded`), or the node's entry in
the configuration does.

The description of a node: from the configuration, a watched file or the admin API.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from trimtab.domain.cluster import ResourceName
from trimtab.gateway.model import Cause, Health, Node
from trimtab.gateway.nodes.address import Address
from trimtab.gateway.nodes.load_hooks import LoadHooks

RATE_LIMITED_STATUS: Final = 429
_UNAVAILABLE: Final = 503
_OVERLOADED: Final = re.compile(rb'"(?:error_type|type|code)"\s*:\s*"[^"]{0,64}overloaded', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A described node. It names where a secret is (`api_key_env`), never the secret itself."""

    name: str
    url: str  # http(s)://host[:port][/base]; a base that ends in /v1 loses it: requests bring their own
    models: tuple[str, ...] = ()  # empty = all that it lists itself
    max_requests: int = 64  # capacity in requests in flight; with `auto`, the most it may become
    max_tokens: float = 0.0  # capacity in tokens in flight; 0 = not counted
    auto: bool = False  # find the capacity from latencies
    api_key_env: str = ""  # the environment variable that holds its key
    ca_file: str = ""  # a file of certificates to trust instead of the system's
    type_name: str = ""  # nodes of one type share estimates; "" = the name
    adapters: tuple[str, ...] = ()  # served besides `models`
    adapter_load_s: float = 1.0  # about what it takes to load one that it does not hold yet
    hooks: LoadHooks | None = None  # calls that load and unload; None = the gateway never does
    weight: float = 1.0
    resources: Mapping[ResourceName, float] = field(default_factory=dict)  # capacities that are declared
    zone: str = ""  # "" = the gateway's
    nic_gib_per_s: float = 0.0  # bandwidth of the link to it; 0 = measured on large bodies
    usd_per_hour: float = 0.0
    health_path: str = ""  # "" = /health, and /v1/models where that does not exist
    metrics_url: str = ""  # whole, or a path at the node itself; "" = not polled
    exporter_url: str = ""  # of the machine: node_exporter or dcgm-exporter; "" = not polled
    gpu_exporter_url: str = ""  # a second one of the machine
    is_429_its_own: bool = False  # its 429 says that it is full, not that a key or a model is limited
    server_name: str = ""  # for TLS and the Host header where the URL has an address


@dataclass(frozen=True, slots=True)
class Listing:
    """The list of a node: models, and adapters with the model that each is made for."""

    models: tuple[str, ...]
    adapters: Mapping[str, str]


def cause_of_status(status: int, node: Node) -> Cause | None:
    """The cause that an error status stands for; None = no error of the node."""
    if status == RATE_LIMITED_STATUS:
        return Cause.BUSY if node.is_429_its_own else Cause.RATE_LIMITED
    if status == _UNAVAILABLE:
        return Cause.BUSY
    return Cause.SERVER_ERROR if status >= 500 else None


def says_overloaded(body: bytes) -> bool:
    """Whether the body of an error says that the node itself is full."""
    return _OVERLOADED.search(body) is not None


class Hold(Enum):
    """A reason why a node gets no new work. Several may hold at once; the part that sets one ends it."""

    REMOVED = "removed"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"  # a window of the calendar
    CHECKS = "checks"  # its health checks fail
    BREAKER = "breaker"  # nothing connects
    OUTLIER = "outlier"  # it answers worse than the others
    INACTIVE = "inactive"  # predicted bytes do not arrive
    BUSY = "busy"  # it asked for a pause: back-pressure, not a fault


_HEALTH = {  # the first that holds decides
    Hold.REMOVED: Health.DRAINING,
    Hold.DRAINING: Health.DRAINING,
    Hold.MAINTENANCE: Health.DRAINING,
    Hold.CHECKS: Health.DOWN,
    Hold.BREAKER: Health.DOWN,
    Hold.OUTLIER: Health.EJECTED,
    Hold.INACTIVE: Health.SUSPECT,
    Hold.BUSY: Health.UP,
}
LEAVING = frozenset({Hold.REMOVED, Hold.DRAINING, Hold.MAINTENANCE})
FAULTS = frozenset({Hold.CHECKS, Hold.BREAKER, Hold.OUTLIER, Hold.INACTIVE})
MAY_HAVE_RESTARTED = frozenset({Hold.CHECKS, Hold.BREAKER})  # the process may be a new one
NEEDS_SLOW_START = frozenset({Hold.CHECKS, Hold.BREAKER, Hold.OUTLIER})  # after these a node starts slowly


class Phase(Enum):
    """How much work a node gets while nothing holds it."""

    FULL = "full"  # all its capacity
    FAULTY = "faulty"  # nothing: a hold of NEEDS_SLOW_START is set
    TRIAL = "trial"  # one request
    RAMP = "ramp"  # a part of its capacity that grows
    GONE = "gone"  # nothing: it was removed


class HealthEvent(Enum):
    """What happens to a node's health."""

    FAULT = "fault"  # a hold of NEEDS_SLOW_START begins
    CLEARED = "cleared"  # the last such hold ends
    ANSWERED = "answered"  # a good answer, or trial_s without a failure
    RAMPED = "ramped"  # the last step of the ramp is done
    SKIPPED = "skipped"  # it never failed, it only started late
    REMOVED = "removed"
    RETURNED = "returned"  # its source names it again


class Effect(Enum):
    """What a transition does besides changing the phase."""

    NONE = "none"
    STOP = "stop"  # cancel the timer of trial and ramp
    STOP_AND_TELL = "stop and tell"  # likewise, and tell that it may take more
    BEGIN_TRIAL = "begin trial"  # start the timer of the trial, and tell
    BEGIN_RAMP = "begin ramp"  # start the steps of the ramp, and tell


_F, _E = Phase, HealthEvent
_STAY: Final = {phase: dict.fromkeys(HealthEvent, (phase, Effect.NONE)) for phase in Phase}
_LIVE: Final = {  # in every phase but GONE
    _E.FAULT: (_F.FAULTY, Effect.STOP),
    _E.SKIPPED: (_F.FULL, Effect.STOP_AND_TELL),
    _E.REMOVED: (_F.GONE, Effect.STOP),
}
TRANSITIONS: Final[dict[Phase, dict[HealthEvent, tuple[Phase, Effect]]]] = {
    _F.FULL: _STAY[_F.FULL] | _LIVE,
    _F.FAULTY: _STAY[_F.FAULTY]
    | _LIVE
    | {
        _E.CLEARED: (_F.TRIAL, Effect.BEGIN_TRIAL),
        _E.SKIPPED: (_F.FAULTY, Effect.STOP_AND_TELL),
    },
    _F.TRIAL: _STAY[_F.TRIAL] | _LIVE | {_E.ANSWERED: (_F.RAMP, Effect.BEGIN_RAMP)},
    _F.RAMP: _STAY[_F.RAMP] | _LIVE | {_E.RAMPED: (_F.FULL, Effect.NONE)},
    _F.GONE: _STAY[_F.GONE] | {_E.RETURNED: (_F.FULL, Effect.NONE)},
}


@dataclass(slots=True, eq=False)
class NodeState:
    """The fleet's own state of one node, besides the shared `Node`."""

    spec: NodeSpec
    address: Address
    source: str  # where its entry comes from: "config", "admin", "dns:…", "file:…"
    adapters: dict[str, str] = field(default_factory=dict)  # adapter → its model
    listing: Listing | None = None  # the models that it listed last
    held_adapters: set[str] = field(default_factory=set)  # listed, reported or served, not only declared
    held_models: set[str] | None = None  # known to be in memory; None = all that it serves, always
    holds: dict[Hold, str] = field(default_factory=dict)  # with the reason in words
    until_s: dict[Hold, float] = field(default_factory=dict)
    timers: dict[Hold, asyncio.TimerHandle] = field(default_factory=dict)
    phase: Phase = Phase.FULL
    ramp_from_s: float = float("-inf")  # when its last ramp began
    ramp_timer: asyncio.TimerHandle | None = None
    was_up: bool = False  # it has answered since it was added
    fails_checks: bool = False  # its last check
    logged_health: Health = Health.UP  # the last that the log has told
    remove_by_s: float = float("inf")

    @property
    def is_open(self) -> bool:
        """Whether the node gets work."""
        return not self.holds

    @property
    def is_on_trial(self) -> bool:
        """Whether the node must answer one request before it gets more."""
        return self.phase is Phase.TRIAL

    def held(self) -> set[str]:
        """Adapters, and models where these are loaded and unloaded, that the node is known to hold."""
        return self.held_adapters | (self.held_models or set())

    def write_health(self, node: Node) -> None:
        """Write health and reason to the shared node."""
        worst = next((hold for hold in _HEALTH if hold in self.holds), None)
        node.health = Health.UP if worst is None else _HEALTH[worst]
        node.reason = "" if worst is None else self.holds[worst]

    def cancel_timers(self) -> None:
        """Cancel all timers of the node."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        self.until_s.clear()
        self.cancel_slow_start()

    def cancel_slow_start(self) -> None:
        """Cancel the next step of its ramp."""
        if self.ramp_timer is not None:
            self.ramp_timer.cancel()
            self.ramp_timer = None
