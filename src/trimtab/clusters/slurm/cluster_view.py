"""A copy of the nodes of a partition and of what they hold, read anew at each look; nothing else is kept.

Jobs that were released to nodes count as held there before they begin, by what Slurm itself says of them. So
a scheduler that begins anew knows all that the one before it has done.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

from trimtab.clusters.slurm.commands import output, read_json
from trimtab.clusters.slurm.slurm_jobs import Job, Part, Rules, SlurmLedger, jobs_of
from trimtab.clusters.slurm.slurm_nodes import RESOURCES, Node, node_of
from trimtab.errors import ClusterLost, UsageError

_REST: Final = Job("rest")  # what of a node no job accounts for: cores that are kept, jobs that end
_LONGEST_PAUSE_S: Final = 30.0  # between two tries to reach slurmctld

logger = logging.getLogger(__name__)


class Listener:
    """What hears of changes, after the copy has them."""

    def nodes_changed(self) -> None:
        """Nodes are new, gone, or other than they were."""

    def job_waits(self, job: Job) -> None:
        """A job waits that was not there before."""

    def job_placed(self, job: Job, names: tuple[str, ...]) -> None:
        """A job runs, or was released to nodes."""

    def job_left(self, job: Job, state: str) -> None:
        """A job holds nothing any more; `state`: in which it ended, or PENDING."""

    def job_over(self, job: Job) -> None:
        """A job that waited has ended without having been seen to run."""


class ClusterView:
    """Nodes of a partition, and all jobs of the cluster."""

    def __init__(self, partition: str) -> None:
        """Raises UsageError where there is no such partition, ClusterLost."""
        self.partition = partition
        self.ledger = SlurmLedger(RESOURCES)
        self.jobs: dict[str, Job] = {}  # id → of any partition, those that ended included as long as told
        self.listeners: list[Listener] = []
        self._placed: dict[str, tuple[Job, tuple[str, ...]]] = {}  # id → that hold nodes here
        self.is_first = True  # nothing was read before
        config = output("scontrol", "show", "config")
        self.rules = rules_of(config)
        nodes = nodes_of_partition(partition)
        self._threads = max(node.threads for node in nodes)
        self.ledger.reset_nodes(nodes)

    def look(self) -> None:
        """Read the cluster. Raises ClusterLost."""
        given = read_json("squeue", "--all")["jobs"]  # first: what begins meanwhile counts twice, not never
        nodes = nodes_of_partition(self.partition)
        jobs = {job.id: job for each in given for job in jobs_of(each, self.rules, self._threads)}
        before, self.jobs = self.jobs, jobs
        if self.is_first or sorted(nodes, key=lambda node: node.name) != self.ledger.nodes:
            self.ledger.reset_nodes(nodes)
            for listener in self.listeners:
                listener.nodes_changed()
        for job in jobs.values():
            was_waiting = job.id in before and before[job.id].state == "PENDING"
            if job.partition != self.partition:
                continue
            for listener in self.listeners:
                if job.state == "PENDING" and not was_waiting:
                    listener.job_waits(job)
                elif was_waiting and job.state != "PENDING" and not job.runs:
                    listener.job_over(job)
        self._update_places()
        self._count_rest(nodes)
        self.is_first = False

    def follow(self, stopped: threading.Event, period_s: float, seen: Callable[[], str]) -> str:
        """Look every so often until `stopped`, or until `seen`, called after each look, says why to stop.

        Raises UsageError where the cluster is not as it was. Where it does not answer it is asked again.
        """
        pause_s = period_s
        while not stopped.is_set():
            try:
                self.look()
                if why := seen():
                    return why
                pause_s = period_s
            except ClusterLost as error:
                pause_s = min(_LONGEST_PAUSE_S, 2.0 * pause_s)
                logger.warning("%s; again in %g s", error, pause_s)
            stopped.wait(pause_s)
        return ""

    def place(self, job: Job, names: tuple[str, ...]) -> None:
        """A job takes nodes, as it was released to them or runs there."""
        self.take_back(job.id, "PENDING")
        for part, name in zip(job.parts(), names, strict=True):
            self.ledger.hold(part, name)
        self._placed[job.id] = job, names
        for listener in self.listeners:
            listener.job_placed(job, names)

    def take_back(self, job_id: str, state: str) -> None:
        """A job holds nothing any more."""
        if job_id not in self._placed:
            return
        job, _ = self._placed.pop(job_id)
        for part in job.parts():
            self.ledger.release(part.uid)
        for listener in self.listeners:
            listener.job_left(job, state)

    def _update_places(self) -> None:
        index = self.ledger.index
        now: dict[str, tuple[Job, tuple[str, ...]]] = {}
        for job in self.jobs.values():
            names = job.node_list if job.runs else job.pin if job.is_pinned else ()
            if any(name in index for name in names):
                now[job.id] = job, names
        for job_id in [job_id for job_id in self._placed if job_id not in now]:
            ended = self.jobs.get(job_id)
            self.take_back(job_id, ended.state if ended is not None else "UNKNOWN")
        for job_id, (job, names) in now.items():
            known = self._placed.get(job_id)
            if known is None or known[1] != names or known[0].needs != job.needs or known[0].runs != job.runs:
                self.place(job, names)

    def _count_rest(self, nodes: list[Node]) -> None:
        counted: dict[str, dict[str, int]] = {}
        for job, names in self._placed.values():
            if job.runs:
                for name in names:
                    there = counted.setdefault(name, {})
                    for resource, amount in job.needs.items():
                        there[resource] = there.get(resource, 0) + amount
        for node in nodes:
            there = counted.get(node.name, {})
            needs = {r: more for r, used in node.used.items() if (more := used - there.get(r, 0)) > 0}
            uid = f"rest of {node.name}"
            held = self.ledger.held.get(uid)
            if not needs:
                self.ledger.release(uid)
            elif held is None or held.workload.needs != needs:
                self.ledger.hold(Part(uid, _REST, needs), node.name)


def nodes_of_partition(partition: str) -> list[Node]:
    """Raises UsageError where there is no such partition, or it has no nodes; ClusterLost."""
    nodes = [node_of(each) for each in read_json("sinfo", "--all")["nodes"]]
    found = {node.name: node for node in nodes if partition in node.partitions}
    if not found:
        known = sorted({name for node in nodes for name in node.partitions})
        raise UsageError(
            "no such partition, or it has no nodes",
            field="--partition",
            value=partition,
            expected=f"one of {', '.join(known)}",
        )
    return list(found.values())


def rules_of(config: str) -> Rules:
    """What `scontrol show config` says of what jobs take."""
    told = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.M))
    consumes = told.get("SelectTypeParameters", "").upper()
    return Rules(
        counts_memory="MEMORY" in consumes,
        whole_cores="CORE" in consumes or "SOCKET" in consumes,
        whole_nodes="linear" in told.get("SelectType", ""),
    )
