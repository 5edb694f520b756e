"""Sia: an integer programme chooses number and type of GPUs for each job, by normalised goodput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import NonNegative
from trimtab.domain.training_jobs import (
    AGENT_BATCH,
    Flags,
    Floats,
    GpuCluster,
    Ints,
    Records,
)
from trimtab.solvers.multiple_choice import Choices, choose
from trimtab.training.allocators.shared.node_packing import whole_nodes_first
from trimtab.training.clocks import a_round_later_s
from trimtab.training.levels import configurations, holders, present_configuration

_MOST = 3000.0  # of a value to the power p
_DIGITS = 2  # to which values are rounded


@dataclass(frozen=True)
class Sia(Allocator):
    """Each job gets a configuration (GPUs, type) or none, for the best sum of powers of its goodput.

    Idea
        Configurations are powers of two within a node, then whole nodes, of each type. A job's goodputs are
        divided by its least one, so that they say how many times its minimum it gets; a change of a running
        job is charged its restart, by max(age − restarts · delay, 0) / (age + delay). An integer programme
        minimises the sum of goodput^p over the jobs with p < 0 (maximises for p > 0), where a job without
        GPUs costs `idle_cost`. A job starts with its minimum and at most doubles from round to round.
    Source
        Jayaram Subramanya et al., Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling, SOSP
        2023, §3, and the simulator published with it.
    Reads
        goodput by type and number of GPUs, profiled_gpus_max, age_s, restarts, restart_s, restart_left_s,
        gpus_min, gpus_max.
    Cost
        O(jobs · configurations) for goodput and for each step of the programme.
    When it wins / loses
        Short completion times on several types of GPU, where jobs differ in what they gain from each. It
        knows no deadlines. Estimates for types that a job never ran on are scaled from others.
    Deviations from the source
        The programme is solved by `solvers/multiple_choice.py`, to the proven optimum or within `gap_frac`
        of it, in place of CBC. A queued job's goodput is not charged a restart, since it has no configuration
        to keep. A pure change of nodes costs a restart where the run charges it; the source's simulator does
        not charge it. Jobs of hybrid parallelism are not modelled. With speeds that are tables, goodput is
        throughput. Rigid jobs get the number of GPUs that they asked for, of the best type.
        While jobs run that scale, a clock of events is asked for a decision each minute.
    """

    name: ClassVar[str] = "sia"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING})
    places: ClassVar[bool] = True
    keeps_fixed: ClassVar[bool] = True
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    power: float = -0.5
    idle_cost: NonNegative = 1.1
    gap_frac: NonNegative = 1e-4

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Solve the programme, then place."""
        if cluster.n_gpus == 0:
            return Allocation(gpus=np.zeros_like(cluster.gpus))
        held, must_stay = holders(jobs, cluster)
        stays: Flags = must_stay | (held & (jobs["restart_left_s"] > 0))
        ways = configurations(jobs, cluster, stays)
        present = present_configuration(cluster, ways)
        goodput = speed.goodput(jobs[:, None], ways[None, :])
        counts = self._counts(jobs, cluster, ways, np.where(stays, present, -1), present, goodput)
        gpus = np.zeros_like(cluster.gpus)
        placed = whole_nodes_first(counts, cluster, must_stay)
        gpus[placed.rows] = placed.gpus
        batch = np.full(len(jobs), AGENT_BATCH)
        return Allocation(gpus=gpus, local_batch=batch, wake_s=a_round_later_s(now_s, gpus, jobs["scales"]))

    def _counts(
        self, jobs: Records, cluster: GpuCluster, ways: Records, stays: Ints, present: Ints, goodput: Floats
    ) -> Ints:
        """GPUs of each type [jobs, types]. `stays`, `present`: what a job keeps, what it has; -1 = none."""
        value = self._values(jobs, ways, present, goodput)
        kept = np.arange(len(ways))[None, :] == stays[:, None]
        value = np.where((stays < 0)[:, None] | kept, value, np.inf)
        value[kept & (value == np.inf)] = 0.0  # it stays whatever the estimate says
        step = 10.0**-_DIGITS if round(self.idle_cost, _DIGITS) == self.idle_cost else 0.0
        skip = np.where(stays >= 0, np.inf, self.idle_cost)
        problem = Choices(
            value,
            skip,
            ways["gpus"].astype(np.int64),
            ways["type_idx"].astype(np.int64),
            cluster.type_gpus,
            step,
        )
        chosen = choose(problem, self.gap_frac)
        assert chosen is not None  # jobs that stay fit, and the others may wait
        counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
        runs = np.flatnonzero(chosen.option >= 0)
        option = chosen.option[runs]
        counts[runs, ways["type_idx"][option]] = ways["gpus"][option]
        return counts

    def _values(self, jobs: Records, ways: Records, present: Ints, goodput: Floats) -> Floats:
        """The cost of each configuration for each job in the programme; inf = it can't have it."""
        least = np.where(jobs["scales"], np.maximum(jobs["gpus_min"], 1), jobs["gpus_requested"])
        most = np.minimum(2 * jobs["profiled_gpus_max"], jobs["gpus_max"])
        most = np.where(jobs["scales"], np.maximum(most, least), jobs["gpus_requested"])
        usable = (ways["gpus"] >= least[:, None]) & (ways["gpus"] <= most[:, None]) & (goodput > 0)
        smallest = np.where(usable, goodput, np.inf).min(axis=1)
        times = np.where(usable, goodput / smallest[:, None] * least[:, None], 1.0)
        delay_s, age_s = jobs["restart_s"], jobs["age_s"]
        kept = np.maximum(age_s - jobs["restarts"] * delay_s, 0.0) / np.maximum(age_s + delay_s, 1e-9)
        kept = np.where((age_s < delay_s) | (present < 0), 1.0, kept)
        is_present = np.arange(len(ways))[None, :] == present[:, None]
        times = np.where(is_present, times, times * kept[:, None])
        with np.errstate(divide="ignore"):
            value = np.round(np.minimum(times**self.power, _MOST), _DIGITS)
        return np.where(usable, value if self.power < 0 else -value, np.inf)
