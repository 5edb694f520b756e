"""The arrays of a run's network: links, routes, and room for flows, which grows with their number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.arrays import arrays_of, zeros
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import Requests
from trimtab.engine.state import FLOW, NET_LINK, TRIAL, State

_SPARE = 1024  # flows that have room before the arrays grow
_DETOUR = 4  # links by which a route may be longer than any is while all links are there
_AXES = frozenset(f"net_{name}" for name in ("links", "ends", "vertices", "rows", "depth")) | {
    "flow_room",
    "flow_places",
    "fill_room",
    "result_rows",
}
_PER_FLOW = ("flows", "flow_heap", "touched_flow")
_PER_PLACE = ("flow_link", "flow_next", "flow_before")
FLOW_ARRAYS = (*_PER_FLOW, *_PER_PLACE, "fill_key", "fill_ref")  # a run writes them before it reads them


def network_arrays(
    cluster: Cluster, requests: Requests, config: NDArray[np.void], n_rows: int
) -> dict[str, Any]:
    """The arrays at the start; empty without a network. Writes what `config` says of it."""
    network = cluster.network
    config["store_vertex"] = -1
    if network is None:
        fields = arrays_of(State).items()
        return {n: np.zeros([0] * len(f.axes), f.dtype) for n, f in fields if _AXES.issuperset(f.axes)}
    n, ways = network.n_vertices, network.ways
    config["network"], config["routing"], config["store_vertex"] = 1, int(network.routing), network.store
    if config["completions_from_outside"][0]:
        config["store_vertex"] = -1  # its nodes load by themselves
    config["route_max"] = min(n, int(ways.links.max()) + _DETOUR)
    loads = cluster.n_nodes * len(cluster.item_names) if config["store_vertex"][0] >= 0 else 0
    config["flow_margin"] = n + loads + 4 * int(cluster.slots.max()) + int(config["run_margin"][0])
    links = zeros(NET_LINK, [network.n_links])
    links["gib_per_s"] = links["whole_gib_per_s"] = network.gib_per_s
    for name in ("delay_s", "source", "cable"):
        links[name] = getattr(network, name)
    links["first"] = links["mark"] = -1
    result_gib = np.zeros(0)
    if requests.result_gib is not None:
        result_gib = np.zeros(n_rows)
        result_gib[: len(requests)] = requests.result_gib
    made = {
        "net_links": links,
        "link_target": network.target.astype("i4"),
        "out_first": network.first_out,
        "way_s": ways.delay_s.copy(),
        "way_links": ways.links.copy(),
        "next_link": ways.next_link.copy(),
        "trial": np.zeros(int(config["route_max"][0]) + 1, TRIAL),
        "touched_link": np.zeros(network.n_links, "i4"),
        "flow_of_row": np.zeros(n_rows, "i4"),
        "from_gib": np.zeros(n),
        "from_vertex": np.zeros(n, "i4"),
        "result_gib": result_gib,
    }
    return made | flow_arrays(2 * int(config["flow_margin"][0]) + _SPARE, network.n_links, config)


def flow_arrays(room: int, n_links: int, config: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    """Room for so many flows."""
    made: dict[str, NDArray[Any]] = {"flows": np.zeros(room, FLOW)}
    made |= {name: np.zeros(room, "i4") for name in _PER_FLOW[1:]}
    made |= {name: np.zeros(room * int(config["route_max"][0]), "i4") for name in _PER_PLACE}
    return made | {"fill_key": np.zeros(room + n_links), "fill_ref": np.zeros(room + n_links, "i4")}


def enlarged(state: State) -> dict[str, NDArray[Any]]:
    """Twice the room for events, and for flows if these are short of it, with what there is now."""
    larger: dict[str, NDArray[Any]] = {"events": np.resize(state.events, 2 * len(state.events))}
    room, config = len(state.flows), state.config
    if config["network"][0] and room - state.counts["n_flows"][0] < config["flow_margin"][0]:
        larger |= flow_arrays(2 * room, len(state.net_links), config)
        for name in FLOW_ARRAYS:
            before = getattr(state, name)
            larger[name][: len(before)] = before
    return larger
