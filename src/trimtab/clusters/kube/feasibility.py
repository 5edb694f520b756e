"""Which nodes may take a pod now, and why the others may not: what kube-scheduler's own filters check.

Checked: room, devices, Ready, cordon, taints, node selector, node affinity, topology spread, pod affinity and
anti-affinity, ports of the node. Preferences among nodes that pass are the policy's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.kube.objects import Near, Node, Pod, PodLedger, Spread, Taint, Term, Terms

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_REPELLING = ("NoSchedule", "NoExecute")
Mask = NDArray[np.bool_]


class Feasibility:
    """Answers for the nodes and pods of a ledger."""

    def __init__(self, ledger: PodLedger) -> None:
        self._ledger = ledger
        self._suited: dict[Terms, Mask] = {}
        self._version = -1

    def mask(self, pod: Pod) -> Mask:
        """The nodes that may take a pod now, [nodes]."""
        ledger = self._ledger
        fits: Mask = self.suited(pod) & ledger.room(pod.needs) & ledger.device_room(pod)
        if fits.any() and self.looks_around(pod):
            for j in np.flatnonzero(fits):
                fits[j] = not self._around(pod, int(j))
        return fits

    def suited(self, pod: Pod) -> Mask:
        """The nodes that may ever take a pod, [nodes]: by themselves, whatever runs there."""
        if self._version != self._ledger.version:
            self._version = self._ledger.version
            self._suited.clear()
        terms = pod.terms
        if terms not in self._suited:
            self._suited[terms] = np.array(
                [not unsuited(node, terms) for node in self._ledger.nodes], np.bool_
            )
        return self._suited[terms]

    def why_not(self, pod: Pod, j: int) -> str:
        """Why node j may not take a pod now; "" = it may."""
        if why := unsuited(self._ledger.nodes[j], pod.terms):
            return why
        lacking = self._ledger.lacking(pod, j)
        return f"Insufficient {', '.join(lacking)}" if lacking else self._around(pod, j)

    def summary(self, pod: Pod) -> str:
        """Why no node takes a pod, in the words of kube-scheduler."""
        many = len(self._ledger.nodes)
        reasons = Counter(self.why_not(pod, j) for j in range(many))
        told = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()) if why)
        return f"0/{many} nodes are available: {told or 'none'}."

    def looks_around(self, pod: Pod) -> bool:
        """Whether it matters to a pod which others run, besides the room that they leave."""
        around = pod.spreads or pod.affinity or pod.anti_affinity or pod.ports
        return bool(around) or self._ledger.repelling > 0

    def _around(self, pod: Pod, j: int) -> str:
        """Why node j may not take a pod because of the pods that run in the cluster; "" = it may."""
        node = self._ledger.nodes[j]
        taken = {port for other in self._ledger.workloads_on(node.name) for port in other.ports}
        if not taken.isdisjoint(pod.ports):
            return "node(s) didn't have free ports for the requested pod ports"
        if any(self._is_skewed(pod, node, spread) for spread in pod.spreads):
            return "node(s) didn't match pod topology spread constraints"
        if not all(self._is_near(pod, node, near) for near in pod.affinity):
            return "node(s) didn't match pod affinity rules"
        if any(self._count(_selected_by(near, pod), near.key, node) for near in pod.anti_affinity):
            return "node(s) didn't match pod anti-affinity rules"
        if self._is_repelled(pod, node):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    def _is_skewed(self, pod: Pod, node: Node, spread: Spread) -> bool:
        if spread.key not in node.labels:
            return True
        counts = {
            other.labels[spread.key]: 0
            for other, is_suited in zip(self._ledger.nodes, self.suited(pod), strict=True)
            if spread.key in other.labels and is_suited
        }
        here = node.labels[spread.key]
        for other, domain in self._placed(spread.key):
            if domain in counts and other.namespace == pod.namespace and spread.selector.holds(other.labels):
                counts[domain] += 1
        own = int(spread.selector.holds(pod.labels))
        return counts.get(here, 0) + own - min(counts.values(), default=0) > spread.max_skew

    def _is_near(self, pod: Pod, node: Node, near: Near) -> bool:
        selects = _selected_by(near, pod)
        if self._count(selects, near.key, node):
            return True
        is_first = not any(selects(other) for other, _ in self._placed(near.key))
        return is_first and selects(pod) and near.key in node.labels

    def _is_repelled(self, pod: Pod, node: Node) -> bool:
        return any(
            _selected_by(near, other)(pod) and domain == node.labels.get(near.key)
            for other in (holding.workload for holding in self._ledger.held.values())
            for near in other.anti_affinity
            for domain in self._domain_of(other, near.key)
        )

    def _count(self, selects: Callable[[Pod], bool], key: str, node: Node) -> int:
        """Selected pods in the node's domain."""
        here = node.labels.get(key)
        return sum(domain == here and selects(other) for other, domain in self._placed(key))

    def _placed(self, key: str) -> Iterator[tuple[Pod, str]]:
        """Pods with the domain of their node."""
        for holding in self._ledger.held.values():
            if not holding.workload.is_ending:
                for domain in self._domain_of(holding.workload, key):
                    yield holding.workload, domain

    def _domain_of(self, pod: Pod, key: str) -> Iterator[str]:
        j = self._ledger.index.get(self._ledger.held[pod.uid].node_name)
        if j is not None and key in self._ledger.nodes[j].labels:
            yield self._ledger.nodes[j].labels[key]


def _selected_by(near: Near, owner: Pod) -> Callable[[Pod], bool]:
    namespaces = near.namespaces or (owner.namespace,)
    return lambda other: other.namespace in namespaces and near.selector.holds(other.labels)


def unsuited(node: Node, terms: Terms) -> str:
    """Why a node never takes pods of these terms, in the words of kube-scheduler; "" = it does."""
    if node.problem:
        return f"node(s) could not be read: {node.problem}"
    if not node.is_ready:
        return "node(s) were not ready"
    if node.is_cordoned and not _tolerates(terms.tolerations, _CORDON):
        return "node(s) were unschedulable"
    for taint in node.taints:
        if (
            taint.effect in _REPELLING
            and taint.key != _CORDON.key
            and not _tolerates(terms.tolerations, taint)
        ):
            return f"node(s) had taint {{{taint.key}: {taint.value}}}, that the pod didn't tolerate"
    is_selected = all(node.labels.get(key) == value for key, value in terms.selector)
    if not is_selected or not _matches(node, terms.affinity):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _matches(node: Node, affinity: tuple[Term, ...] | None) -> bool:
    return affinity is None or any(term.holds(node.labels, node.name) for term in affinity)


def _tolerates(tolerations: tuple[Mapping[str, str], ...], taint: Taint) -> bool:
    return any(
        each.get("effect", taint.effect) in (taint.effect, "")
        and each.get("key", taint.key) in (taint.key, "")
        and (each.get("operator", "Equal") == "Exists" or each.get("value", "") == taint.value)
        for each in tolerations
    )
