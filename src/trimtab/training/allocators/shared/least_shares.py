"""Least shares of jobs with due times, on several types of GPU: what each needs now so as not to be late.

Each job is planned on one type, the first of its own order on which it is on time, with as few GPUs as that
allows, on what the jobs before it leave (`deadline_plans`). A job that would be late takes no GPUs from
others; but where it fits in the place of a planned job that needs more GPU time, that one gives way.

Source: Gu et al., ElasticFlow, ASPLOS 2023, §4 (least shares); Moore, An n job, one machine sequencing
algorithm for minimizing the number of late jobs, Management Science 15, 1968 (who gives way).
Deviations: Moore's rule is exact for one machine; here it is a heuristic, with one candidate a late job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.training_jobs import Flags, Floats, Ints
from trimtab.training.allocators.shared.deadline_plans import (
    DeadlineJobs,
    Plans,
    Rules,
    Timeline,
    change,
    copy_timeline,
    new_plans,
    new_timeline,
    plan_one,
)


@dataclass(frozen=True, slots=True)
class TypeLevels:
    """The numbers of GPUs of one type that jobs may have, and their speed with each."""

    levels: Ints  # [levels] ascending
    rate_per_s: Floats  # [jobs, levels]; 0 = it can't have it
    gpus: int  # of this type


@dataclass(frozen=True, slots=True)
class LeastShares:
    """The shares that were planned."""

    type_idx: Ints  # [jobs] on which type; -1 = it would be late everywhere
    now_gpus: Ints  # [jobs] that it needs from now on; 0 = it may still wait


@kernel
def plan_on_time(
    timeline: Timeline,
    spare: Timeline,
    plans: Plans,
    jobs: DeadlineJobs,
    yields: Any,
    meets: Any,
    rules: Rules,
) -> None:
    """Plan in the order given those jobs that are on time, each on what the ones before it leave.

    `yields` [jobs]: GPU seconds of a job that may give way, -1 for one that does not.
    """
    timeline.times_s[0], timeline.free[0], timeline.size[0] = rules.now_s, rules.n_gpus, 1
    for j in range(jobs.left.size):
        meets[j] = plan_one(timeline, plans, jobs, j, 0, rules)
        if meets[j]:
            change(timeline, plans, j, -1, spare)
            copy_timeline(spare, timeline)
            continue
        largest = -1
        most = yields[j]
        for i in range(j if most >= 0.0 else 0):
            if meets[i] and yields[i] > most:
                largest, most = i, yields[i]
        if largest < 0:
            continue
        change(timeline, plans, largest, 1, spare)
        if plan_one(spare, plans, jobs, j, 0, rules):
            meets[largest], meets[j] = False, True
            change(spare, plans, j, -1, timeline)


def least_shares(
    types: Sequence[TypeLevels],
    work: Floats,
    due_s: Floats,
    may_yield: Flags,
    order: Ints,
    preferred: Ints,
    rules: Rules,
) -> LeastShares:
    """Plan the jobs of `order` in this order.

    `preferred` [jobs, types]: types, the best first. A job that `may_yield` gives way to another such one, if
    that needs less. `rules.n_gpus` is not read.
    """
    n = len(work)
    chosen = np.full(n, -1)
    now_gpus = np.zeros(n, np.int64)
    tried = np.zeros(n, np.int64)
    wanted: Flags = np.zeros(n, np.bool_)
    wanted[order] = True
    for _ in range(len(types)):
        waits = wanted & (chosen < 0) & (tried < len(types))
        if not waits.any():
            break
        chosen[waits] = preferred[waits, tried[waits]]
        tried[waits] += 1
        for t in np.unique(chosen[waits]):
            here = order[chosen[order] == t]
            meets, gpus = _planned(types[t], work, due_s, may_yield, here, rules)
            now_gpus[here] = np.where(meets, gpus, 0)
            chosen[here[~meets]] = -1
    return LeastShares(chosen, now_gpus)


def _planned(
    of_type: TypeLevels, work: Floats, due_s: Floats, may_yield: Flags, rows: Ints, rules: Rules
) -> tuple[Flags, Ints]:
    """Whether each row is on time, and its GPUs now."""
    rate = of_type.rate_per_s[rows]
    base = (rate > 0).argmax(axis=1)
    top = np.where((rate > 0).any(axis=1), rate.argmax(axis=1) + 1, base)
    jobs = DeadlineJobs(work[rows], due_s[rows], of_type.levels, rate, base, top)
    with np.errstate(divide="ignore"):
        can = rules.now_s + work[rows] / rate.max(axis=1, initial=0.0) <= due_s[rows]
    kept = np.flatnonzero(can & (top > base))
    gpus, meets = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    if len(kept):
        jobs = DeadlineJobs(*(a if a is jobs.levels else a[kept] for a in jobs))
        room = 4 * len(kept) + 8  # a plan adds its end and its due time to the changes of the timeline
        timeline = new_timeline(room, rules.now_s, of_type.gpus)
        spare = new_timeline(room, rules.now_s, of_type.gpus)
        plans, on_time = new_plans(len(kept), room), np.zeros(len(kept), np.bool_)
        with np.errstate(divide="ignore"):
            gpu_s = (jobs.left[:, None] * of_type.levels / jobs.rate_per_s).min(axis=1)
        yields = np.where(may_yield[rows][kept], gpu_s, -1.0)
        rules = rules._replace(n_gpus=of_type.gpus)
        plan_on_time(timeline, spare, plans, jobs, yields, on_time, rules)
        meets[kept] = on_time
        gpus[kept] = np.where(plans.times_s[:, 0] <= rules.now_s, plans.gpus[:, 0], 0)
    return meets, gpus
