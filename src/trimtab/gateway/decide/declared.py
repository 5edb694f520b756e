"""The declared properties of models, classes and zones, beside those learned and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.cluster import ResourceName
from trimtab.gateway.nodes.planned_outages import Window

HERE: Final = "here"  # the gateway's zone where none is declared


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
