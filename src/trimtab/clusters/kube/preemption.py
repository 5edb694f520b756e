"""Preemption: which pods of lower priority leave so that a pod or a gang fits. Only where asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from trimtab.clusters.kube.api import NOT_FOUND, Json, KubeApi
from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.gangs import GangKey, gang_of
from trimtab.clusters.kube.objects import Pod, PodHolding, PodLedger, PodPlace
from trimtab.errors import ApiRefused, ClusterLost

_EVICTION: Final = ("policy/v1", "policy/v1beta1")  # the newer one first


class Preempting(NamedTuple):
    """Places for pods, which are bound together, and those that leave them."""

    places: tuple[PodPlace, ...]
    victims: tuple[Pod, ...]


class Preemption:
    """Finds and evicts victims. The server holds evictions to PodDisruptionBudgets."""

    def __init__(self, api: KubeApi, ledger: PodLedger, feasible: Feasibility) -> None:
        self._api, self._ledger, self._feasible = api, ledger, feasible

    def find(self, pods: Iterable[Pod], count: int) -> Preempting | None:
        """Places for so many of these pods, whoever has to leave; None = there are none.

        One after the other gets the node that the fewest pods of the least priority have to leave.
        """
        places: list[PodPlace] = []
        away: list[PodHolding] = []
        for pod in pods:
            found = self._best(pod) if len(places) < count else None
            if found is not None:
                place, leaving = found
                self._take_away(leaving)
                self._ledger.hold(*place, is_assumed=True)
                places.append(place)
                away += leaving
        for place in places:
            self._ledger.release(place.workload.uid)
        self._put_back(away)
        victims = tuple(holding.workload for holding in away)
        return Preempting(tuple(places), victims) if len(places) == count else None

    def _best(self, pod: Pod) -> tuple[PodPlace, list[PodHolding]] | None:
        """A place for a pod, and what leaves for it."""
        units: dict[GangKey | str, list[PodHolding]] = {}  # that leave together: a gang is no gang by halves
        for uid, holding in self._ledger.held.items():
            units.setdefault(gang_of(holding.workload) or uid, []).append(holding)
        units.pop(gang_of(pod) or pod.uid, None)
        best: tuple[tuple[float, int], tuple[PodPlace, list[PodHolding]]] | None = None
        for j in np.flatnonzero(self._feasible.suited(pod)):
            found = self._on(pod, int(j), units)
            if found is not None:
                priorities = [holding.workload.priority for holding in found[1]]
                worth = max(priorities, default=-np.inf), len(priorities)
                if best is None or worth < best[0]:
                    best = worth, found
        return best[1] if best else None

    def _on(
        self, pod: Pod, j: int, units: Mapping[GangKey | str, list[PodHolding]]
    ) -> tuple[PodPlace, list[PodHolding]] | None:
        """A place on node j; None = the pod would not fit even without all of lower priority."""
        name = self._ledger.nodes[j].name
        there = [other for other in self._ledger.workloads_on(name) if other.priority < pod.priority]
        if any(other.is_ending for other in there) and self._ledger.is_kept(j):
            return None  # room comes by itself, and nobody waits for it
        keys = dict.fromkeys(gang_of(other) or other.uid for other in there)
        lower = [
            unit
            for key in keys
            if (unit := units.get(key)) and all(holding.workload.priority < pod.priority for holding in unit)
        ]
        lower.sort(key=lambda unit: max((each.workload.priority, -each.workload.created_s) for each in unit))
        leaving: list[PodHolding] = []
        for unit in lower:
            self._take_away(unit)
        if can := not self._feasible.why_not(pod, j):
            for unit in lower[::-1]:  # the most important first: whoever fits beside the pod stays
                self._put_back(unit)
                if self._feasible.why_not(pod, j):
                    self._take_away(unit)
                    leaving += unit
        place = PodPlace(pod, name, self._ledger.choose_devices(pod, name))
        for unit in lower:
            self._put_back(unit)
        return (place, leaving) if can else None

    def _take_away(self, holdings: Iterable[PodHolding]) -> None:
        for holding in holdings:
            self._ledger.release(holding.workload.uid)

    def _put_back(self, holdings: Iterable[PodHolding]) -> None:
        for each in holdings:
            self._ledger.hold(each.workload, each.node_name, each.devices, is_assumed=each.is_assumed)

    async def evict_all(self, victims: Iterable[Pod], *, tries: bool) -> str:
        """Evict pods up to the first that cannot be; returns why not, "" = done. `tries`: it only asks."""
        for victim in victims:
            if why := await self._evict(victim, {"dryRun": ["All"]} if tries else {}):
                return f"{victim.full_name}: {why}"
        return ""

    async def _evict(self, victim: Pod, options: Json) -> str:
        """Evict a pod; returns why not, "" = done."""
        path = f"/api/v1/namespaces/{victim.namespace}/pods/{victim.name}/eviction"
        problem = ""
        for version in _EVICTION:
            body = {
                "apiVersion": version,
                "kind": "Eviction",
                "metadata": {"name": victim.name, "namespace": victim.namespace},
                "deleteOptions": {"preconditions": {"uid": victim.uid}, **options},
            }
            try:
                await self._api.post(path, body)
            except ClusterLost as error:
                return str(error)
            except ApiRefused as error:
                if error.status == NOT_FOUND and victim.name in str(error):
                    return ""
                problem = str(error)
                if error.status == 429:  # a PodDisruptionBudget
                    return problem
            else:
                return ""
        return problem
