"""Compiles the kernels of the loop and of planning in advance by using each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.compiled.compiling import compile_by_use, is_compiled
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes, held_sums
from trimtab.domain.training_profiles import ScalingTable, rates_between
from trimtab.solvers.multiple_choice import KERNELS, Choices, choose
from trimtab.training.allocation_check import first_broken
from trimtab.training.allocators.shared.deadline_plans import (
    DeadlineJobs,
    Rules,
    new_plans,
    new_timeline,
    plan_all,
    raise_levels,
    raise_levels_lazily,
)
from trimtab.training.allocators.shared.least_shares import plan_on_time
from trimtab.training.gang_placement import consolidated, kept_gpus
from trimtab.training.job_states import note_time
from trimtab.training.training_loop import changes

_LOOP = (held_sums, rates_between, first_broken, kept_gpus, changes, note_time)
_PLANNING = (plan_all, plan_on_time, raise_levels, raise_levels_lazily)


def compile_planning(notice: Callable[[str], None] | None = None) -> None:
    """Compile, unless the kernels are in the cache."""
    if notice is not None and not all(map(is_compiled, (*_LOOP, *_PLANNING, *KERNELS))):
        notice("compiling planning, once")
    compile_by_use(_LOOP, _use_loop)
    compile_by_use(_PLANNING, _use)
    compile_by_use(KERNELS, _use_choices)


def _use_loop() -> None:
    one, seconds = np.zeros(1, np.int64), np.ones(1)
    ScalingTable(one + 1, ("",), np.ones((1, 1, 1)), one[None], seconds).rates(one, one, one + 1)
    cluster = GpuCluster(gpu_nodes(0, [2]), ("",), Held.of(np.ones((1, 1), np.int64)), 1)
    held = consolidated(np.full((1, 1), 2), cluster)
    changes(cluster.now_held.rows, held.gpus, held.rows, held.gpus)
    jobs = np.zeros(1, JOBS)
    first_broken(jobs, held.n_gpus)
    note_time(jobs, one, held.n_gpus, seconds, seconds, seconds)


def _use() -> None:
    levels, rate = np.array([1, 2]), np.array([[1.0, 1.5], [1.0, 1.5]])
    first, last = np.zeros(2, np.int64), np.full(2, 2)
    jobs = DeadlineJobs(np.full(2, 10.0), np.full(2, 100.0), levels, rate, first, last)
    rules = Rules(0.0, 60.0, 4, 1.0)
    timeline, spare, plans = new_timeline(12, 0.0, 4), new_timeline(12, 0.0, 4), new_plans(2, 12)
    plan_on_time(timeline, spare, plans, jobs, np.ones(2), np.zeros(2, np.bool_), rules)
    plan_all(timeline, spare, plans, jobs, np.zeros(2, np.bool_), rules)
    given = (timeline, spare, plans, new_plans(2, 12), jobs, np.zeros(2, np.int64))
    raise_levels(*given, np.arange(2), rules)
    raise_levels_lazily(*given, rules)


def _use_choices() -> None:
    cost = np.array([[1.0, 0.7, 0.55], [1.0, 0.75, 0.6], [1.0, 0.72, 0.5]])
    units, resource = np.array([1, 2, 3]), np.zeros(3, np.int64)
    choose(Choices(cost, np.full(3, 1.1), units, resource, np.array([5])))  # the prices leave a gap
