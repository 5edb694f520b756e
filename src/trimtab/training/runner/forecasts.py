"""When jobs will end: the rest of the run, simulated with its policy from where the jobs are now.

A rollout knows the jobs that were submitted, the work that each has left, the present estimates of speed and
the mean restart; of jobs that are still to come it knows nothing. It takes all jobs for new: what they were
given so far does not count. A job that makes progress is charged no restart unless its slots change.

The first rollout that has a job is what was predicted at its admission. A job of whose speed nothing is known
has no forecast before it, or one of its model, has reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints, Workload
from trimtab.errors import TrimtabError
from trimtab.traces.scaling_profiles import scaling_table
from trimtab.training.allocator_catalogue import canonical_allocator
from trimtab.training.restart_costs import FlatRestart
from trimtab.training.runner.job_list import JobSpec, workload_of_jobs
from trimtab.training.runner.live_decisions import ONE_TYPE, LiveDecisions
from trimtab.training.runner.run_ledger import KnownRun
from trimtab.training.runner.work_process import WorkProcess
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth

LOOK_S: Final = 10.0  # between two rollouts where nothing happens
SPARE: Final = 20.0  # times what the last rollout took: so long there is none
LONGEST_S: Final = 5.0  # a rollout that takes longer is the last
KILLED_S: Final = 60.0

Curve = Mapping[int, float]  # GPUs → work per second


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rest of a run: a simulation that can run in another process."""

    policy: str
    workload: Workload
    curves: Mapping[tuple[str, float], Curve]
    setup: Mapping[str, Any]
    restart_s: float

    def finish_s(self) -> Floats:
        """When each job ends, from now on; nan = it never does. Raises TrimtabError."""
        table, _ = scaling_table({key: dict(curve) for key, curve in self.curves.items()})
        restart, truth = FlatRestart(self.restart_s), TableTruth(table)
        return run_allocator(self.policy, self.workload, restart=restart, truth=truth, **self.setup).finish_s


class Forecasts:
    """Keeps `end_s` and `admission_end_s` of the decisions of a run up to date."""

    def __init__(self, run: KnownRun, decisions: LiveDecisions) -> None:
        self._run, self._decisions = run, decisions
        self._next_s, self._is_busy, self._seen = -math.inf, False, b""
        self._process = WorkProcess()

    async def open(self) -> None:
        """Wait until the process has what it needs."""
        with contextlib.suppress(BrokenExecutor):
            await self._process.call(canonical_allocator, self._run.settings.policy)

    def close(self) -> None:
        """No more rollouts."""
        self._process.close()

    def is_due(self, now_s: float) -> bool:
        """Whether a rollout would tell something new, and there is time for it."""
        made = self._decisions
        if self._is_busy or not len(made.active) or now_s < self._next_s:
            return False
        return made.active.tobytes() + made.wanted.tobytes() != self._seen or now_s >= self._looked_s + LOOK_S

    async def look(self, now_s: float, progressing: Ints) -> None:
        """Make a rollout. `progressing`: jobs that make progress now."""
        made = self._decisions
        self._is_busy, self._looked_s = True, now_s
        self._seen = made.active.tobytes() + made.wanted.tobytes()
        jobs, rollout = made.active.copy(), self.rollout(now_s, progressing)
        is_unknown = [not made.speed.is_known(k) for k in jobs.tolist()]
        begun_s = time.perf_counter()
        try:
            ends_s = now_s + await asyncio.wait_for(self._process.call(rollout.finish_s), KILLED_S)
        except (TrimtabError, TimeoutError, BrokenExecutor):
            return  # an error of the policy itself is told where it decides about the real jobs
        finally:
            self._is_busy = False
            spent_s = time.perf_counter() - begun_s
            self._next_s = math.inf if spent_s > LONGEST_S else now_s + (1.0 + SPARE) * spent_s
        ends_s[is_unknown] = math.nan
        made.end_s[jobs] = ends_s
        is_new = np.isnan(made.admission_end_s[jobs])
        made.admission_end_s[jobs[is_new]] = ends_s[is_new]

    def rollout(self, now_s: float, progressing: Ints) -> Rollout:
        """The rest of the run, to be simulated."""
        made, rules = self._decisions, self._run.listed.rules
        left, jobs, curves = made.done.work_left(made.active), [], {}
        for k, work in zip(made.active.tolist(), left.tolist(), strict=True):
            spec = self._run.listed.jobs[k]
            curve = made.curve(k, spec.limits[1])
            if k in progressing:  # it is charged a restart as it begins: so much less is to do
                work -= made.restarts.mean_s * curve[int(made.wanted[k].sum()) or spec.gpus]
            jobs.append(_rest(spec, now_s, work))
            curves[spec.id, float(spec.least_batch)] = curve
        setup = {
            "clock": rules.clock,
            "round_s": rules.round_s,
            "placement": rules.placement,
            "type_names": ONE_TYPE,
            "nodes": made.nodes.copy(),
            "places": None if made.places is None else made.places.of(made.active),
            "strict_priority": rules.priorities == "strict",
        }
        return Rollout(
            self._run.settings.policy, workload_of_jobs(jobs, "rest"), curves, setup, made.restarts.mean_s
        )


def _rest(spec: JobSpec, now_s: float, work: float) -> JobSpec:
    deadline_s = None if spec.deadline_s is None else max(spec.deadline_s - now_s, 1e-3)
    changed = {"submit_s": 0.0, "samples": max(round(work), 1), "model": spec.id, "deadline_s": deadline_s}
    return spec.model_copy(update=changed)
