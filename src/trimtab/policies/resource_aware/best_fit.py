"""Best fit: the node with the least resources left once the request runs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trimtab.domain.needs import Need
from trimtab.policies.shared.room import RoomPolicy


@dataclass(frozen=True)
class BestFit(RoomPolicy):
    """Pack: of the nodes where the request fits now, the one with the least left over after it.

    Idea
        A request fits where a slot is free and what its class takes of every resource is free too. Of these
        nodes the one with the least left over is filled first, so that large requests find others empty.
        Left over is the sum over resources of what is free after placement, each in parts of the most that
        any node has of it. Where it fits nowhere, it is held in the central queue.
    Source
        David Johnson, Alan Demers, Jeffrey Ullman, Michael Garey, Ronald Graham: "Worst-case performance
        bounds for simple one-dimensional packing algorithms", SIAM Journal on Computing 3(4), 1974 (best
        fit); several dimensions: Rina Panigrahy, Kunal Talwar, Lincoln Uyeda, Udi Wieder: "Heuristics for
        vector bin packing", Microsoft Research, 2011 (both from memory). The sum of rests, each relative to
        the largest node, is also the best fit that Weng et al. compare with (USENIX ATC 2023; their simulator
        was read: hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin/best_fit_score.go).
    Reads
        Capacity and use of each node's resources, the class's demand, slots, running and in-flight requests;
        models that each node holds and their sizes; which nodes are up, have room and serve the class.
    Cost
        O(nodes), and O(classes + resources) for each node that changed since the last decision.
    When it wins / loses
        Wins where some requests need most of a node: small ones do not scatter over all. Knows neither
        speeds nor models nor distances, so it loses to policies of expected completion on unequal nodes;
        the head of the central queue holds back others that would fit. Packing is the wrong aim where a node
        serves each request slower the more there are, as language models do: one is filled while others idle.
        There it is refused.
    Deviations from the source
        Requests leave again, and bins are unequal. Requests that were sent to a node and do not run yet are
        assumed to need as much as this one. Where no resources are modelled, slots are the only one. The
        second source weighs resources by their scarcity and compares squared rests or products with the
        demand; here the rests are added up, each with the weight 1.
    """

    name: ClassVar[str] = "best-fit"
    needs: ClassVar[frozenset[Need]] = RoomPolicy.needs | {Need.FULL_SPEED}
