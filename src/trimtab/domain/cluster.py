"""The cluster: nodes, node types, service times, artifacts, and distances between zones. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.engines import Engines
from trimtab.domain.network import Network

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ResourceName = Literal["cpu_cores", "ram_gib", "io_gib_per_s", "network_gib_per_s", "gpu_milli", "gpu_gib"]
RESOURCES: tuple[ResourceName, ...] = get_args(ResourceName)  # gpu_milli: thousandths of an accelerator


def _none_modelled() -> Floats:
    return np.zeros((0, 0))


@dataclass(frozen=True)
class Cluster:
    """N nodes of G types that serve C classes of requests and hold M items (models, then adapters).

    Service of work of size x of class c on type g takes (fixed_s[c, g] + unit_s[c, g] · x) seconds, times a
    factor that no policy sees, divided by the node's present speed. inf in `fixed_s`: g can't serve c.

    With resources, a request with a slot takes its class's `demand` of its node's `capacity`. It starts only
    when its demand fits beside the running requests.
    """

    type_names: tuple[str, ...]  # [types]
    node_names: tuple[str, ...]  # [nodes]
    type_idx: Ints  # [nodes]
    slots: Ints  # [nodes] requests served at a time
    queue_max: Ints  # [nodes] requests that may wait at the node
    zone_idx: Ints  # [nodes]
    weight: Floats  # [nodes] relative capacity, for weighted policies
    nic_gib_per_s: Floats  # [nodes] bandwidth of the node's own link; inf = not modelled
    memory_gib: Floats  # [types]
    accelerators: Floats  # [types] accelerators per node
    usd_per_hour: Floats  # [types] price of a node
    class_names: tuple[str, ...]  # [classes]
    fixed_s: Floats  # [classes, types]
    unit_s: Floats  # [classes, types]
    item_names: tuple[str, ...]  # [items]
    item_gib: Floats  # [items]
    item_is_adapter: NDArray[np.uint8]  # [items]
    load_s: Floats  # [items, types]
    zone_names: tuple[str, ...]  # [zones]
    rtt_s: Floats  # [zones, zones]
    zone_gib_per_s: Floats  # [zones] bandwidth of the link into a zone; inf = not modelled
    resource_names: tuple[str, ...] = ()  # [resources]; none = requests compete for slots only
    capacity: Floats = field(default_factory=_none_modelled)  # [nodes, resources]
    demand: Floats = field(default_factory=_none_modelled)  # [classes, resources]
    holding_cost: Floats | None = None  # [classes] cost of a second in the system, relative; None = all 1
    is_paid_down: NDArray[np.bool_] | None = None  # [types] whether down nodes are paid; None = all are
    prompt_token_units: Floats | None = None  # [classes], work units saved per cached token; None = 0
    network: Network | None = None  # None = the links into zones and nodes above
    engines: Engines | None = None  # None = all nodes serve one request a slot

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.type_idx)

    @property
    def n_types(self) -> int:
        """Number of node types."""
        return len(self.type_names)

    @property
    def usd_per_s(self) -> Floats:
        """Price of a node of each type, [types]."""
        return np.asarray(self.usd_per_hour, np.float64) / 3600.0

    @cached_property
    def group_idx(self) -> Ints:
        """Group of each node, [nodes]: nodes of one type and slot count are interchangeable to a policy."""
        pairs = np.stack([self.type_idx, self.slots], axis=1)
        _, inverse = np.unique(pairs, axis=0, return_inverse=True)
        return inverse.reshape(-1).astype(np.int64)

    @cached_property
    def _holds(self) -> NDArray[np.bool_]:
        """Whether some node of a type can hold a request of a class, [classes, types]."""
        holds = np.zeros((self.n_types, len(self.class_names)), np.bool_)
        fits = np.asarray(
            (self.demand <= self.capacity[:, None]).all(axis=2) if self.resource_names else True
        )
        np.logical_or.at(holds, self.type_idx, fits)
        return holds.T

    def fits_engines(self, class_idx: Ints, size: Floats, tokens: Ints) -> NDArray[np.bool_]:
        """Whether some node that serves its class can serve each request's size and tokens, [requests]."""
        if self.engines is None:
            return np.ones(len(size), np.bool_)
        fits = np.zeros(len(size), np.bool_)
        for g in np.unique(self.type_idx):
            fits |= np.isfinite(self.fixed_s[class_idx, g]) & self.engines.holds(g, size, tokens)
        return fits

    def best_estimate_s(self, class_idx: Ints, size: Floats) -> Floats:
        """Least service seconds over the nodes' types for each request, [requests]; inf = none serves it."""
        best = np.full(len(size), np.inf)
        for g in np.unique(self.type_idx):
            estimate_s = self.fixed_s[class_idx, g] + self.unit_s[class_idx, g] * size
            np.minimum(best, np.where(self._holds[class_idx, g], estimate_s, np.inf), out=best)
        return best
