"""MuxFlow-style: offline jobs beside online services, matched for speed; services come first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, JobNeed, Speed
from trimtab.domain.parameters import Count, Fraction, Natural, NonNegative, OneOrMore, Positive, Range
from trimtab.domain.service_loads import SLOWDOWN_LIMIT, guest_kept, host_slowdown
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records, configs
from trimtab.training.allocators.shared.in_order import given_in_order


@dataclass
class Health:
    """Of services: until when each takes no guest, and how often it was too slow. Keys are job_idx."""

    until_s: dict[int, float] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    guest: dict[int, int] = field(default_factory=dict)  # service → job


@dataclass(frozen=True)
class MuxFlow(Allocator):
    """Jobs of one GPU run on those of online services, by a matching of most speed within a latency limit.

    Idea
        Every service holds a GPU that its load leaves partly idle. A job beside it may use a share of the
        GPU's multiprocessors that depends on the load. Which job runs beside which service is a matching of
        the largest sum of predicted speeds; pairs that would slow the service above its limit are forbidden.
        A service that reports more than its limit loses its guest and takes none for a while, longer each
        time.
    Source
        Zhao et al., MuxFlow: Efficient and Safe GPU Sharing in Large-Scale Production Deep Learning Clusters,
        arXiv:2303.13803, 2023; only the abstract was at hand, with a survey's account. MuxFlow-style: every
        choice below is this program's.
    Reads
        service, load, slowdown, gpus_requested, submit_s, restart_s, speeds of pairs.
    Cost
        O(n³) for each matching of n, at most `group` services at a time.
    When it wins / loses
        Services use a fraction of their GPUs most of the day; the rest does offline work. Near the peak of
        the load guests slow down or leave. On Gavel's pairs neither dynamic share is a sure gain over a fixed
        half (`sharing` "turns"): docs/benchmarks/golden.md has the wins and the losses.
    Deviations from the source
        Chosen here, in the order of the abstract's terms. Protection: one state machine for each service,
        healthy or closed; closed for `cooldown_s` times two to the number of violations before, at most
        2^`cooldown_doublings`. Errors of processes are not modelled. Shares: 1 − busy · load − `margin`, in
        steps of `step`, within `least` and `most`, renewed at each decision, not within it; busy follows from
        a service beside one of its own kind. With `share` "limit" a guest may use as much as keeps the
        predicted latency of its service `margin` below the limit, whatever is idle. Predictor: what the host
        says of pairs at full load, scaled by load and share (`domain/service_loads.py`): measured pairs, or a
        small network that has seen some of them (`performance/pair_network.py`;
        `jobs.generate.pairs.profiled_frac` of a scenario). Matching: maximum weight by linear assignment, in
        groups of `group` services by position; a pair in force counts restart / `period_s` more; a predicted
        speed below `worth` is no pair. Jobs of several GPUs, and jobs that may not be preempted, run on GPUs
        without a service only, first come first served, ahead of the matching. `sharing` "none" runs no
        guests; "turns" gives guests half of the GPU whatever the load, as time slicing does.
    """

    name: ClassVar[str] = "muxflow"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.SHARING})
    shares: ClassVar[bool] = True
    hosts_services: ClassVar[bool] = True
    clock: ClassVar[str] = "rounds(period_s=300)"
    sharing: Literal["space", "turns", "none"] = "space"
    share: Literal["load", "limit"] = "load"
    limit: OneOrMore = SLOWDOWN_LIMIT
    margin: Fraction = 0.1
    step: Annotated[float, Range(0.0, 1.0, excludes_least=True)] = 0.1
    least: Fraction = 0.1
    most: Fraction = 0.9
    worth: NonNegative = 0.1
    period_s: Positive = 300.0
    elastic: bool = False  # jobs that scale may be guests with one GPU
    cooldown_s: NonNegative = 600.0
    cooldown_doublings: Natural = 5
    group: Count = 256

    def init(self, cluster: GpuCluster, n_jobs: int) -> Health:
        """All are healthy."""
        return Health()

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Health
    ) -> Allocation:
        """Services keep their GPUs; other GPUs go first come first served; then the matching."""
        hosts = np.flatnonzero(jobs["service"])
        counts = self._alone(jobs, cluster, hosts, memory)
        share, partner = np.ones(len(jobs)), np.full(len(jobs), -1, np.int64)
        self._watch(memory, jobs, hosts, now_s)
        closed = np.array([memory.until_s.get(j, 0.0) > now_s for j in jobs["job_idx"][hosts].tolist()], bool)
        open_hosts = hosts[~closed]
        may_leave = jobs["preemptible"] & ~jobs["pinned"]
        runs_on_one = jobs["gpus_requested"] == 1
        if self.elastic:
            runs_on_one |= jobs["scales"] & (jobs["gpus_min"] <= 1)
        waits = np.flatnonzero((counts.sum(axis=1) == 0) & runs_on_one & may_leave)
        memory.guest, before = {}, memory.guest
        if self.sharing != "none" and len(open_hosts) and len(waits):
            allowed = self._shares(jobs[open_hosts], counts[open_hosts], speed)
            for first in range(0, len(open_hosts), self.group):
                some = slice(first, first + self.group)
                part = open_hosts[some]
                weight, shares = self._weights(jobs, waits, part, counts, allowed[some], speed, before)
                for guest, k in _matched(weight):
                    row, host = int(waits[guest]), int(part[k])
                    partner[row], partner[host] = host, row
                    counts[row], share[row] = counts[host], shares[guest, k]
                    memory.guest[int(jobs["job_idx"][host])] = int(jobs["job_idx"][row])
                waits = waits[partner[waits] < 0]
        return Allocation(counts=counts, partner_row=partner, share_frac=share)

    def _alone(self, jobs: Records, cluster: GpuCluster, hosts: Ints, memory: Health) -> Ints:
        """GPUs of services and of jobs without a service, [jobs, types]."""
        guests = np.isin(jobs["job_idx"], list(memory.guest.values()))
        runs = (cluster.held.sum(axis=1) > 0) & ~guests
        rank = np.where(jobs["service"], 0, np.where(runs, 1, 2))
        return given_in_order(jobs, cluster, np.argsort(rank, kind="stable"), may_pass=True)

    def _watch(self, memory: Health, jobs: Records, hosts: Ints, now_s: float) -> None:
        """Close services that were too slow with a guest."""
        for job, slowdown in zip(jobs["job_idx"][hosts].tolist(), jobs["slowdown"][hosts], strict=True):
            if job in memory.guest and slowdown > self.limit:
                times = memory.times.get(job, 0)
                memory.until_s[job] = now_s + self.cooldown_s * 2.0 ** min(times, self.cooldown_doublings)
                memory.times[job] = times + 1

    def _shares(self, hosts: Records, counts: Ints, speed: Speed) -> Floats:
        """The most of the GPU that a guest of each service may use."""
        if self.sharing == "turns":
            return np.full(len(hosts), 0.5)
        ways = configs(1, type_idx=counts.argmax(axis=1))
        busy = _busy(hosts, ways, speed)
        free = 1.0 - busy * hosts["load"] - self.margin
        return np.clip(np.floor(free / self.step + 1e-9) * self.step, self.least, self.most)

    def _weights(
        self,
        jobs: Records,
        waits: Ints,
        hosts: Ints,
        counts: Ints,
        allowed: Floats,
        speed: Speed,
        before: dict[int, int],
    ) -> tuple[Floats, Floats]:
        """What each job would keep of its speed beside each service, and the share of the GPU for it.

        Both are [jobs, services]; keeping 0 is forbidden.
        """
        ways = configs(1, type_idx=counts[hosts].argmax(axis=1))[None, :]
        guests, services = jobs[waits][:, None], jobs[hosts][None, :]
        own, other = speed.shared(guests, services, ways)
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.nan_to_num(own / speed.goodput(guests, ways))
            host_kept = np.nan_to_num(other / speed.goodput(services, ways))
        share = np.broadcast_to(allowed[None, :], kept.shape)
        if self.share == "limit":
            with np.errstate(divide="ignore"):
                pressed = services["load"] * np.maximum(1.0 / host_kept - 1.0, 1e-9)
            within = (1.0 - self.margin) * (self.limit - 1.0) / np.maximum(pressed, 1e-9)
            share = np.clip(np.floor(within / self.step + 1e-9) * self.step, self.least, self.most)
        weight = guest_kept(services["load"], kept, share, _busy(guests, ways, speed))
        slow = host_slowdown(services["load"], host_kept, share)
        weight = np.where((kept > 0) & (slow <= self.limit) & (weight >= self.worth), weight, 0.0)
        index = jobs["job_idx"]
        now = np.array([before.get(int(j), -1) for j in index[hosts]])
        bonus = np.where(index[waits][:, None] == now[None, :], guests["restart_s"] / self.period_s, 0.0)
        return np.where(weight > 0, weight + bonus, 0.0), share


def _busy(jobs: Records, ways: Records, speed: Speed) -> Floats:
    """Share of a GPU that jobs keep busy, from their speed beside one of their own kind; at most 1."""
    own = speed.shared(jobs, jobs, ways)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = 0.5 * speed.goodput(jobs, ways) / own
    return np.asarray(np.minimum(np.nan_to_num(busy, nan=1.0, posinf=1.0), 1.0), np.float64)


def _matched(weight: Floats) -> list[tuple[int, int]]:
    """Pairs of the matching of most weight; pairs without weight are left out."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(weight, maximize=True)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if weight[i, j] > 0]
