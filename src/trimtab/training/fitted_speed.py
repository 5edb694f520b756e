"""The estimate of jobs that adapt their batch: a throughput model fitted to what they report, and noise.

Each job has a model for each type of GPU. It learns from the job's own steps only, one measurement for each
(nodes, GPUs, local batch), and is fitted anew when it is asked after a new one. A job that never ran is taken
to scale perfectly, one work per second on a GPU. A type on which a job never ran is as fast as one on which
it did. On a type that it knows with one GPU only, it scales as on the type that it knows with most GPUs: that
type's synchronisation, times the ratio of the seconds of a pass at the initial batch.

Source of the last rule: Jayaram Subramanya et al., Sia, SOSP 2023, §3.2, which takes the ratio of throughputs
of one GPU: the same where the ratio does not depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trimtab.domain.allocator import JobNeed, Losses
from trimtab.domain.training_jobs import Floats, Ints, Records
from trimtab.errors import UsageError
from trimtab.training.batch_choice import goodputs
from trimtab.training.levels import never_measured
from trimtab.training.loss_reports import LossReports
from trimtab.training.throughput_model import PARAMETERS, fit_throughput, step_seconds

Key = tuple[int, int, int]  # nodes, GPUs, local batch


@dataclass
class FittedSpeed:
    """Estimates of all jobs of a run.

    Attributes:
        limits: [jobs, types] LIMITS records.
        reports: losses; None = jobs report none.
    """

    limits: Records
    reports: LossReports | None = None
    _reports: dict[tuple[int, int], dict[Key, tuple[float, float]]] = field(default_factory=dict)
    _stale: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """No job has reported anything."""
        jobs, types = self.limits.shape
        self._parameters = np.full((jobs, types, PARAMETERS), np.nan)
        self._noise = np.zeros(jobs)
        self._types = types

    @property
    def levels(self) -> Ints:
        """Any number of GPUs."""
        return np.zeros(0, np.int64)

    @property
    def provides(self) -> frozenset[JobNeed]:
        """Scaling with goodput, losses where jobs report them, and types where there are several."""
        more = {JobNeed.TYPES} if self._types > 1 else set()
        more |= {JobNeed.LOSSES} if self.reports is not None else set()
        return frozenset({JobNeed.SCALING, JobNeed.GOODPUT, JobNeed.WORK_LEFT} | more)

    def losses(self, jobs: Records) -> list[Losses]:
        """As reported. Raises UsageError if jobs report none."""
        if self.reports is None:
            raise UsageError("no losses", field="speed", expected="a speed that provides losses")
        return self.reports.of(jobs)

    def report(self, job: int, type_idx: int, key: Key, times: tuple[float, float], noise: float) -> bool:
        """A job ran: seconds of a step and of its synchronisation, gradient variance over squared norm.

        Returns whether this changes its estimate.
        """
        known = self._reports.setdefault((job, type_idx), {})
        is_new = key not in known
        if is_new:
            known[key] = times
            self._stale.add((job, type_idx))
        is_other = self._noise[job] != noise
        self._noise[job] = noise
        return is_new or bool(is_other)

    def revise(self, job: int, type_idx: int, key: Key, times: tuple[float, float], noise: float) -> None:
        """A job ran on: what it reports takes the place of what it reported before."""
        self._reports.setdefault((job, type_idx), {})[key] = times
        self._stale.add((job, type_idx))
        self._noise[job] = noise

    def step_s(self, job: int, nodes: int, gpus: int, local_batch: int) -> float:
        """Seconds of a step of one pass, of a job that has run."""
        self._refit(job)
        return step_seconds(self._parameters[job, 0], nodes, gpus, local_batch)

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Progress per second by the model; of jobs that never ran the number of GPUs."""
        value, _, _ = self._asked(jobs, configs)
        return value

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """Local batch and accumulation by the model."""
        _, atomic, accumulation = self._asked(jobs, configs)
        return atomic, accumulation

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Never measured."""
        return never_measured(jobs, partners, configs)

    def has_run(self, job: int) -> bool:
        """Whether it has reported anything."""
        return any((job, t) in self._reports for t in range(self._types))

    def choose(self, job: int, type_idx: int, nodes: int, gpus: int) -> tuple[int, int]:
        """Local batch and accumulation that the agent of one job chooses."""
        self._refit(job)
        one, count = np.zeros(1, np.int64), np.array([gpus])
        value, atomic, passes = np.zeros(1), np.zeros(1), np.zeros(1, np.int64)
        goodputs(
            self._parameters[job, type_idx][None], self._noise[job : job + 1],
            self.limits[job, type_idx : type_idx + 1], one, np.array([nodes]), count, -np.ones(1), one,
            value, atomic, passes,
        )  # fmt: skip
        return int(atomic[0]), int(passes[0])

    def _asked(self, jobs: Records, configs: Records) -> tuple[Floats, Floats, Ints]:
        job, type_idx, nodes, gpus, local, passes = np.broadcast_arrays(
            jobs["job_idx"],
            configs["type_idx"],
            configs["nodes"],
            configs["gpus"],
            configs["local_batch"],
            configs["accumulation"],
        )
        shape = job.shape
        for j in np.unique(jobs["job_idx"]):
            self._refit(int(j))
        row = (job * self._types + type_idx).ravel()
        value, atomic, chosen = np.zeros(row.size), np.zeros(row.size), np.zeros(row.size, np.int64)
        rows = self._parameters.reshape(-1, PARAMETERS)
        goodputs(
            rows, np.repeat(self._noise, self._types), self.limits.reshape(-1), row,
            nodes.ravel().astype(np.int64), gpus.ravel().astype(np.int64), local.ravel().astype(np.float64),
            passes.ravel().astype(np.int64), value, atomic, chosen,
        )  # fmt: skip
        unknown = np.isnan(rows[row, 0])
        value[unknown] = gpus.ravel()[unknown]
        return value.reshape(shape), atomic.reshape(shape), chosen.reshape(shape)

    def _refit(self, job: int) -> None:
        news = [t for t in range(self._types) if (job, t) in self._stale]
        for t in news:
            self._stale.discard((job, t))
            known = self._reports[job, t]
            keys = np.array(list(known), np.float64)
            step, sync = np.array(list(known.values())).T
            self._parameters[job, t] = fit_throughput(keys[:, 0], keys[:, 1], keys[:, 2], step - sync, step)
        if news:
            own = [t for t in range(self._types) if (job, t) in self._reports]
            for t in range(self._types):
                if t not in own:
                    self._parameters[job, t] = self._parameters[job, own[0]]
            self._borrow_scaling(job, own)

    def _borrow_scaling(self, job: int, own: list[int]) -> None:
        """Types known with one GPU only scale as the type known with most."""
        most = {t: max(gpus for _, gpus, _ in self._reports[job, t]) for t in own}
        known = max(own, key=most.__getitem__)
        if most[known] == 1:
            return
        for t in own:
            if most[t] == 1:
                rows, batch = self._parameters[job], self._shared_batch(job, t, known)
                here, there = rows[t, 0] + rows[t, 1] * batch, rows[known, 0] + rows[known, 1] * batch
                rows[t, 2:6] = rows[known, 2:6] * (here / there)
                rows[t, 6] = rows[known, 6]

    def _shared_batch(self, job: int, first: int, second: int) -> float:
        """The local batch nearest to the initial one that fits both types."""
        bounds = self.limits[job, [first, second]]
        return float(np.clip(bounds["init_batch"][0], bounds["min_local"].max(), bounds["max_local"].min()))
