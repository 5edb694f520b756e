"""Which nodes of a partition may take a part of a job now, and why the others may not."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from trimtab.clusters.slurm.slurm_jobs import Job, Part, SlurmLedger
from trimtab.clusters.slurm.slurm_nodes import Node

Mask = NDArray[np.bool_]


class Feasibility:
    """Answers for the nodes and jobs of a ledger."""

    def __init__(self, ledger: SlurmLedger) -> None:
        self._ledger = ledger

    def mask(self, part: Part) -> Mask:
        """The nodes that may take a part of a job now, [nodes]."""
        fits: Mask = self._ledger.room(part.needs)
        for j in np.flatnonzero(fits):
            fits[j] = not self._unfit(self._ledger.nodes[j], part.job)
        return fits

    def suited(self, part: Part) -> Mask:
        """The nodes that could take it if nothing ran there, [nodes]."""
        return np.array(
            [not unsuited(node, part.job) and _offers(node, part) for node in self._ledger.nodes], np.bool_
        )

    def why_not(self, part: Part, j: int) -> str:
        """Why node j may not take it now; "" = it may."""
        node = self._ledger.nodes[j]
        if why := self._unfit(node, part.job):
            return why
        lacking = self._ledger.lacking(part, j)
        return f"too little {', '.join(sorted(lacking))}" if lacking else ""

    def summary(self, part: Part) -> str:
        """Why too few nodes take it."""
        many = range(len(self._ledger.nodes))
        reasons = Counter(self.why_not(part, j) for j in many)
        told = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()) if why)
        rest = "" if self.suited(part).sum() >= part.job.n_nodes else "; it can never run here"
        return f"{reasons['']} of {part.job.n_nodes} nodes that it needs are free: {told or 'none'}{rest}"

    def _unfit(self, node: Node, job: Job) -> str:
        if why := unsuited(node, job):
            return why
        others = list(self._ledger.workloads_on(node.name))
        if job.is_exclusive and others:
            return "not empty"
        return "another job's alone" if any(other.repels for other in others) else ""


def unsuited(node: Node, job: Job) -> str:
    """Why a node never takes a job, whatever runs there; "" = it does."""
    if not node.is_up:
        return node.state
    if node.name in job.excluded:
        return "excluded by the job"
    if job.features and not any(wanted <= node.features for wanted in job.features):
        return "without its features"
    if job.asked and len(job.asked) >= job.n_nodes and node.name not in job.asked:
        return "not in its list of nodes"
    return ""


def _offers(node: Node, part: Part) -> bool:
    return all(node.allocatable.get(name, 0) >= amount for name, amount in part.needs.items())
