"""What is written of a partition while its jobs run: a trace for `compare`, and the choices of a dry run."""

from __future__ import annotations

from pathlib import Path

from trimtab.clusters.placement.choice_log import ChoiceLog
from trimtab.clusters.placement.cluster_recording import Recording
from trimtab.clusters.slurm.able_nodes import Feasibility
from trimtab.clusters.slurm.cluster_view import ClusterView, Listener
from trimtab.clusters.slurm.slurm_jobs import Job
from trimtab.clusters.slurm.slurm_nodes import SLURM, Node
from trimtab.domain.policy import Decider


class JobRecording(Listener):
    """Tells a recording what the view sees. A job on several nodes is a request for each."""

    def __init__(self, view: ClusterView, folder: Path, policy: str) -> None:
        """Raises UsageError where the folder cannot be written."""

        def takes(node: Node) -> bool:
            return node.is_up

        self._view = view
        suited = Feasibility(view.ledger).suited
        self._recording = Recording(view.ledger, suited, takes, folder, policy, "job")
        self._names: set[str] = set()
        self.close = self._recording.close
        view.listeners.append(self)

    def nodes_changed(self) -> None:
        """Note nodes that came, went, or take jobs no more."""
        self._recording.nodes_listed()
        for name in (*self._names, *(self._view.ledger.index.keys() - self._names)):
            self._recording.node_changed(name)
        self._names |= self._view.ledger.index.keys()

    def job_waits(self, job: Job) -> None:
        """Note when it came."""
        for part in job.parts():
            self._recording.came(part, was_there=self._view.is_first)

    def job_placed(self, job: Job, names: tuple[str, ...]) -> None:
        """Note when it began."""
        if job.runs:
            for part, name in zip(job.parts(), names, strict=True):
                self._recording.placed(part, name, was_there=self._view.is_first)

    def job_left(self, job: Job, state: str) -> None:
        """Note how it ended."""
        if job.runs:
            for part in job.parts():
                self._recording.ended(part.uid, "done" if state == "COMPLETED" else "failed")

    def job_over(self, job: Job) -> None:
        """It ran between two looks, or was cancelled."""
        for part, name in zip(job.parts(), job.node_list or [""] * job.n_nodes, strict=True):
            if name:
                self._recording.placed(part, name)
            self._recording.ended(part.uid, "done" if job.state == "COMPLETED" else "failed")


class DryRun(Listener):
    """Logs the choices for each job that begins while it listens. Places nothing."""

    def __init__(self, view: ClusterView, decider: Decider, folder: Path, *, seed: int = 0) -> None:
        self._view = view
        feasible = Feasibility(view.ledger)
        self.log = ChoiceLog(view.ledger, feasible.mask, feasible.summary, decider, SLURM, folder, seed=seed)
        view.listeners.append(self)

    def job_placed(self, job: Job, names: tuple[str, ...]) -> None:
        """Compare the choices for a job that has begun; those for a job's second node know its first."""
        ledger, parts = self._view.ledger, job.parts()
        if job.runs and not self._view.is_first and job.partition == self._view.partition:
            for part in parts:
                ledger.release(part.uid)
            for part, name in zip(parts, names, strict=True):
                self.log.compare(part, name, {"job": job.id, "user": job.user})
                ledger.hold(part, name)
        for part, name in zip(parts, names, strict=True):
            self.log.placed(part, name)

    def job_left(self, job: Job, state: str) -> None:
        """Forget it."""
        for part in job.parts():
            self.log.ended(part.uid)
