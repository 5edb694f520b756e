"""ElasticFlow: admit only jobs whose deadlines can be kept, with the least share that keeps them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Positive
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.deadline_plans import (
    DeadlineJobs,
    Plans,
    Rules,
    Timeline,
    new_plans,
    new_timeline,
    plan_all,
    raise_levels,
    raise_levels_lazily,
    room_for,
)


@dataclass
class Admitted:
    """The state of a run."""

    jobs: set[int] = field(default_factory=set)


@dataclass
class Decision:
    """Plans of one decision, by deadline."""

    rows: Ints  # [planned] rows of the JOBS records
    jobs: DeadlineJobs
    plans: Plans
    timeline: Timeline
    spare: Timeline
    meets: Flags  # [planned]


@dataclass(frozen=True)
class ElasticFlow(Allocator):
    """Guarantees deadlines: a job is admitted only if all admitted jobs can still meet theirs.

    Idea
        The least share of a job is the smallest number of GPUs, over time, with which it meets its deadline
        on the GPUs that jobs of earlier deadlines leave. A new job is admitted if everyone has such a share.
        GPUs that are left over go, level by level, to the job that gains most.
    Source
        Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning,
        ASPLOS 2023, §4; and its artifact.
    Reads
        deadline_s, work_left, gpus_max, estimated speed at each level.
    Cost
        O(jobs · levels · changes of the timeline) a decision, times the levels given beyond the least shares.
    When it wins / loses
        It wins on deadlines met, the more so under overload. Rejected jobs get nothing. It trusts its
        estimates: an error in them breaks promises.
    Deviations from the source
        `admit` "together": jobs of one slot are admitted or rejected together, as the artifact does; the
        paper admits them one by one. `gain` "increase": left-over GPUs go where GPU time grows most, the
        artifact's order; the paper prefers the largest decrease. `levels` "rising" uses numbers of GPUs up to
        the fastest; "all" uses all up to the job's limit. `search` "exact" computes all gains anew after each
        level given, as published; "lazy" only the largest, and gives all their most where that is possible.
        Jobs without a deadline run on what is left.
    """

    name: ClassVar[str] = "elasticflow"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.DEADLINES, JobNeed.SCALING, JobNeed.WORK_LEFT})
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "plans(slot_s=60)"
    placement: ClassVar[str] = "buddy"
    admit: Literal["one-by-one", "together"] = "one-by-one"
    gain: Literal["decrease", "increase"] = "decrease"
    levels: Literal["rising", "all"] = "rising"
    search: Literal["lazy", "exact"] = "lazy"
    slot_s: Positive = 60.0  # plans end at ends of slots

    def init(self, cluster: GpuCluster, n_jobs: int) -> Admitted:
        """No job is admitted."""
        return Admitted()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Admitted
    ) -> Allocation:
        """Admit new jobs, plan least shares, and give away what is free now."""
        is_new = np.array([j not in memory.jobs for j in jobs["job_idx"].tolist()], np.bool_)
        rules = Rules(now_s, self.slot_s, cluster.n_gpus, 1.0 if self.gain == "increase" else -1.0)
        refused = self._refused(jobs, speed, is_new, rules)
        stays = np.ones(len(jobs), np.bool_)
        stays[refused] = False
        decision = self._planned(jobs, speed, np.flatnonzero(stays), rules)
        gpus = np.where(decision.plans.times_s[:, 0] <= now_s, decision.plans.gpus[:, 0], 0)
        promised_s = np.full(len(jobs), math.inf)
        promised_s[decision.rows] = decision.plans.finish_s
        self._give_left_over(decision, gpus, rules)
        memory.jobs.update(jobs["job_idx"][decision.rows].tolist())
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        counts[decision.rows, 0] = gpus
        ends_s = np.full(len(jobs), math.inf)
        ends_s[decision.rows] = np.where(gpus > 0, decision.plans.end_s, math.inf)
        change_s = _next_change_s(decision.plans, now_s)  # one at the end of a job comes with that end
        reason = "the deadlines of all admitted jobs could not be kept with it"
        return Allocation(
            counts=counts,
            rejected=dict.fromkeys(refused.tolist(), reason),
            admitted=decision.rows,
            planned_end_s=ends_s,
            planned_finish_s=promised_s,
            wake_s=change_s if change_s < ends_s.min(initial=math.inf) else math.inf,
        )

    def _refused(self, jobs: Records, speed: Speed, is_new: Flags, rules: Rules) -> Ints:
        """Rows of the new jobs that are not admitted."""
        new = np.flatnonzero(is_new & (jobs["deadline_s"] < math.inf))
        kept = np.flatnonzero(~is_new)
        groups = [new] if self.admit == "together" else [new[k : k + 1] for k in range(len(new))]
        refused: list[Ints] = []
        for group in groups if len(new) else []:
            rows = np.sort(np.concatenate([kept, group]))
            if self._planned(jobs, speed, rows, rules).meets.all():
                kept = rows
            else:
                refused.append(group)
        return np.concatenate(refused) if refused else new[:0]

    def _planned(self, jobs: Records, speed: Speed, rows: Ints, rules: Rules) -> Decision:
        rows = rows[np.argsort(jobs["deadline_s"][rows], kind="stable")]
        room = room_for(len(rows), len(speed.levels))
        read = self._read(jobs[rows], speed)
        timeline = new_timeline(room, rules.now_s, rules.n_gpus)
        spare = new_timeline(room, rules.now_s, rules.n_gpus)
        plans, meets = new_plans(len(rows), room), np.zeros(len(rows), np.bool_)
        plan_all(timeline, spare, plans, read, meets, rules)
        return Decision(rows, read, plans, timeline, spare, meets)

    def _read(self, jobs: Records, speed: Speed) -> DeadlineJobs:
        levels = speed.levels
        rate = speed.goodput(jobs[:, None], configs(levels)[None, :])
        top = np.searchsorted(levels, jobs["gpus_max"], side="right")
        if self.levels == "rising":
            reach = np.where(np.arange(len(levels)) < top[:, None], rate, 0.0)
            top = reach.argmax(axis=1) + 1
        work = np.maximum(jobs["work_left"], 1e-9)
        base = np.searchsorted(levels, jobs["gpus_min"])
        return DeadlineJobs(work, jobs["deadline_s"].copy(), levels, rate, base, top.astype(np.int64))

    def _give_left_over(self, decision: Decision, gpus: Ints, rules: Rules) -> None:
        trial = new_plans(len(decision.rows), decision.timeline.times_s.size)
        given = (decision.timeline, decision.spare, decision.plans, trial, decision.jobs, gpus)
        if self.search == "lazy":
            raise_levels_lazily(*given, rules)
        else:
            raise_levels(*given, np.arange(len(decision.rows)), rules)


def _next_change_s(plans: Plans, now_s: float) -> float:
    """When the first plan changes its number of GPUs."""
    n = int(plans.size.max(initial=0))
    times_s, gpus = plans.times_s[:, :n], plans.gpus[:, :n]
    later = (np.arange(n) < plans.size[:, None])[:, 1:] & (times_s[:, 1:] > now_s)
    at: Floats = times_s[:, 1:][later & (gpus[:, 1:] != gpus[:, :-1])]
    return float(at.min(initial=math.inf))
