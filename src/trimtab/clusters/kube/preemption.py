"""Preemption: which pods of lower priority leave a node so that another fits. Only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from trimtab.clusters.kube.api import NOT_FOUND, KubeApi
from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.ledger import Ledger
from trimtab.clusters.kube.objects import Pod
from trimtab.errors import ApiRefused, ClusterLost

_EVICTION: Final = ("policy/v1", "policy/v1beta1")  # the newer one first


class Victims(NamedTuple):
    """The pods that leave a node."""

    node_name: str
    victims: tuple[Pod, ...]


class Preemption:
    """Finds and evicts victims. The server holds evictions to PodDisruptionBudgets."""

    def __init__(self, api: KubeApi, ledger: Ledger, feasible: Feasibility) -> None:
        self._api, self._ledger, self._feasible = api, ledger, feasible

    def find(self, pod: Pod) -> Victims | None:
        """The fewest pods of the least priority that have to leave one node; None = no node helps."""
        best: tuple[tuple[int, int], Victims] | None = None
        for j in np.flatnonzero(self._feasible.suited(pod)):
            name = self._ledger.nodes[j].name
            victims = self._on(pod, name)
            if victims is not None:
                worth = max(victim.priority for victim in victims), len(victims)
                if best is None or worth < best[0]:
                    best = worth, Victims(name, tuple(victims))
        return best[1] if best else None

    def _on(self, pod: Pod, name: str) -> Sequence[Pod] | None:
        """Those of one node; None = it would not fit even without all of lower priority."""
        lower = [other for other in self._ledger.pods_on(name) if other.priority < pod.priority]
        if any(other.is_ending for other in lower):
            return None  # room comes by itself
        lower.sort(key=lambda other: (other.priority, -other.created_s))
        holdings = [self._ledger.release(other.uid) for other in lower]
        try:
            if not self._feasible.mask(pod)[self._ledger.index[name]]:
                return None
            chosen = list(zip(lower, holdings, strict=True))
            for pair in chosen[::-1]:  # the most important first: whoever fits beside the pod stays
                holding = pair[1]
                assert holding is not None
                self._ledger.hold(pair[0], name, holding.devices, is_assumed=holding.is_assumed)
                if self._feasible.mask(pod)[self._ledger.index[name]]:
                    chosen.remove(pair)
                else:
                    self._ledger.release(pair[0].uid)
            return [other for other, _ in chosen] or None
        finally:
            for other, holding in zip(lower, holdings, strict=True):
                assert holding is not None
                self._ledger.hold(other, name, holding.devices, is_assumed=holding.is_assumed)

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
