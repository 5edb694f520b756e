"""Preemption: which pods of lower priority leave a node so that another fits. Only where asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trimtab.clusters.kube.api import NOT_FOUND, KubeApi
from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.ledger import Holding, Ledger, Place
from trimtab.clusters.kube.objects import Pod
from trimtab.errors import ApiRefused, ClusterLost

_EVICTION: Final = ("policy/v1", "policy/v1beta1")  # the newer one first


class Preempting(NamedTuple):
    """A place for a pod, and those that leave it."""

    place: Place
    victims: tuple[Pod, ...]


class Preemption:
    """Finds and evicts victims. The server holds evictions to PodDisruptionBudgets."""

    def __init__(self, api: KubeApi, ledger: Ledger, feasible: Feasibility) -> None:
        self._api, self._ledger, self._feasible = api, ledger, feasible

    def find(self, pod: Pod) -> Preempting | None:
        """The fewest pods of the least priority that have to leave one node; None = no node helps."""
        best: tuple[tuple[int, int], Preempting] | None = None
        for j in np.flatnonzero(self._feasible.suited(pod)):
            found = self._on(pod, int(j))
            if found is not None:
                worth = max(victim.priority for victim in found.victims), len(found.victims)
                if best is None or worth < best[0]:
                    best = worth, found
        return best[1] if best else None

    def _on(self, pod: Pod, j: int) -> Preempting | None:
        """Those of node j; None = it would not fit even without all of lower priority."""
        name = self._ledger.nodes[j].name
        lower = [other for other in self._ledger.pods_on(name) if other.priority < pod.priority]
        if any(other.is_ending for other in lower):
            return None  # room comes by itself
        lower.sort(key=lambda other: (other.priority, -other.created_s))
        away = [self._ledger.held[other.uid] for other in lower]
        victims: list[Pod] = []
        for holding in away:
            self._ledger.release(holding.pod.uid)
        try:
            if self._feasible.why_not(pod, j):
                return None
            for holding in away[::-1]:  # the most important first: whoever fits beside the pod stays
                self._put_back(holding)
                if self._feasible.why_not(pod, j):
                    self._ledger.release(holding.pod.uid)
                    victims.append(holding.pod)
            place = Place(pod, name, self._ledger.choose_devices(pod, name))
            return Preempting(place, tuple(victims)) if victims else None
        finally:
            for holding in away:
                self._put_back(holding)

    def _put_back(self, holding: Holding) -> None:
        self._ledger.hold(holding.pod, holding.node_name, holding.devices, is_assumed=holding.is_assumed)

    async def evict(self, victim: Pod) -> str:
        """Evict a pod; returns why not, "" = done."""
        path = f"/api/v1/namespaces/{victim.namespace}/pods/{victim.name}/eviction"
        problem = ""
        for version in _EVICTION:
            body = {
                "apiVersion": version,
                "kind": "Eviction",
                "metadata": {"name": victim.name, "namespace": victim.namespace},
                "deleteOptions": {"preconditions": {"uid": victim.uid}},
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
