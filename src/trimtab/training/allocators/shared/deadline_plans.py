"""Plans of deadline jobs over a timeline of free GPUs: the least share that meets a deadline, and more.

Source: Gu et al., ElasticFlow, ASPLOS 2023, §4, as its artifact computes it. A plan is a step function of
GPUs over time. The timeline is what is free after the plans of all jobs so far.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel

NEVER = math.inf


class Timeline(NamedTuple):
    """Free GPUs from each time on."""

    times_s: Any  # f8 [room] ascending; the first is now
    free: Any  # i8 [room]
    size: Any  # i8 [1]


class Plans(NamedTuple):
    """One plan for each job: GPUs from each time on, up to its end."""

    times_s: Any  # f8 [jobs, room]
    gpus: Any  # i8 [jobs, room]
    size: Any  # i8 [jobs]
    end_s: Any  # f8 [jobs] end of the slot in which the job finishes
    finish_s: Any  # f8 [jobs] when it finishes
    gpu_s: Any  # f8 [jobs] GPU seconds; the last interval counts up to its next change, as in the artifact


class DeadlineJobs(NamedTuple):
    """The columns of jobs that planning reads, by deadline."""

    left: Any  # f8 [jobs] work
    deadline_s: Any  # f8 [jobs]
    levels: Any  # i8 [levels] numbers of GPUs
    rate_per_s: Any  # f8 [jobs, levels]
    base: Any  # i8 [jobs] first level that the job may use
    top: Any  # i8 [jobs] level after the last one that it may use


class Rules(NamedTuple):
    """Numbers of a decision."""

    now_s: float
    slot_s: float
    n_gpus: int
    sign: float  # of a change of GPU seconds: 1 prefers the largest increase, -1 the largest decrease


def room_for(jobs: int, levels: int) -> int:
    """Most changes of a timeline: each level that a job is given may add its end and its deadline."""
    return 2 * jobs * (levels + 1) + 8


def new_timeline(room: int, now_s: float, n_gpus: int) -> Timeline:
    """A timeline on which all GPUs are free."""
    timeline = Timeline(np.zeros(room), np.zeros(room, np.int64), np.ones(1, np.int64))
    timeline.times_s[0], timeline.free[0] = now_s, n_gpus
    return timeline


def new_plans(jobs: int, room: int) -> Plans:
    """Empty plans."""
    shape = (jobs, room)
    columns = [np.zeros(jobs) for _ in range(3)]
    return Plans(np.empty(shape), np.empty(shape, np.int64), np.zeros(jobs, np.int64), *columns)


@helper
def _aligned(start_s: float, time_s: float, slot_s: float) -> float:
    return start_s + math.ceil((time_s - start_s) / slot_s) * slot_s if time_s < NEVER else NEVER


@helper
def _level(jobs: DeadlineJobs, j: int, top: int, most: int) -> int:
    """Index of the job's largest level below `top` with up to `most` GPUs; -1 = none."""
    at, base = top - 1, jobs.base[j]
    while at >= base and jobs.levels[at] > most:
        at -= 1
    return at if at >= base else -1


@helper
def _note(plans: Plans, j: int, time_s: float, gpus: int) -> None:
    if plans.size[j] >= plans.times_s.shape[1]:
        raise IndexError("a plan has more changes than there is room for")
    plans.times_s[j, plans.size[j]] = time_s
    plans.gpus[j, plans.size[j]] = gpus
    plans.size[j] += 1


@helper
def _close(plans: Plans, j: int, end_s: float, finish_s: float) -> None:
    plans.end_s[j], plans.finish_s[j] = end_s, finish_s
    n = plans.size[j]
    gpu_s = 0.0
    for k in range(n):
        until_s = plans.times_s[j, k + 1] if k + 1 < n else end_s
        if plans.gpus[j, k] > 0:
            gpu_s += plans.gpus[j, k] * (until_s - plans.times_s[j, k])
    plans.gpu_s[j] = gpu_s


@helper
def _latest_start(
    timeline: Timeline, jobs: DeadlineJobs, j: int, q: int, first: int, left: float, aligned_s: float
) -> int:
    """The latest interval from which on at most q levels finish the work by the deadline; -1 = none."""
    done = 0.0
    n = timeline.size[0]
    for i in range(n - 1, first - 1, -1):
        start_s = timeline.times_s[i]
        if start_s >= aligned_s:
            continue
        a = _level(jobs, j, q + 1, timeline.free[i])
        if a >= 0:
            end_s = min(timeline.times_s[i + 1], aligned_s) if i + 1 < n else aligned_s
            until_s = jobs.deadline_s[j] if end_s == aligned_s else end_s
            done += (until_s - start_s) * jobs.rate_per_s[j, a]
            if done >= left:
                return i
    return -1


@helper
def _fill(
    timeline: Timeline,
    plans: Plans,
    jobs: DeadlineJobs,
    j: int,
    first: int,
    point: int,
    q: int,
    left: float,
    aligned_s: float,
    slot_s: float,
) -> float:
    """Plan level q from interval `point` on, and the level below before; returns the work left, 0 = done."""
    n = timeline.size[0]
    end_s, finish_s = NEVER, NEVER
    is_done = False
    for i in range(first, n):
        start_s = timeline.times_s[i]
        if start_s >= aligned_s:
            break
        a = _level(jobs, j, q + 1 if i >= point else q, timeline.free[i])
        if is_done or a < 0:
            _note(plans, j, start_s, 0)
            continue
        _note(plans, j, start_s, jobs.levels[a])
        next_s = min(timeline.times_s[i + 1], aligned_s) if i + 1 < n else aligned_s
        until_s = jobs.deadline_s[j] if next_s == aligned_s else next_s
        work = (until_s - start_s) * jobs.rate_per_s[j, a]
        if work < left:
            left -= work
        else:
            needed_s = math.ceil(left / jobs.rate_per_s[j, a])
            end_s = start_s + _aligned(0.0, needed_s, slot_s)
            finish_s = start_s + needed_s
            is_done = True
    if is_done:
        _close(plans, j, end_s, finish_s)
        return 0.0
    return left


@helper
def _run_late(
    timeline: Timeline,
    plans: Plans,
    jobs: DeadlineJobs,
    j: int,
    left: float,
    from_s: float,
    forced: int,
    rules: Rules,
) -> None:
    """Plan the largest level that is free from `from_s` to the job's finish."""
    n = timeline.size[0]
    i = 0
    while i + 1 < n and timeline.times_s[i + 1] <= from_s:
        i += 1
    while i + 1 < n:
        start_s = max(timeline.times_s[i], from_s)
        a = _level(jobs, j, jobs.top[j], timeline.free[i])
        _note(plans, j, start_s, jobs.levels[a] if a >= 0 else 0)
        if a >= 0:
            work = (timeline.times_s[i + 1] - start_s) * jobs.rate_per_s[j, a]
            if work >= left:
                finish_s = math.ceil(start_s + left / jobs.rate_per_s[j, a])
                _close(plans, j, _aligned(rules.now_s, finish_s, rules.slot_s), finish_s)
                return
            left -= work
        i += 1
    start_s = max(timeline.times_s[n - 1], from_s)
    a = _level(jobs, j, jobs.top[j], forced if forced > 0 else rules.n_gpus)
    if a < 0:  # wider than the cluster
        _note(plans, j, start_s, 0)
        _close(plans, j, NEVER, NEVER)
        return
    _note(plans, j, start_s, jobs.levels[a])
    finish_s = math.ceil(start_s + left / jobs.rate_per_s[j, a])
    _close(plans, j, _aligned(rules.now_s, finish_s, rules.slot_s), finish_s)


@helper
def plan_one(timeline: Timeline, plans: Plans, jobs: DeadlineJobs, j: int, forced: int, rules: Rules) -> bool:
    """Plan one job; returns whether it meets its deadline.

    The least level suffices that meets the deadline if it is used as late as possible. `forced` GPUs are used
    up to the timeline's next change; 0 = none are. A job that can't meet its deadline gets all that is free.
    """
    plans.size[j] = 0
    left, deadline_s = jobs.left[j], jobs.deadline_s[j]
    aligned_s = _aligned(rules.now_s, deadline_s, rules.slot_s)
    first, from_s = 0, rules.now_s
    if forced > 0:
        rate = jobs.rate_per_s[j, _level(jobs, j, jobs.top[j], forced)]
        _note(plans, j, rules.now_s, forced)
        finish_s = math.ceil(rules.now_s + left / rate)
        end_s = _aligned(rules.now_s, finish_s, rules.slot_s)
        from_s = timeline.times_s[1] if timeline.size[0] > 1 else aligned_s
        ran_s = (deadline_s if from_s == aligned_s else from_s) - rules.now_s
        if from_s >= end_s and (deadline_s >= finish_s or ran_s * rate >= left):
            _close(plans, j, end_s, finish_s)
            return bool(finish_s <= deadline_s)
        if ran_s > 0:
            left -= ran_s * rate
        from_s = max(from_s, rules.now_s)
        first = 1
    for q in range(jobs.base[j], jobs.top[j]):
        point = _latest_start(timeline, jobs, j, q, first, left, aligned_s)
        if point >= 0:
            left = _fill(timeline, plans, jobs, j, first, point, q, left, aligned_s, rules.slot_s)
            if left > 0:
                _run_late(timeline, plans, jobs, j, left, max(aligned_s, from_s), forced, rules)
            return bool(plans.finish_s[j] <= deadline_s)
    left = _fill(timeline, plans, jobs, j, first, 0, jobs.top[j] - 1, left, aligned_s, rules.slot_s)
    if left > 0:
        _run_late(timeline, plans, jobs, j, left, max(aligned_s, from_s), forced, rules)
    return bool(plans.finish_s[j] <= deadline_s)


@helper
def change(timeline: Timeline, plans: Plans, j: int, sign: int, to: Timeline) -> None:
    """Write the timeline with a plan added (its GPUs are free again) or taken off to another one."""
    n, m, end_s = timeline.size[0], plans.size[j], plans.end_s[j]
    i, k, out = 0, 0, 0
    time_s = timeline.times_s[0]
    held = 0
    while time_s < NEVER:
        while i + 1 < n and timeline.times_s[i + 1] <= time_s:
            i += 1
        while k < m and plans.times_s[j, k] <= time_s:
            held = plans.gpus[j, k]
            k += 1
        value = timeline.free[i] + (sign * held if time_s < end_s else 0)
        if out == 0 or to.free[out - 1] != value:
            if out >= to.times_s.size:
                raise IndexError("a timeline has more changes than there is room for")
            to.times_s[out], to.free[out] = time_s, value
            out += 1
        next_s = timeline.times_s[i + 1] if i + 1 < n else NEVER
        if k < m and time_s < end_s:
            next_s = min(next_s, plans.times_s[j, k])
        if time_s < end_s:
            next_s = min(next_s, end_s)
        time_s = next_s
    to.size[0] = out


@helper
def copy_timeline(source: Timeline, to: Timeline) -> None:
    """Copy a timeline."""
    n = source.size[0]
    to.times_s[:n] = source.times_s[:n]
    to.free[:n] = source.free[:n]
    to.size[0] = n


@kernel
def plan_all(
    timeline: Timeline, spare: Timeline, plans: Plans, jobs: DeadlineJobs, meets: Any, rules: Rules
) -> None:
    """Plan all jobs in the order given, each on what the ones before it leave."""
    timeline.times_s[0], timeline.free[0], timeline.size[0] = rules.now_s, rules.n_gpus, 1
    for j in range(jobs.left.size):
        meets[j] = plan_one(timeline, plans, jobs, j, 0, rules)
        change(timeline, plans, j, -1, spare)
        copy_timeline(spare, timeline)


@helper
def _gain(
    timeline: Timeline,
    without: Timeline,
    plans: Plans,
    trial: Plans,
    jobs: DeadlineJobs,
    j: int,
    now_gpus: Any,
    free: int,
    rules: Rules,
) -> float:
    """Gain of a job's next level; -inf = there is none that fits. The plan for it is left in `trial`."""
    to = _next_level(jobs, j, now_gpus[j])
    if to < 0 or to - now_gpus[j] > free:
        return -NEVER
    change(timeline, plans, j, 1, without)
    plan_one(without, trial, jobs, j, to, rules)
    if now_gpus[j] == 0:
        return NEVER
    return rules.sign * (trial.gpu_s[j] - plans.gpu_s[j]) / (to - now_gpus[j])


@helper
def _next_level(jobs: DeadlineJobs, j: int, gpus: int) -> int:
    """The job's next number of GPUs after these; -1 = none."""
    at = jobs.base[j]
    while at < jobs.top[j] and jobs.levels[at] <= gpus:
        at += 1
    return jobs.levels[at] if at < jobs.top[j] else -1


@kernel
def raise_levels(
    timeline: Timeline,
    spare: Timeline,
    plans: Plans,
    trial: Plans,
    jobs: DeadlineJobs,
    now_gpus: Any,
    rank: Any,
    rules: Rules,
) -> None:
    """Give what is free now, level by level, to the job with the largest gain. `rank` orders ties."""
    n = jobs.left.size
    gains = np.zeros(n)
    free = timeline.free[0]
    while free > 0 and n > 0:
        for j in range(n):
            gains[j] = _gain(timeline, spare, plans, trial, jobs, j, now_gpus, free, rules)
        order = np.argsort(-gains[rank], kind="mergesort")
        rank[:] = rank[order]
        best = rank[0]
        if gains[best] == -NEVER:
            return
        free = _grant(timeline, spare, plans, trial, jobs, best, now_gpus, free)


@kernel
def raise_levels_lazily(
    timeline: Timeline,
    spare: Timeline,
    plans: Plans,
    trial: Plans,
    jobs: DeadlineJobs,
    now_gpus: Any,
    rules: Rules,
) -> None:
    """As `raise_levels`, but a gain is computed anew only when it is the largest of those known.

    Where all jobs can have their largest level, each gets it at once.
    """
    n = jobs.left.size
    free, missing = timeline.free[0], 0
    for j in range(n):
        missing += jobs.levels[jobs.top[j] - 1] - now_gpus[j]
    if missing <= free:
        for j in range(n):
            to = jobs.levels[jobs.top[j] - 1]
            if to > now_gpus[j]:
                change(timeline, plans, j, 1, spare)
                plan_one(spare, trial, jobs, j, to, rules)
                _exchange(timeline, spare, plans, trial, j)
                now_gpus[j] = to
        return
    gains = np.full(n, NEVER)
    while free > 0:
        best = int(np.argmax(gains))
        if gains[best] == -NEVER:
            return
        gain = _gain(timeline, spare, plans, trial, jobs, best, now_gpus, free, rules)
        gains[best] = gain
        if gain > -NEVER and gain >= gains.max():
            free = _grant(timeline, spare, plans, trial, jobs, best, now_gpus, free)
            gains[best] = _gain(timeline, spare, plans, trial, jobs, best, now_gpus, free, rules)


@helper
def _grant(
    timeline: Timeline,
    spare: Timeline,
    plans: Plans,
    trial: Plans,
    jobs: DeadlineJobs,
    j: int,
    now_gpus: Any,
    free: int,
) -> int:
    """Give a job its next level, for which `trial` has the plan; returns what is still free now."""
    change(timeline, plans, j, 1, spare)
    _exchange(timeline, spare, plans, trial, j)
    to = _next_level(jobs, j, now_gpus[j])
    free -= to - now_gpus[j]
    now_gpus[j] = to
    return free


@helper
def _exchange(timeline: Timeline, spare: Timeline, plans: Plans, trial: Plans, j: int) -> None:
    """Put a job's trial plan in the place of its plan. `spare` is the timeline without the latter."""
    n = trial.size[j]
    plans.times_s[j, :n] = trial.times_s[j, :n]
    plans.gpus[j, :n] = trial.gpus[j, :n]
    plans.size[j] = n
    plans.end_s[j], plans.finish_s[j], plans.gpu_s[j] = trial.end_s[j], trial.finish_s[j], trial.gpu_s[j]
    change(spare, plans, j, -1, timeline)
