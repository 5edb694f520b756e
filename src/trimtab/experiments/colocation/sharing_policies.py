"""Ways of sharing nodes between requests and training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from trimtab.domain.parameters import Count, Natural, NonNegative, OneOrMore, Range
from trimtab.domain.service_loads import SLOWDOWN_LIMIT
from trimtab.domain.training_jobs import Floats
from trimtab.errors import PolicyNotFound
from trimtab.validation.named_classes import label_of, made_of


@dataclass(frozen=True)
class Static:
    """The first `nodes` nodes serve, the others train, always."""

    name: ClassVar[str] = "static"
    is_partition: ClassVar[bool] = True
    nodes: Count = 1

    def keeps(self, busy_nodes: Floats, n_nodes: int) -> int:
        """How many nodes serve in the next round, the first ones; `busy_nodes` [rounds] are those before."""
        return min(self.nodes, n_nodes)


@dataclass(frozen=True)
class Lending:
    """Requests first: as many nodes as they filled lately, and a reserve, serve; the others train.

    Attributes:
        reserve_frac: of what was filled, beyond the spare nodes.
        spare: nodes beyond what was filled.
        rounds: of which the fullest counts, not the present one: what it will hold is not known.
    """

    name: ClassVar[str] = "lending"
    is_partition: ClassVar[bool] = False
    reserve_frac: NonNegative = 0.25
    spare: Natural = 1
    rounds: Count = 3

    def keeps(self, busy_nodes: Floats, n_nodes: int) -> int:
        """How many nodes serve in the next round; all in the first."""
        if not len(busy_nodes):
            return n_nodes
        fullest = float(busy_nodes[-self.rounds :].max())
        return min(max(math.ceil(fullest * (1.0 + self.reserve_frac)) + self.spare, 1), n_nodes)


@dataclass(frozen=True)
class MuxFlow:
    """Every GPU serves; the matching of MuxFlow gives some of them a job as a guest (allocator `muxflow`).

    Attributes:
        limit: most that the latency of requests may grow by a guest, as predicted from the last load.
        margin: of a GPU, kept free of both.
        most: largest share of a GPU that a guest may use.
    """

    name: ClassVar[str] = "muxflow"
    limit: OneOrMore = SLOWDOWN_LIMIT
    margin: NonNegative = 0.1
    most: Annotated[float, Range(0.1, 1.0)] = 0.9

    def allocator(self, round_s: float) -> str:
        """The allocator that matches."""
        own = f"limit={self.limit},margin={self.margin},most={self.most}"
        return f"muxflow(elastic=true,period_s={round_s},{own})"


@dataclass(frozen=True)
class InQueues:
    """The queues of the scenario divide the nodes between requests and jobs, and jobs among themselves.

    Attributes:
        scheme: what of the queues holds: none, flat, guarantees, preemption or h-drf.
        reserve_frac: what requests want beyond what they filled lately, and the spare nodes.
        spare: nodes beyond what was filled.
        rounds: of which the fullest counts, not the present one.
    """

    name: ClassVar[str] = "queues"
    is_partition: ClassVar[bool] = False
    scheme: Literal["none", "flat", "guarantees", "preemption", "h-drf"] = "preemption"
    reserve_frac: NonNegative = 0.25
    spare: Natural = 1
    rounds: Count = 3


Sharing: TypeAlias = Static | Lending | MuxFlow | InQueues
SHARINGS: dict[str, Any] = {cls.name: cls for cls in (Static, Lending, MuxFlow, InQueues)}


def find_sharing(spec: str | Sharing) -> Sharing:
    """The way of sharing of a text such as "static(nodes=8)". Raises UsageError."""
    if isinstance(spec, Static | Lending | MuxFlow | InQueues):
        return spec
    made: Sharing = made_of(spec, SHARINGS, "way of sharing", "policy", PolicyNotFound)
    return made


def canonical_sharing(spec: str | Sharing) -> str:
    """The shortest name of the same way of sharing."""
    made = find_sharing(spec)
    return label_of(made.name, made)
