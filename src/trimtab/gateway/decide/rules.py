"""How the dispatcher treats requests: which policy decides about which, and the bounds of waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.options import Cancel, Options
from trimtab.gateway.decide.pool import Chosen

LOOKAHEAD: Final = 4  # requests of one class that one pass over the queue offers in vain
MAX_RETRIES: Final = 1 << 20  # the data plane counts them


@dataclass(frozen=True, slots=True)
class Rules:
    """How the dispatcher treats requests."""

    default: Chosen
    by_model: Mapping[str, Chosen] = field(default_factory=dict)
    by_route: Mapping[str, Chosen] = field(default_factory=dict)  # goes before the model's
    held_max: int = 1000
    max_wait_s: float = 60.0
    hold_s: float = 10.0  # of a model without a ready node
    reserve_frac: float = 0.1  # of a node, kept free of background work
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    prefix_blocks: int = 0  # of the prefix index; 0 = none
    seed: int = 0

    def all_chosen(self) -> tuple[Chosen, ...]:
        """Every policy that may decide; the default comes first."""
        return (self.default, *self.by_model.values(), *self.by_route.values())

    def of(self, route: str, model: str) -> Chosen:
        """The policy for requests of a route and a model."""
        return self.by_route.get(route) or self.by_model.get(model, self.default)

    def options(self) -> Options:
        """What the state of a pool obeys."""
        return Options(
            held_max=self.held_max,
            lookahead=LOOKAHEAD,
            lane_per_class=True,
            cancel=Cancel.WAITING,
            max_retries=MAX_RETRIES,
        )
