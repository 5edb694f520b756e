"""Weighted goodput: the largest sum of goodput, weighted by the rank of remaining sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import NonNegative, OneOrMore, Positive
from trimtab.domain.training_jobs import AGENT_BATCH, Flags, Floats, GpuCluster, Ints, Records
from trimtab.solvers.multiple_choice import Choices, choose
from trimtab.training.allocators.shared.deadline_plans import Rules
from trimtab.training.allocators.shared.least_shares import LeastShares, TypeLevels, least_shares
from trimtab.training.allocators.shared.node_packing import whole_nodes_first
from trimtab.training.levels import configurations, holders, present_configuration

_TINY = 1e-9
_STRETCH_STEP = 1.1  # from one stretch that is tried to the next


@dataclass
class _Past:
    """The past of a run as it was seen so far."""

    peers: dict[int, tuple[int, dict[tuple[int, int], float]]] = field(default_factory=dict)
    step: int = 0  # of the least stretch that could be kept


@dataclass(frozen=True, eq=False)
class _Round:
    """One decision: what is known of each job and each way to run it."""

    jobs: Records
    cluster: GpuCluster
    now_s: float
    ways: Records
    present: Ints  # [jobs] the way that it has; -1 = none
    goodput: Floats  # [jobs, ways]; 0 = it can't have it
    price: Floats  # [ways] GPUs, in GPUs of the first type

    @property
    def work(self) -> Floats:
        return np.maximum(self.jobs["work_left"], _TINY)

    @cached_property
    def size(self) -> Floats:
        """Least GPU seconds left of each job, in those of the first type, [jobs]; 0 = not known."""
        with np.errstate(divide="ignore"):
            gpu_s = (self.work[:, None] * self.price / self.goodput).min(axis=1)
        return np.where(np.isfinite(gpu_s), gpu_s, 0.0)

    @cached_property
    def least_s(self) -> Floats:
        """Seconds left of each job at its fastest, [jobs]; 0 = not known."""
        with np.errstate(divide="ignore"):
            left_s = self.work / self.goodput.max(axis=1)
        return np.where(np.isfinite(left_s), left_s, 0.0)

    @cached_property
    def levels(self) -> list[TypeLevels]:
        """The ways of each type, [types]."""
        found = []
        for t, type_gpus in enumerate(self.cluster.type_gpus.tolist()):
            here = np.flatnonzero(self.ways["type_idx"] == t)
            found.append(
                TypeLevels(self.ways["gpus"][here].astype(np.int64), self.goodput[:, here], type_gpus)
            )
        return found

    @cached_property
    def preferred(self) -> Ints:
        """Types by what each job costs on them, in GPU seconds of the first type, [jobs, types]."""
        cost = self.price / np.maximum(self.goodput, _TINY)
        types = range(len(self.cluster.type_names))
        least = [np.where(self.ways["type_idx"] == t, cost, np.inf).min(axis=1) for t in types]
        return np.argsort(np.stack(least, axis=1), axis=1, kind="stable")


@dataclass(frozen=True)
class WeightedGoodput(Allocator):
    """Deadlines and fair finish times first; then the most goodput, small remaining jobs weighing more.

    Idea
        Each job gets a configuration (GPUs, type) or none. A job's size is the least GPU seconds that it has
        left, GPUs of each type counted by how fast jobs are on them. Jobs are ranked by size, the largest
        first; rank^p is a job's weight, where p says how speed grows with GPUs at an equal share: 1 where it
        is proportional. Weight times goodput, as GPUs saved, is the value of a configuration; the programme
        takes those with the largest sum that fit, by the price of each type of GPU from its dual. A change is
        charged: restart over the time that it is expected to last, which is `keep_s`, or the job's age over
        its changes so far if that is more, or what the job needs if that is less. Before all that come least
        shares: the fewest GPUs with which a job is in time. Jobs with deadlines have them, in order of
        deadlines; those that miss theirs run on what is left. Other jobs of fixed numbers of GPUs are due
        at a stretch of the time that they take alone: `fair_ratio` times the least stretch at which all are
        in time. Of them, those that need more than `long_frac` of the time in which the cluster could finish
        all jobs are due before that time is over. Jobs that scale and have no deadline have what their
        weight gives them: taking turns would cost them restarts. With `norm` p above 1 a weight is times
        completion^(p−1), a job's completion as if it ran at its fastest from now on: the sum of completion^p
        counts instead of the mean, so old and long jobs wait less.
    Source
        Own. It joins Berg, Vesilo and Harchol-Balter, heSRPT: Parallel scheduling to minimize mean slowdown,
        Performance Evaluation 144, 2020 (weights by rank; theirs are exact for one speed-up curve, known
        sizes and no arrivals); Jayaram Subramanya et al., Sia, SOSP 2023 (configurations, one integer
        programme); Gu et al., ElasticFlow, ASPLOS 2023 (least shares); Bender, Chakrabarti and Muthukrishnan,
        Flow and stretch metrics for scheduling continuous job streams, SODA 1998 (due times at the least
        stretch that can be kept); Bansal and Pruhs, Server scheduling in the Lp norm, STOC 2003 (`norm`).
    Reads
        goodput by type and number of GPUs, work_left, deadline_s, submit_s, progress_s, restart_s,
        restart_left_s, profiled_gpus_max, gpus_requested, gpus_min, gpus_max, model_idx, tenant_idx; quotas.
    Cost
        O(jobs · configurations) for each of some hundred steps of the programme; O(jobs²) for least shares.
    When it wins / loses
        It needs an estimate of the work left: an error of it costs mean completion time. It rejects no job
        and promises nothing: a job on time by the plan gives way to a later and smaller one. Large jobs that
        scale wait long where more small ones come than there are GPUs: the 99th percentile and the makespan
        are then worse than Sia's. `norm` buys them back for some of the mean.
    Deviations from the source
        The rank's exponent is that of all jobs together. The least stretch is looked for in steps of a
        tenth, a few at each decision. With speeds that are learned, a job of which nothing was measured is
        taken to be as fast as others of its model, and to be the smallest where there are none; beyond what
        was measured of it, it gains no more than they do, and it gets at most twice what its model ran with.
        Jobs of a tenant over its quota get at most what is best within the quota.
    """

    name: ClassVar[str] = "weighted-goodput"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    places: ClassVar[bool] = True
    keeps_fixed: ClassVar[bool] = True
    keeps_quotas: ClassVar[bool] = True
    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"
    keep_s: NonNegative = 300.0
    fair_ratio: Positive = 1.25
    long_frac: NonNegative = 0.8
    gap_frac: NonNegative = 1e-3
    norm: OneOrMore = 1.0

    def init(self, cluster: GpuCluster, n_jobs: int) -> Any:
        """Nothing was seen yet."""
        return _Past()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Plan least shares, solve the programme, place."""
        if cluster.n_gpus == 0:
            return Allocation(gpus=np.zeros_like(cluster.gpus))
        held, must_stay = holders(jobs, cluster)
        learned = JobNeed.GOODPUT in speed.provides
        ways = configurations(jobs, cluster, must_stay)
        ways["local_batch"] = AGENT_BATCH if learned else 0.0
        goodput = _usable(jobs, ways, speed)
        if learned:
            goodput = _as_peers(jobs, ways, goodput, memory)
        price = _type_values(ways, goodput)[ways["type_idx"]] * ways["gpus"]
        present = np.where(held, present_configuration(cluster, ways), -1)
        state = _Round(jobs, cluster, now_s, ways, present, goodput, price)
        least, late = self._least_shares(state, memory)
        counts = self._counts(state, least, late, must_stay)
        gpus = np.zeros_like(cluster.gpus)
        placed = whole_nodes_first(counts, cluster, must_stay)
        gpus[placed.rows] = placed.gpus
        batch = np.full(len(jobs), AGENT_BATCH) if learned else None
        return Allocation(gpus=gpus, local_batch=batch)

    def _least_shares(self, state: _Round, memory: _Past) -> tuple[LeastShares, Flags]:
        """The present need of each job, and whether it misses its deadline anyway.

        Jobs with deadlines come first. Others of fixed numbers of GPUs are due at a stretch of their time
        alone: `fair_ratio` times the least one at which all are in time, looked for from the last one on.
        """
        jobs = state.jobs
        timed: Flags = np.isfinite(jobs["deadline_s"])
        fixed = ~jobs["scales"] & ~timed
        alone_s, long_due_s = self._alone_s(state), self._long_due_s(state)
        soonest_s = state.now_s + 1.05 * state.least_s + 2 * jobs["restart_s"]

        def planned(stretch: float) -> LeastShares:
            due_s = np.minimum(jobs["submit_s"] + stretch * alone_s, long_due_s)
            due_s = np.where(timed, jobs["deadline_s"], np.maximum(due_s, soonest_s))
            order = np.lexsort((-state.size, due_s, ~timed))
            return self._plans(state, due_s, order[(timed | fixed)[order]])

        if fixed.any():
            step = max(memory.step - 1, 0)
            for wider in (1, 1, 2, 4):
                if not ((planned(_STRETCH_STEP**step).type_idx < 0) & fixed).any():
                    break
                step += wider
            memory.step = step
        plans = planned(self.fair_ratio * _STRETCH_STEP**memory.step)
        return plans, timed & (plans.type_idx < 0)

    def _alone_s(self, state: _Round) -> Floats:
        """How long each job of a fixed number of GPUs takes alone, [jobs].

        By what it ran, and not by its total work: the unit of that may have changed since it began.
        """
        usable = state.goodput > 0
        share = state.cluster.type_gpus[state.ways["type_idx"]] * usable  # of every type, as there are
        rate = (state.goodput * share).sum(axis=1) / np.maximum(share.sum(axis=1), 1)
        alone_s: Floats = state.jobs["progress_s"] + state.work / np.maximum(rate, _TINY)
        return alone_s

    def _long_due_s(self, state: _Round) -> Floats:
        """When long jobs of fixed numbers of GPUs are due, so that none is left for the end; inf = others.

        Long is what needs more than `long_frac` of the time in which the cluster could finish all jobs.
        """
        types, gpus = state.ways["type_idx"], state.ways["gpus"]
        per_gpu = np.bincount(types, state.price) / np.bincount(types, gpus)
        total_price = float((per_gpu * state.cluster.type_gpus[: len(per_gpu)]).sum())
        drain_s = float(state.size.sum()) / max(total_price, _TINY)
        drain_s = max(drain_s, float(state.least_s.max(initial=0.0)))
        is_long = ~state.jobs["scales"] & (state.least_s >= self.long_frac * drain_s)
        return np.where(is_long, state.now_s + 0.5 * (1.0 + self.long_frac) * drain_s, np.inf)

    def _plans(self, state: _Round, due_s: Floats, order: Ints) -> LeastShares:
        """The fewest GPUs with which jobs keep these times, those of `order` first."""
        jobs = state.jobs
        restart_s = np.where(state.present < 0, jobs["restart_s"], jobs["restart_left_s"])
        timed: Flags = np.isfinite(jobs["deadline_s"])
        rules = Rules(state.now_s, 1.0, 0, 1.0)
        return least_shares(state.levels, state.work, due_s - restart_s, timed, order, state.preferred, rules)

    def _counts(self, state: _Round, least: LeastShares, late: Flags, must_stay: Flags) -> Ints:
        """GPUs of each type, [jobs, types]."""
        jobs, ways = state.jobs, state.ways
        value, skipped = self._values(state, late)
        most = float((value / ways["gpus"]).max(initial=0.0))
        needs = least.now_gpus > 0
        enough = np.zeros(len(jobs))
        for t in range(len(state.cluster.type_names)):
            rows = np.flatnonzero(needs & (least.type_idx == t))
            same = (ways["type_idx"] == t) & (ways["gpus"] == least.now_gpus[rows, None])
            enough[rows] = (state.goodput[rows] * same).max(axis=1, initial=0.0)
        urgent = np.where(needs, 2.0 * most * least.now_gpus, 0.0)
        cost = -value + np.where(state.goodput < enough[:, None] * (1 - 1e-9), urgent[:, None], 0.0)
        skip = skipped + urgent
        stays = must_stay | ((state.present >= 0) & (jobs["restart_left_s"] > 0))
        kept = np.arange(len(ways)) == state.present[:, None]
        free = ~stays | (state.present < 0)
        cost = np.where((free[:, None] & (state.goodput > 0)) | kept, cost, np.inf)
        skip = np.where(free, skip, np.inf)
        return self._within_quotas(state, cost, skip)

    def _values(self, state: _Round, late: Flags) -> tuple[Floats, Floats]:
        """Value of each configuration [jobs, ways], and what it costs a job to stop [jobs]."""
        jobs = state.jobs
        size = state.size
        order = np.lexsort((-jobs["submit_s"], -size, ~late))  # the last is the smallest
        rank = np.empty(len(jobs))
        rank[order] = np.arange(1, len(jobs) + 1)
        saved = state.goodput / state.work[:, None] * size[:, None]  # GPUs
        value = rank[:, None] ** self._exponent(state, saved) * saved
        if self.norm > 1.0:
            value *= self._tail_weight(state)[:, None]
        kept_s = np.maximum(jobs["age_s"] / (jobs["restarts"] + 1.0), self.keep_s)
        with np.errstate(divide="ignore"):
            needed_s = np.minimum(state.work[:, None] / state.goodput, kept_s[:, None])
        lost = np.minimum(jobs["restart_s"][:, None] / np.maximum(needed_s, _TINY), 1.0)
        kept = np.arange(len(state.ways)) == state.present[:, None]
        runs = state.present >= 0
        value = np.where(runs[:, None] & ~kept, value * (1.0 - lost), value)
        stops = np.where(runs, (value * lost * kept).sum(axis=1), 0.0)
        scale = max(float(value.max(initial=0.0)), _TINY)
        return value / scale, stops / scale

    def _tail_weight(self, state: _Round) -> Floats:
        """The derivative of completion^norm, were each job to run at its fastest from now on, [jobs]."""
        completion_s = np.maximum(state.jobs["age_s"] + state.least_s, _TINY)
        return elementwise(lambda seconds: seconds ** (self.norm - 1.0), completion_s)

    def _exponent(self, state: _Round, saved: Floats) -> float:
        """How speed grows with GPUs at an equal share: log of the growth over that of the GPUs."""
        scales = state.jobs["scales"]
        share = float(state.cluster.n_gpus) / len(state.jobs)
        if share <= 1.0 or not scales.any():
            return 1.0
        t = int(np.argmax(state.cluster.type_gpus))
        here = np.flatnonzero(state.ways["type_idx"] == t)
        counts = state.ways["gpus"][here].astype(np.float64)
        best = np.maximum.accumulate(saved[np.ix_(scales, here)], axis=1)
        grown = [
            math.log(
                max(np.interp(2 * share, counts, row), _TINY) / max(np.interp(share, counts, row), _TINY)
            )
            for row in best
        ]
        return float(np.clip(np.mean(grown) / math.log(2.0), 0.0, 1.0))

    def _within_quotas(self, state: _Round, cost: Floats, skip: Floats) -> Ints:
        """Solve; jobs of a tenant over its quota get no more than the best of its jobs within the quota."""
        ways, quota, tenant = state.ways, state.cluster.quota_gpus, state.jobs["tenant_idx"]
        gpus, type_idx = ways["gpus"].astype(np.int64), ways["type_idx"].astype(np.int64)
        while True:
            option = self._chosen(Choices(cost, skip, gpus, type_idx, state.cluster.type_gpus))
            given = np.where(option >= 0, gpus[option], 0)
            held = np.bincount(tenant, given, len(quota)) if len(quota) else quota
            over = np.flatnonzero(held > quota)
            for t in over:
                rows = np.flatnonzero(tenant == t)
                capacity = np.array([int(quota[t])])
                within = self._chosen(Choices(cost[rows], skip[rows], gpus, 0 * gpus, capacity))
                most = np.where(within >= 0, gpus[within], 0)
                cost[rows] = np.where(gpus > most[:, None], np.inf, cost[rows])
            if not len(over):
                break
        counts = np.zeros((len(cost), len(state.cluster.type_names)), np.int64)
        runs = np.flatnonzero(option >= 0)
        counts[runs, type_idx[option[runs]]] = gpus[option[runs]]
        return counts

    def _chosen(self, problem: Choices) -> Ints:
        chosen = choose(problem, self.gap_frac)
        assert chosen is not None  # jobs that stay fit, and the others may wait
        return chosen.option


def _usable(jobs: Records, ways: Records, speed: Speed) -> Floats:
    """Goodput [jobs, ways], 0 where a job may not run so."""
    least = np.where(jobs["scales"], np.maximum(jobs["gpus_min"], 1), jobs["gpus_requested"])
    most = np.where(jobs["scales"], jobs["gpus_max"], jobs["gpus_requested"])
    may = (ways["gpus"] >= least[:, None]) & (ways["gpus"] <= most[:, None])
    if len(speed.levels):
        may &= np.isin(ways["gpus"], speed.levels) | ~jobs["scales"][:, None]
    value: Floats = np.where(may, speed.goodput(jobs[:, None], ways[None, :]), 0.0)
    return value


def _as_peers(jobs: Records, ways: Records, goodput: Floats, memory: _Past) -> Floats:
    """Learned speeds, bounded by what others of the same model have shown."""
    keys = list(zip(ways["type_idx"].tolist(), ways["gpus"].tolist(), strict=True))
    profiled, models = jobs["profiled_gpus_max"], jobs["model_idx"].tolist()
    for row in np.flatnonzero(profiled > 0).tolist():
        known = memory.peers.get(models[row])
        if known is None or profiled[row] >= known[0]:
            memory.peers[models[row]] = int(profiled[row]), dict(zip(keys, goodput[row], strict=True))
    found = goodput.copy()
    for row, model in enumerate(models):
        most, peer = memory.peers.get(model, (0, {}))
        shape = np.array([peer.get(key, 0.0) for key in keys])
        usable, own = goodput[row] > 0, int(profiled[row])
        is_unknown = bool((goodput[row, usable] == ways["gpus"][usable]).all())  # it has reported nothing
        shown = max(own, 1)  # GPUs
        if is_unknown and most > 0:
            found[row] = np.where(usable, shape, 0.0)
        elif is_unknown:
            found[row] = goodput[row] * max(float(jobs["work_left"][row]), _TINY)  # a second of one GPU
        elif own < most:
            at = np.flatnonzero((ways["gpus"] <= shown) & (shape > 0) & usable)
            if len(at):
                ratio = goodput[row, at[-1]] / shape[at[-1]]
                bounded = np.minimum(found[row], shape * ratio)
                found[row] = np.where(ways["gpus"] > shown, bounded, found[row])
        least = int(jobs["gpus_min" if jobs["scales"][row] else "gpus_requested"][row])
        found[row, ways["gpus"] > max(2 * max(own, most), least, 1)] = 0.0
    return found


def _type_values(ways: Records, goodput: Floats) -> Floats:
    """How fast jobs are on a GPU of each type, on average; that of the first type is 1."""
    types = int(ways["type_idx"].max(initial=0)) + 1
    best = np.zeros((len(goodput), types))
    for t in range(types):
        here = ways["type_idx"] == t
        if here.any():
            best[:, t] = (goodput[:, here] / ways["gpus"][here]).max(axis=1)
    value = np.ones(types)
    for t in range(1, types):
        both = (best[:, 0] > 0) & (best[:, t] > 0)
        if both.any():
            value[t] = math.exp(float(elementwise(math.log, best[both, t] / best[both, 0]).mean()))
    return value
