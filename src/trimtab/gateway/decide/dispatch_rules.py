"""The dispatcher's rules: the policy of each model and route, the limits of waiting, what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.cluster import ResourceName
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Policy
from trimtab.gateway.decide.tenant_queues import Section
from trimtab.gateway.nodes.planned_outages import Window
from trimtab.policies.catalogue import find

HERE: Final = "here"  # the gateway's zone where none is declared
LOOKAHEAD: Final = 4  # requests of one class that one pass over the queue may offer without success
MAX_RETRIES: Final = 1 << 20  # the data plane counts them


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its order, as configured, and its shadow policy."""

    spec: str
    policy: Policy
    order: Policy
    shadow: Policy | None = None


def policy_choice(spec: str, shadow: str | None = None) -> PolicyChoice:
    """The choice that a configuration names. Raises UsageError."""
    return PolicyChoice(spec, *find(spec), None if shadow is None else find(shadow)[0])


@dataclass(frozen=True, slots=True)
class Declared:
    """Declarations. A model or a zone that is missing is learned, measured, or unknown."""

    demand: Mapping[str, Mapping[ResourceName, float]] = field(default_factory=dict)  # by model, one request
    model_gib: Mapping[str, float] = field(default_factory=dict)  # memory of a model or adapter
    zone: str = HERE  # the gateway's own
    zones: tuple[str, ...] = ()  # further ones, of tenants
    rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)  # either order
    windows: tuple[Window, ...] = ()  # planned outages of nodes
    zone_gib_per_s: Mapping[str, float] = field(default_factory=dict)  # of the link into a zone


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """How the dispatcher treats requests."""

    default: PolicyChoice
    by_model: Mapping[str, PolicyChoice] = field(default_factory=dict)
    by_route: Mapping[str, PolicyChoice] = field(default_factory=dict)  # takes precedence over the model's
    held_max: int = 1000
    max_wait_s: float = 60.0
    max_wait_no_ready_node_s: float = 10.0  # for a model without a ready node
    reserve_frac: float = 0.1  # of a node, kept free of background work
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    holding_cost: Mapping[str, float] = field(default_factory=dict)  # by model; 1 for all others
    prefix_blocks: int = 0  # of the prefix index; 0 = none
    seed: int = 0
    declared: Declared = field(default_factory=Declared)
    queues: Section | None = None  # hierarchical queues of tenants; None = they compete directly

    def choices(self) -> tuple[PolicyChoice, ...]:
        """Every policy that may decide; the default comes first."""
        return (self.default, *self.by_model.values(), *self.by_route.values())

    def of(self, route: str, model: str) -> PolicyChoice:
        """The policy for requests of a route and a model."""
        return self.by_route.get(route) or self.by_model.get(model, self.default)

    def options(self) -> Options:
        """The options of a pool's state."""
        return Options(
            held_max=self.held_max,
            lookahead=LOOKAHEAD,
            lane_per_class=True,
            cancel=Cancel.WAITING,
            max_retries=MAX_RETRIES,
        )
