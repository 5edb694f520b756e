"""Jobs whose speed is a table: work per second by model, global batch, type and number of GPUs.

The batch stays as it is when a job scales (strong scaling), and where its GPUs lie does not matter.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.allocator import JobNeed, Losses, Speed
from trimtab.domain.service_loads import PairSpeeds, guest_kept, host_slowdown, load_of
from trimtab.domain.training_jobs import Flags, Floats, Ints, Records, Workload
from trimtab.domain.training_profiles import ScalingTable
from trimtab.errors import UsageError
from trimtab.training.levels import equal_parts, no_services
from trimtab.training.loss_reports import LossReports
from trimtab.training.shared_gpus import pair_needs_s, pair_work, partner_rows, speeds_together
from trimtab.training.truths.generated_losses import GeneratedLosses
from trimtab.training.truths.progress import TOLERANCE_S, Running
from trimtab.training.truths.step_times import FINISH_ROUNDINGS


class TableSpeed:
    """The estimate: a table, which may differ from the true one."""

    def __init__(
        self,
        table: ScalingTable,
        curve: Ints,  # [jobs]
        pairs: PairSpeeds | None = None,
        known: Flags | None = None,  # [curves, curves] whether the speed of a pair is known; None = all are
        losses: LossReports | None = None,  # of the jobs; None = they report none
    ) -> None:
        n_curves = len(table.curve_names)
        self._table, self._curve, self._losses = table, curve, losses
        self._pairs = pairs or PairSpeeds.unknown(n_curves)
        self._known = np.ones((n_curves, n_curves), np.bool_) if known is None else known

    @property
    def levels(self) -> Ints:
        """Measured numbers of GPUs."""
        return self._table.levels

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Scaling and sharing, losses where jobs report them, and types where the table has several."""
        more = {JobNeed.TYPES} if len(self._table.rate_per_s) > 1 else set()
        more |= {JobNeed.LOSSES} if self._losses is not None else set()
        return frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.SHARING} | more)

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Work per second."""
        return self._table.rates(self._curve[jobs["job_idx"]], configs["type_idx"], configs["gpus"])

    def losses(self, jobs: Records) -> list[Losses]:
        """As reported. Raises UsageError if jobs report none."""
        if self._losses is None:
            raise UsageError("no losses", field="speed", expected="a speed that provides losses")
        return self._losses.of(jobs)

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """The job's batch in equal parts."""
        return equal_parts(jobs, configs)

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Speeds alone times what each keeps; nan where such a pair has to run first."""
        curve, partner = self._curve[jobs["job_idx"]], self._curve[partners["job_idx"]]
        types, gpus = configs["type_idx"], configs["gpus"]
        first, second = kept_of_pairs(self._table, self._pairs, curve, partner, types, gpus)
        known = self._known[curve, partner]
        rates = (self._table.rates(each, types, gpus) for each in (curve, partner))
        own, other = (rate * kept for rate, kept in zip(rates, (first, second), strict=True))
        return np.where(known, own, np.nan), np.where(known, other, np.nan)


def kept_of_pairs(
    table: ScalingTable, pairs: PairSpeeds, curve: Ints, partner: Ints, type_idx: Ints, gpus: Ints
) -> tuple[Floats, Floats]:
    """Share of its own speed that each curve, and its partner, keeps beside the other."""
    one = np.ones_like(gpus)
    used = []
    for each in (curve, partner):
        single = np.maximum(table.rates(each, type_idx, one), 1e-300) * np.maximum(gpus, 1)
        used.append(np.minimum(table.rates(each, type_idx, gpus) / single, 1.0))
    return (
        pairs.kept(curve, partner, type_idx, gpus, used[0], used[1]),
        pairs.kept(partner, curve, type_idx, gpus, used[1], used[0]),
    )


class TableTruth:
    """The truth of jobs of a table: a constant speed between decisions, hence a closed form.

    Two jobs on the same GPUs run at the speeds of their pair; when one ends, the other goes on as alone.
    Restarts of one do not change the speed of the other. Jobs report generated losses.

    Attributes:
        finish_rounding: "exact", or "up": a job finishes at the next full second.
        estimate: the table that allocators see; None = the true one.
        pairs: speeds of pairs; None = the default share of a GPU is busy.
        pair_estimate: what allocators see of them; None = the true ones.
        pairs_known: whether allocators know pairs from the start; else only those that have run.
    """

    def __init__(
        self,
        table: ScalingTable,
        *,
        finish_rounding: str = "exact",
        estimate: ScalingTable | None = None,
        pairs: PairSpeeds | None = None,
        pair_estimate: PairSpeeds | None = None,
        pairs_known: bool = True,
    ) -> None:
        self.table, self._estimate = table, estimate or table
        self.pairs = pairs or PairSpeeds.unknown(len(table.curve_names))
        self._pair_estimate, self._pairs_known = pair_estimate or self.pairs, pairs_known
        self._rounded = FINISH_ROUNDINGS[finish_rounding]

    def begin(self, workload: Workload) -> Speed:
        """Start all jobs anew."""
        curve = self.table.curves_of(workload.model_idx, workload.batch)
        for i in np.flatnonzero(curve < 0)[:1]:
            model = workload.model_names[workload.model_idx[i]]
            raise UsageError(
                "has no profile",
                file=workload.name,
                field=f"job {workload.job_ids[i]}",
                value=f"{model}, batch {workload.batch[i]:g}",
                expected=f"one of the measured: {', '.join(self.table.curve_names)}",
            )
        self._curve, self._total = curve, workload.work
        self._services = workload.services
        self._slowdown = np.ones(len(workload))
        self._declared, self._done = workload.declared_work, np.zeros(len(workload))
        self._saved = self._done.copy()
        self._reports = LossReports(self._done)
        self.losses = GeneratedLosses(self._total)
        n_curves = len(self.table.curve_names)
        self._ran = np.full((n_curves, n_curves), self._pairs_known)
        self._rated: tuple[Running, Floats] | None = None
        return TableSpeed(self._estimate, curve, self._pair_estimate, self._ran, self._reports)

    def oracle(self) -> Speed:
        """The true table."""
        return TableSpeed(self.table, self._curve, self.pairs, losses=self._reports)

    def advance(self, running: Running, seconds: Floats) -> Floats:
        """Add the work of each row's seconds."""
        left = self.true_work_left(running.job_idx)
        needed_s, pairs = self._needs_s(running, left)
        finished = self._rounded(needed_s) <= seconds + TOLERANCE_S
        if pairs is None:
            done = self._rate(running) * seconds
        else:
            done = pair_work(seconds, *pairs, needed_s)
            self._note_pairs(running)
        self._done[running.job_idx] += np.where(finished, left, np.minimum(done, left))
        if self._reports.is_read:
            self.losses.report(running.job_idx, self._reports)
        return np.where(finished, self._rounded(needed_s), np.inf)

    def save(self, job_idx: Ints) -> None:
        """Work done."""
        self._saved[job_idx] = self._done[job_idx]

    def go_back(self, job_idx: Ints) -> None:
        """Work done."""
        self._done[job_idx] = self._saved[job_idx]

    def time_to_finish_s(self, running: Running) -> Floats:
        """Work left over speed."""
        return self._rounded(self._needs_s(running, self.true_work_left(running.job_idx))[0])

    def work_left(self, job_idx: Ints) -> Floats:
        """Declared work less the work done, never below 0."""
        return np.maximum(self._declared[job_idx] - self._done[job_idx], 0.0)

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """Load and slowdown of services."""
        if self._services is None:
            return no_services(job_idx)
        return load_of(self._services, job_idx, self._done[job_idx]), self._slowdown[job_idx]

    def true_work_left(self, job_idx: Ints) -> Floats:
        """True work less the work done."""
        return np.maximum(self._total[job_idx] - self._done[job_idx], 0.0)

    def _needs_s(self, running: Running, left: Floats) -> tuple[Floats, tuple[Floats, Floats, Ints] | None]:
        """Seconds to the finish, and the speeds together and alone where jobs share GPUs."""
        rate = self._rate(running)
        if not (running.partner_job_idx >= 0).any():
            self._slowdown[running.job_idx] = 1.0
            return np.divide(left, rate, out=np.full(len(left), np.inf), where=rate > 0), None
        partner = partner_rows(running)
        curve = self._curve[running.job_idx]
        beside = np.where(partner >= 0, curve[partner], curve)
        types, gpus = running.type_idx, running.n_gpus
        kept = kept_of_pairs(self.table, self.pairs, curve, beside, types, gpus)[0]
        alone = self.table.rates(curve, types, gpus)
        together = np.where(partner >= 0, speeds_together(running, alone, kept), alone)
        if self._services is not None:
            together = self._beside_services(running, alone, kept, partner, together)
        return pair_needs_s(left, together, alone, partner), (together, alone, partner)

    def _beside_services(
        self, running: Running, alone: Floats, kept: Floats, partner: Ints, together: Floats
    ) -> Floats:
        """Speeds, where guests of services have theirs; notes what services suffer."""
        assert self._services is not None
        job = running.job_idx
        load = load_of(self._services, job, self._done[job])
        hosts = self._services.is_service[job]
        guests = (partner >= 0) & hosts[partner]
        busy = self.pairs.busy_frac[self._curve[job]]
        speed = alone * guest_kept(load[partner], kept, running.share_frac, busy)
        slowdown = host_slowdown(load, kept, running.share_frac[partner])
        self._slowdown[job] = np.where(hosts & (partner >= 0), slowdown, 1.0)
        return np.where(hosts, alone, np.where(guests, speed, together))

    def host_slowdown(self, running: Running) -> Floats:
        """Time of a request of each service over that alone, [rows]: while it computes its load is full."""
        partner = partner_rows(running)
        curve = self._curve[running.job_idx]
        beside = np.where(partner >= 0, curve[partner], curve)
        kept = kept_of_pairs(self.table, self.pairs, curve, beside, running.type_idx, running.n_gpus)[0]
        return np.where(partner >= 0, host_slowdown(1.0, kept, running.share_frac[partner]), 1.0)

    def done_gpu_s(self) -> Floats:
        """Seconds in which one GPU of the first type would have done the work of each job so far, [jobs]."""
        zero = np.zeros_like(self._curve)
        rate = self.table.rates(self._curve, zero, zero + 1)
        return np.where(rate > 0, self._done / np.where(rate > 0, rate, 1.0), 0.0)

    def _note_pairs(self, running: Running) -> None:
        """Learn the speeds that paired jobs reported."""
        paired = running.partner_job_idx >= 0
        own, other = self._curve[running.job_idx[paired]], self._curve[running.partner_job_idx[paired]]
        self._ran[own, other] = self._ran[other, own] = True

    def slowest_type(self, job_idx: Ints, n_gpus: Ints, held: Flags) -> Ints:
        """By the table, with all of its GPUs."""
        types = np.arange(held.shape[1])
        rate = self.table.rates(self._curve[job_idx][:, None], types, n_gpus[:, None])
        return np.where(held, rate, np.inf).argmin(axis=1)

    def _rate(self, running: Running) -> Floats:
        if self._rated is None or self._rated[0] is not running:  # asked several times between two decisions
            curve = self._curve[running.job_idx]
            rate = self.table.rates(curve, running.type_idx, running.n_gpus) * running.share_frac
            self._rated = running, rate
        return self._rated[1]
