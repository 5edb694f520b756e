"""Pollux: a genetic search for the allocation with the best harmonic mean of goodput speed-ups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Natural
from trimtab.domain.training_jobs import AGENT_BATCH, Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.genetic_search import SearchProblem, search_allocation
from trimtab.training.clocks import a_round_later_s

_FLOOR = 1e-3  # added to each speed-up
_OLDER_S = 1.0  # than the age at which a start is worth nothing


@dataclass
class _Past:
    """The last population, and whose rows it has."""

    population: Ints | None = None  # [members, jobs, nodes]
    job_idx: Ints | None = None  # [jobs]
    decisions: int = 0


@dataclass(frozen=True)
class Pollux(Allocator):
    """GPUs and places of all jobs together, for the best power mean of their goodput against a fair share.

    Idea
        A job's speed-up is its goodput with an allocation over that with a fair share of the cluster, each at
        the batch that its agent would choose. A job whose allocation would change is charged its restart: by
        max(age − restarts · delay, 0) / (age + delay). The allocation with the best power mean of all
        speed-ups (exponent −1: harmonic) is searched by a genetic algorithm that goes on from its last
        population. A job gets at most twice the GPUs with which it has run; jobs on several nodes do not
        share a node.
    Source
        Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning, OSDI 2021,
        §4.2, and the simulator published with it.
    Reads
        goodput, profiled_gpus_max, attained_gpu_s, submit_s, age_s, restarts, restart_s, gpus_min, gpus_max.
    Cost
        O(generations · population · jobs · nodes) a decision.
    When it wins / loses
        Short mean completion times, since batches grow with GPUs and noise. A search: other seeds find other
        allocations. It knows one type of GPU, and moves jobs often.
    Deviations from the source
        As in the source's simulator, the fair share counts as one node. The search is stated in
        `shared/genetic_search.py`. Jobs that may not scale keep their number of GPUs or wait; pinned jobs,
        and running ones that may not be preempted, keep their nodes. Of several types of GPU the estimate of
        the first one counts. A clock of events is asked for a decision each minute while jobs run that
        scale, and for one when a young job gains from its start. Autoscaling of the cluster is left out.
    """

    name: ClassVar[str] = "pollux"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.GOODPUT})
    places: ClassVar[bool] = True
    keeps_fixed: ClassVar[bool] = True
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    power: float = -1.0  # exponent of the mean; 0 = geometric
    generations: Natural = 100
    seed: Natural = 0

    def init(self, cluster: GpuCluster, n_jobs: int) -> Any:
        """No population yet."""
        return _Past()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Search from the last population on."""
        fixed = _fixed(jobs, cluster)
        order = np.lexsort((jobs["submit_s"], jobs["attained_gpu_s"], ~fixed))
        jobs, present = jobs[order], np.ascontiguousarray(cluster.gpus[order])
        problem = self._problem(jobs, cluster, present, fixed[order], speed)
        start = _adapted(memory, jobs, present)
        memory.decisions += 1
        found = search_allocation(problem, start, self.generations, self.seed * 1_000_003 + memory.decisions)
        memory.population, memory.job_idx = found, jobs["job_idx"].copy()
        gpus = np.zeros_like(present)
        gpus[order] = found[0]
        wake_s = _wake_s(jobs, found[0], problem, now_s)
        return Allocation(gpus=gpus, local_batch=np.full(len(jobs), AGENT_BATCH), wake_s=wake_s)

    def _problem(
        self, jobs: Records, cluster: GpuCluster, present: Ints, fixed: Flags, speed: Speed
    ) -> SearchProblem:
        most = np.minimum(np.maximum(2 * jobs["profiled_gpus_max"], 1), jobs["gpus_max"]).astype(np.int64)
        most = np.where(jobs["scales"], np.maximum(most, jobs["gpus_min"]), jobs["gpus_requested"])
        least = np.where(jobs["scales"], jobs["gpus_min"], jobs["gpus_requested"]).astype(np.int64)
        width = int(max(most.max(), present.sum(axis=1).max())) + 1
        speedup = _speedups(jobs, cluster, speed, width)
        nodes_of_share = len(cluster.nodes) / cluster.n_gpus
        delay_s, age_s = jobs["restart_s"], jobs["age_s"]
        kept = np.maximum(age_s - jobs["restarts"] * delay_s, 0.0) / np.maximum(age_s + delay_s, 1e-9)
        stays = self._cost(speedup * nodes_of_share)
        moves = self._cost(speedup * nodes_of_share * kept[:, None, None])
        return SearchProblem(
            present, cluster.capacity, least, most.astype(np.int64), fixed, stays, moves, speedup
        )

    def _cost(self, speedup: Floats) -> Floats:
        """The terms whose least sum over the jobs gives the best power mean."""
        if self.power == 0:
            return -elementwise(math.log, np.maximum(speedup, _FLOOR))
        power: Floats = -np.sign(self.power) * (speedup + _FLOOR) ** self.power
        return power


def _fixed(jobs: Records, cluster: GpuCluster) -> Flags:
    runs: Flags = np.any(cluster.gpus > 0, axis=1)
    return runs & (jobs["pinned"] | ~jobs["preemptible"])


def _wake_s(jobs: Records, gpus: Ints, problem: SearchProblem, now_s: float) -> float:
    """A round later. Sooner for jobs that are too young, to which a start is worth nothing."""
    worth_s = jobs["restarts"] * jobs["restart_s"] - jobs["age_s"]  # from now
    waits: Flags = ~gpus.any(axis=1) & (worth_s >= 0) & (problem.speedup.max(axis=(1, 2)) > 0)
    soon_s = now_s + float(worth_s[waits].min(initial=math.inf)) + _OLDER_S
    return min(soon_s, a_round_later_s(now_s, gpus, jobs["scales"]))


def _speedups(jobs: Records, cluster: GpuCluster, speed: Speed, width: int) -> Floats:
    """Goodput over that of a fair share, [jobs, on one node or several, GPUs]."""
    fair = -(-cluster.n_gpus // len(jobs))
    ways = configs(np.arange(width)[None, :], nodes=np.array([[1], [2]]), local_batch=AGENT_BATCH)
    goodput = speed.goodput(jobs[:, None, None], ways[None])
    base = speed.goodput(jobs, configs(fair, local_batch=AGENT_BATCH))
    base = np.where(base > 0, base, goodput[:, 0].max(axis=1))
    speedup: Floats = goodput / np.where(base > 0, base, 1.0)[:, None, None]
    unknown = jobs["profiled_gpus_max"] == 0
    speedup[unknown] = np.arange(width) / fair
    return speedup


def _adapted(memory: _Past, jobs: Records, present: Ints) -> Ints:
    """The last population for the jobs of now; at first the present allocation."""
    if memory.population is None or memory.job_idx is None:
        return present[None].astype(np.int8)
    _, here, there = np.intersect1d(jobs["job_idx"], memory.job_idx, return_indices=True)
    start = np.zeros((len(memory.population), *present.shape), np.int8)
    start[:, here] = memory.population[:, there]
    return start
