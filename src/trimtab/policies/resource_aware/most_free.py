"""Most free: the node with the most resources left once the request runs there (worst fit)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trimtab.policies.shared.room import RoomPolicy


@dataclass(frozen=True)
class MostFree(RoomPolicy):
    """Spread: of the nodes where the request fits now, the one with the most left over after it.

    Idea
        Worst fit, the mirror image of best fit: of the nodes with a free slot and enough of every resource,
        the one with the most left over. Left over is the sum over resources of what is free after placement,
        each in parts of the most that any node has of it. Where it fits nowhere, it is held in the central
        queue.
    Source
        David Johnson: "Fast algorithms for bin packing", Journal of Computer and System Sciences 8(3), 1974
        (worst fit). From memory.
    Reads
        Capacity and use of each node's resources, the class's demand, slots, running and in-flight requests;
        models that each node holds and their sizes; which nodes are up, have room and serve the class.
    Cost
        O(nodes), and O(classes + resources) for each node that changed since the last decision.
    When it wins / loses
        Wins where requests on one node slow each other down, and where a failure should hit few requests.
        Leaves a little on every node, so a large request may fit nowhere though enough is free in all; knows
        neither speeds nor models nor distances.
    Deviations from the source
        Requests leave again, and bins are unequal: the largest node is the emptiest. Requests that were sent
        to a node and do not run yet are assumed to need as much as this one. Where no resources are modelled,
        slots are the only one. The source has one dimension; the sum over resources is as in `best-fit`.
    """

    name: ClassVar[str] = "most-free"
    sign: ClassVar[float] = -1.0
