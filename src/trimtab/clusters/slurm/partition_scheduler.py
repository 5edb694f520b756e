"""trimtab as the scheduler of a partition of Slurm: jobs that are held are given nodes, and released to them.

Users submit with `sbatch --hold`. trimtab sets ReqNodeList, and releases; Slurm starts the job, and keeps its
own accounts: it never gives more than there is. What was decided stands on the jobs, so nothing is lost or
placed twice when trimtab is killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from trimtab.clusters.placement.policy_choice import PolicyChoice
from trimtab.clusters.slurm.able_nodes import Feasibility
from trimtab.clusters.slurm.claim import Claim
from trimtab.clusters.slurm.cluster_view import ClusterView, Listener
from trimtab.clusters.slurm.commands import change
from trimtab.clusters.slurm.slurm_jobs import MARK, Job, pin_mark
from trimtab.clusters.slurm.slurm_nodes import SLURM
from trimtab.domain.policy import Decider
from trimtab.errors import ClusterLost

_PATIENCE_S: Final = 30.0  # for a job that was released to free nodes to begin; then it is placed anew
_TELL_S: Final = 10.0  # between two reasons told of one job

logger = logging.getLogger(__name__)


class Scheduler(Listener):
    """Places the jobs that users hold in one partition. `run` ends when it is stopped."""

    def __init__(
        self,
        view: ClusterView,
        claim: Claim,
        decider: Decider,
        *,
        comment: str = "",
        period_s: float = 1.0,
        seed: int = 0,
        tell: Callable[[float], None] = lambda place_s: None,
    ) -> None:
        """Prepare to schedule.

        Args:
            view: the partition.
            claim: taken.
            decider: the policy.
            comment: only jobs with this word in their comment; "" = all that are held.
            period_s: between two looks at the cluster.
            seed: of policies that draw.
            tell: hears the seconds of each placement.
        """
        self.view, self._claim, self._comment, self._period_s, self._tell = (
            view,
            claim,
            comment,
            period_s,
            tell,
        )
        self.ledger = view.ledger
        self._feasible = Feasibility(self.ledger)
        self._choice = PolicyChoice(decider, self.ledger, SLURM, seed=seed)
        self.degraded = self._choice.degraded
        self._label, self._has_order = decider.label, decider.order.orders()
        self._keys: dict[str, float] = {}  # id → by which it waits
        self._pinned_s: dict[str, float] = {}  # id → since when it is released and has not begun
        self._told_s: dict[str, float] = {}
        self._refused_s: dict[str, float] = {}  # id → when Slurm objected: not tried at once again
        view.listeners.append(self)

    def job_placed(self, job: Job, names: tuple[str, ...]) -> None:
        """Tell the policy."""
        for part, name in zip(job.parts(), names, strict=True):
            self._choice.placed(part, name)

    def job_left(self, job: Job, state: str) -> None:
        """Tell the policy."""
        for part in job.parts():
            self._choice.ended(part.uid)

    def run(self, stopped: threading.Event) -> None:
        """Schedule until `stopped`. Raises ClusterLost where another copy has taken the partition."""
        if other := self.view.follow(stopped, self._period_s, self._pass):
            raise ClusterLost(f"{other} schedules partition {self.view.partition} now")

    def _pass(self) -> str:
        """Decide about all jobs that wait, and about those that were released to nodes and do not begin.

        Returns who has taken the partition meanwhile; "" = nobody. Raises ClusterLost.
        """
        if other := self._claim.renew():
            return other
        jobs = list(self.view.jobs.values())
        self._place_anew([job for job in jobs if job.is_pinned and job.partition == self.view.partition])
        full: dict[object, str] = {}  # what did not fit in this pass: room only becomes less
        for job in self._waiting(jobs):
            if not self._claim.is_active:
                break
            kind = (
                job.features,
                job.asked,
                job.excluded,
                job.is_exclusive,
                job.n_nodes,
                frozenset(job.needs.items()),
            )
            why = job.refusal or full.get(kind, "")
            if not why:
                names, why = self._choose(job)
                if names:
                    why = self._pin(job, names)
                elif not why.startswith(self._label):
                    full[kind] = why
            if why:
                self._wait(job, why)
        return ""

    def _waiting(self, jobs: list[Job]) -> list[Job]:
        """Jobs to decide about, most urgent first."""
        now_s, alive = time.time(), set[str]()
        at_once: Counter[str] = Counter()
        for job in jobs:
            if job.state == "PENDING" or job.runs:
                alive.add(job.array)
            if job.runs or job.is_pinned:
                at_once[job.array] += 1
        waiting = []
        for job in jobs:
            is_ours = job.is_held and job.partition == self.view.partition and self._comment in job.comment
            was_refused = time.monotonic() - self._refused_s.get(job.id, -_TELL_S) < _TELL_S
            if is_ours and job.eligible_s <= now_s and not job.parents & alive and not was_refused:
                waiting.append(job)
        for gone in self._keys.keys() - {job.id for job in waiting}:
            del self._keys[gone]
        for job in waiting:
            if job.id not in self._keys:
                self._keys[job.id] = self._choice.key(job.parts()[0]) if self._has_order else job.submit_s
        waiting.sort(key=lambda job: (-job.priority, self._keys[job.id], job.submit_s, _in_order(job.id)))
        may = []
        for job in waiting:  # as many tasks of an array as its user allows
            if not job.tasks_at_once or at_once[job.array] < job.tasks_at_once:
                at_once[job.array] += 1
                may.append(job)
        return may

    def _choose(self, job: Job) -> tuple[tuple[str, ...], str]:
        """Nodes for all parts of a job; () and why there are none."""
        names: list[str] = []
        why, ledger = "", self.ledger
        parts = job.parts()
        for k, part in enumerate(parts):
            able = self._feasible.mask(part)
            able[[ledger.index[name] for name in names]] = False
            if len(job.asked) < job.n_nodes and k < len(
                job.asked
            ):  # it demands these, and others beside them
                able[[j for name, j in ledger.index.items() if name != job.asked[k]]] = False
            ranked = self._choice.rank(part, able) if able.any() else []
            if not ranked:
                why = f"{self._label} holds it" if able.any() else ""
                break
            names.append(ledger.nodes[ranked[0]].name)
            ledger.hold(part, names[-1])
            self._choice.placed(part, names[-1])
        for part in parts[: len(names)]:
            ledger.release(part.uid)
            self._choice.ended(part.uid)
        if len(names) == len(parts):
            return tuple(names), ""
        return (), why or self._feasible.summary(parts[0])

    def _pin(self, job: Job, names: tuple[str, ...]) -> str:
        """Release a job to nodes; returns what Slurm objects, "" = done. Raises ClusterLost."""
        begun_s = time.monotonic()
        self.view.place(job, names)
        mark = f"{job.other_comment}{MARK}{pin_mark(names, self._label, job.asked)}"
        many = f"NumNodes={len(names)}-{len(names)}"  # and no others beside them
        problem = change(
            "scontrol",
            "update",
            f"JobId={job.id}",
            f"ReqNodeList={','.join(names)}",
            many,
            f"AdminComment={mark}",
        ) or (change("scontrol", "release", job.id) if job.is_held else "")
        if problem:
            logger.warning("job %s: %s", job.id, problem)
            self.view.take_back(job.id, "PENDING")
            self._refused_s[job.id] = begun_s
            return problem
        self._tell(time.monotonic() - begun_s)
        self._pinned_s[job.id] = time.monotonic()
        logger.info("job %s: %s", job.id, mark)
        return ""

    def _place_anew(self, pinned: list[Job]) -> None:
        """Other nodes for jobs whose nodes are gone, or taken by others."""
        now_s, ledger = time.monotonic(), self.ledger
        self._pinned_s = {job.id: self._pinned_s.get(job.id, now_s) for job in pinned}
        for job in pinned:
            lost = [n for n in job.pin if n not in ledger.index or not ledger.nodes[ledger.index[n]].is_up]
            if not lost and now_s - self._pinned_s[job.id] < _PATIENCE_S:
                continue
            if not self._claim.is_active:
                break
            logger.info("job %s has not begun on %s: placed anew", job.id, ",".join(lost or job.pin))
            self.view.take_back(job.id, "PENDING")
            names, why = self._choose(job)
            if names == job.pin:
                self.view.place(job, names)
                self._pinned_s[job.id] = now_s
            elif names:
                self._pin(job, names)
            else:
                self._wait(job, why)

    def _wait(self, job: Job, why: str) -> None:
        """Say on a job why it waits. One that was released is held again, with its user's list of nodes."""
        now_s, mark = time.monotonic(), f"waits: {why}"
        if job.is_held and (mark == job.mark or now_s - self._told_s.get(job.id, -_TELL_S) < _TELL_S):
            return
        self._told_s[job.id] = now_s
        nodes = [f"ReqNodeList={','.join(job.asked)}"] if job.pin else []
        problem = change(
            "scontrol", "update", f"JobId={job.id}", *nodes, f"AdminComment={job.other_comment}{MARK}{mark}"
        ) or ("" if job.is_held else change("scontrol", "uhold", job.id))
        logger.info("job %s %s%s", job.id, mark, f" ({problem})" if problem else "")


def _in_order(job_id: str) -> tuple[int, ...]:
    return tuple(int(number) for number in job_id.split("_"))
