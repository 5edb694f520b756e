"""Jobs that replay measurements: step times by placement and batch, progress by gradient noise, by epoch.

Between two decisions a job's goodput changes at the ends of epochs only, so it runs from one to the next in
closed form. Where a job's agent chooses the batch, it does so at the start of an allocation and after each
stretch, from its own fitted model.

Source: the simulator of Qiao et al., Pollux, OSDI 2021, §5.3.
Deviations: options `ring`, `rounding` and `oracle` give what the published programs do:
    ring        order of a job's nodes, in which its step times were measured: "nodes", as in the cluster;
                "largest-first", as placed by Tiresias and Optimus in the source.
    rounding    of the seconds to the end of an epoch: the source takes the nearest full second.
    oracle      "exact"; "artifact": work left counts whole epochs after the present one, and a single GPU
                takes two passes at least, as the source's Optimus assumes.
    profiled    what the estimate knows of a job at its submission: "nothing"; "one-gpu", the steps of one GPU
                of each type at up to ten local batches, and the noise at the initial batch, as in Sia (SOSP
                2023, §3.2). The time for it is not charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trimtab.domain.allocator import Speed
from trimtab.domain.training_jobs import Flags, Floats, Ints, Records, Workload
from trimtab.domain.training_profiles import ApplicationProfile
from trimtab.errors import UsageError
from trimtab.training.batch_choice import LIMITS, GradientNoise, divided_batch
from trimtab.training.fitted_speed import FittedSpeed
from trimtab.training.levels import no_services
from trimtab.training.loss_reports import LossReports
from trimtab.training.truths.progress import TOLERANCE_S, Running
from trimtab.training.truths.replay_oracle import ReplayOracle
from trimtab.training.truths.step_times import FINISH_ROUNDINGS, StepTimes

_PROFILED = 10  # local batches


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How published programs differ; see the module. Distributed jobs on a node lose `interference_frac`."""

    ring: str = "nodes"
    rounding: str = "nearest"
    oracle: str = "exact"
    profiled: str = "nothing"
    interference_frac: float = 0.0


class ReplayTruth:
    """The truth about jobs whose applications have profiles."""

    def __init__(self, profiles: Sequence[ApplicationProfile], options: ReplayOptions | None = None) -> None:
        self.profiles, self.options = tuple(profiles), options or ReplayOptions()
        self._rounded = FINISH_ROUNDINGS[self.options.rounding]
        self._steps = [[StepTimes(measured) for measured in profile.steps] for profile in profiles]
        self._noise = [GradientNoise(profile) for profile in profiles]
        most = max(profile.epochs for profile in profiles)
        self._ends = np.full((len(profiles), most + 1), np.inf)  # [applications, epochs] progress at the end
        for ends, profile in zip(self._ends, profiles, strict=True):
            ends[: profile.epochs] = profile.progress

    def begin(self, workload: Workload) -> Speed:
        """Start all jobs anew."""
        n, types = len(workload), len(self.profiles[0].steps)
        self._app = _applications(workload, self.profiles)
        self._batch = workload.batch.copy()
        self._limits = limits_of([self.profiles[a] for a in self._app], self._batch, types)
        self._epochs = np.array([profile.epochs for profile in self.profiles], np.int64)[self._app]
        self._total = np.array([profile.progress[-1] for profile in self.profiles])[self._app]
        self._progress, self._epoch = np.zeros(n), np.zeros(n, np.int64)
        self._saved = self._progress.copy(), self._epoch.copy()
        self._local, self._passes = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._placement: list[tuple[int, ...]] = [()] * n
        self._type = np.zeros(n, np.int64)
        self._gpus: Ints | None = None  # [jobs, nodes] held when the placement was noted
        self._agent: Flags = np.zeros(n, np.bool_)
        self._asked = np.full(n, np.nan)  # the local batch that the allocator gave
        self._rate = np.zeros(n)
        self._stale: Flags = np.ones(n, np.bool_)  # whether the rate must be looked up
        self._news: Flags = np.zeros(n, np.bool_)  # whether the estimate changed since the agent chose
        self._speed = FittedSpeed(self._limits, LossReports(self._progress))
        if self.options.profiled == "one-gpu":
            self._profile_one_gpu()
        return self._speed

    def _profile_one_gpu(self) -> None:
        """Report a few steps of each job on one GPU of each type."""
        for job, app in enumerate(self._app.tolist()):
            curve = self._noise[app].at(self.profiles[app].init_batch)
            noise = float(curve.grad_var[0] / curve.grad_sqr[0])
            for type_idx, (steps, bound) in enumerate(zip(self._steps[app], self._limits[job], strict=True)):
                local = np.unique(np.geomspace(bound["min_local"], bound["max_local"], _PROFILED).astype(int))
                for b in local.tolist():
                    self._speed.report(job, type_idx, (1, 1, b), steps.at((1,), b), noise)

    def resume(self, work_left: Floats | None, seen_gpus: Ints) -> None:
        """After `begin`: jobs under way, which have reported what was measured with so many GPUs as they had.

        Each job has reported the steps of one GPU too. `work_left` None = nothing is done.
        """
        self._profile_one_gpu()
        if work_left is not None:
            self._progress[:] = self._total - np.clip(work_left, 0.0, self._total)
            ends = self._ends[self._app]
            self._epoch = np.minimum((ends <= self._progress[:, None]).sum(axis=1), self._epochs - 1)
        for job, app in enumerate(self._app.tolist()):
            profile, epoch = self.profiles[app], int(self._epoch[job])
            curve = self._noise[app].at(float(self._batch[job] or profile.init_batch))
            noise = float(curve.grad_var[epoch] / curve.grad_sqr[epoch])
            for type_idx, measured in enumerate(profile.steps):
                for placement, (batches, times) in measured.placements.items():
                    if sum(placement) <= seen_gpus[job]:
                        for b, (step_s, sync_s) in zip(batches, times, strict=True):
                            key = (len(placement), sum(placement), int(b))
                            self._speed.report(job, type_idx, key, (float(step_s), float(sync_s)), noise)

    def oracle(self) -> Speed:
        """True iterations per second at the batch that each job asked for, its GPUs packed."""
        is_artifact = self.options.oracle == "artifact"
        steps = [[self._steps[a][t] for t in range(self._limits.shape[1])] for a in range(len(self.profiles))]
        return ReplayOracle(self.profiles, steps, self._app, self._limits, is_artifact)

    def advance(self, running: Running, seconds: Floats) -> Floats:
        """From one end of an epoch to the next, all rows at once."""
        rows, after = running.job_idx, np.full(len(running), np.inf)
        self._note_placements(running)
        slowed = running.share_frac * (1.0 - self._interference(running))
        left = np.array(seconds, np.float64)
        at = np.flatnonzero(left > 0)
        while len(at):
            jobs = rows[at]
            self._look_up(jobs[self._stale[jobs]])
            rate, end = self._rate[jobs] * slowed[at], self._ends[self._app[jobs], self._epoch[jobs]]
            reached = self._progress[jobs] + rate * left[at]
            stays = reached < end - rate * TOLERANCE_S
            ends, over = at[~stays], jobs[~stays]
            took_s = self._rounded((end - self._progress[jobs])[~stays] / rate[~stays])
            self._progress[jobs] = np.where(stays, reached, end)
            self._epoch[over] += 1
            self._stale[over] = True
            left[ends] -= np.minimum(took_s, left[ends])
            self._report_losses(over)
            is_done = self._epoch[over] >= self._epochs[over]
            after[ends[is_done]] = (seconds - left)[ends[is_done]]
            self._choose_anew(jobs[self._agent[jobs] & self._news[jobs]])
            ends = ends[~is_done]
            at = ends[left[ends] > 0]
        return after

    def _report_losses(self, jobs: Ints) -> None:
        """Jobs at the end of an epoch tell the validation error measured there at their batch."""
        reports = self._speed.reports
        if reports is not None and reports.is_read:
            for job in jobs.tolist():
                curve = self._noise[self._app[job]].at(self._global_batch(job))
                reports.report(job, float(self._progress[job]), float(curve.loss[self._epoch[job] - 1]))

    def save(self, job_idx: Ints) -> None:
        """Progress and epoch; what a job has learned of itself is never lost."""
        for saved, now in zip(self._saved, (self._progress, self._epoch), strict=True):
            saved[job_idx] = now[job_idx]

    def go_back(self, job_idx: Ints) -> None:
        """Progress and epoch."""
        for saved, now in zip(self._saved, (self._progress, self._epoch), strict=True):
            now[job_idx] = saved[job_idx]
        self._stale[job_idx] = True

    def time_to_finish_s(self, running: Running) -> Floats:
        """Over the epochs left at the present batch; to the end of this epoch where an agent adapts it."""
        self._note_placements(running)
        slowed = running.share_frac * (1.0 - self._interference(running))
        self._look_up(running.job_idx[self._stale[running.job_idx]])
        return np.array(
            [self._needed_s(int(j), f) for j, f in zip(running.job_idx, slowed, strict=True)], np.float64
        )

    def work_left(self, job_idx: Ints) -> Floats:
        """Progress left, in iterations at the initial batch."""
        return self._total[job_idx] - self._progress[job_idx]

    def slowest_type(self, job_idx: Ints, n_gpus: Ints, held: Flags) -> Ints:
        """By the step on one GPU, at the local batch nearest to the initial one that fits all types."""
        return np.where(held, self._one_gpu_s[self._app[job_idx]], -np.inf).argmax(axis=1)

    @cached_property
    def _one_gpu_s(self) -> Floats:
        """Seconds of a step on one GPU, [applications, types]."""
        local = [int(np.clip(p.init_batch, p.min_local.max(), p.max_local.min())) for p in self.profiles]
        return np.array(
            [[s.at((1,), b)[0] for s in steps] for steps, b in zip(self._steps, local, strict=True)]
        )

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """None: there are no services."""
        return no_services(job_idx)

    def true_work_left(self, job_idx: Ints) -> Floats:
        """Iterations left at the batch that each job asked for."""
        return np.array([self._iterations_left(int(j)) for j in job_idx], np.float64)

    def _iterations_left(self, job: int) -> float:
        app, epoch = self._app[job], int(self._epoch[job])
        batch = float(self._batch[job] or self.profiles[app].init_batch)
        done = self._noise[app].at(batch).iterations
        if epoch >= len(done):
            return 0.0
        if self.options.oracle == "artifact":
            return float(done[-1] - done[epoch]) if epoch < len(done) - 1 else 1.0
        begun, start = (done[epoch - 1], self._ends[app, epoch - 1]) if epoch else (0.0, 0.0)
        part = (self._progress[job] - start) / (self._ends[app, epoch] - start)
        return float(done[-1] - begun - part * (done[epoch] - begun))

    def _needed_s(self, job: int, slowed: float) -> float:
        if self._rate[job] * slowed <= 0:
            return np.inf
        epoch = int(self._epoch[job])
        first_s = (self._ends[self._app[job], epoch] - self._progress[job]) / (self._rate[job] * slowed)
        if self._agent[job]:
            return float(self._rounded(np.array(first_s))) or first_s  # time goes on
        curve = self._noise[self._app[job]].at(self._global_batch(job))
        ends = self._ends[self._app[job], epoch : self._epochs[job]]
        rates = self._rate[job] * slowed * curve.gain[epoch + 1 : self._epochs[job]] / curve.gain[epoch]
        each_s = np.append(first_s, np.diff(ends) / rates)
        return float(self._rounded(each_s).sum()) or float(each_s.sum())

    def _note_placements(self, running: Running) -> None:
        """Rows whose GPUs or batch changed choose anew."""
        rows = running.job_idx
        if self._gpus is None:
            self._gpus = np.zeros((len(self._app), running.gpus.shape[1]), np.int32)
        other = (self._gpus[rows] != running.gpus).any(axis=1) | (self._asked[rows] != running.local_batch)
        for i in np.flatnonzero(other):
            job, gpus = int(rows[i]), running.gpus[i]
            taken = gpus[gpus > 0]
            if self.options.ring == "largest-first":
                taken = -np.sort(-taken)
            self._placement[job] = tuple(int(g) for g in taken)
            self._gpus[job], self._type[job] = gpus, running.type_idx[i]
            self._asked[job] = running.local_batch[i]
            self._agent[job] = self._adapts(job, float(running.local_batch[i]))
            if running.local_batch[i] > 0:
                self._set_batch(job, int(running.local_batch[i]), int(running.accumulation[i]))
            else:
                self._set_batch(job, *self._chosen(job))

    def _adapts(self, job: int, local_batch: float) -> bool:
        bound = self._limits[job, self._type[job]]
        return bool(
            (local_batch < 0 and bound["agent_batch"] == 0)
            or (local_batch == 0 and bound["asked_batch"] == 0)
        )

    def _chosen(self, job: int) -> tuple[int, int]:
        """Local batch and accumulation by the agent, or of the batch that is given."""
        bound, placement = self._limits[job, self._type[job]], self._placement[job]
        gpus = sum(placement)
        batch = float(bound["agent_batch"] if self._asked[job] < 0 else bound["asked_batch"])
        if self._agent[job]:
            self._news[job] = False
            if self._speed.has_run(job):
                local, passes = self._speed.choose(job, int(self._type[job]), len(placement), gpus)
                return min(local, int(bound["max_batch"] / (gpus * (passes + 1)))), passes
            batch = max(float(bound["init_batch"]), float(bound["min_local"]) * gpus)
        bounds = (float(bound[name]) for name in ("init_batch", "max_batch", "max_local"))
        local, passes = divided_batch(batch, gpus, *bounds)
        return int(local), int(passes)

    def _set_batch(self, job: int, local: int, passes: int) -> None:
        self._local[job], self._passes[job], self._stale[job] = local, passes, True

    def _choose_anew(self, jobs: Ints) -> None:
        for job in jobs.tolist():
            local, passes = self._chosen(job)
            if (local, passes) != (self._local[job], self._passes[job]):
                self._set_batch(job, local, passes)

    def _global_batch(self, job: int) -> float:
        return float(sum(self._placement[job]) * self._local[job] * (self._passes[job] + 1))

    def _look_up(self, jobs: Ints) -> None:
        """True goodput in the present epoch; the estimate hears of it."""
        for job in jobs.tolist():
            app, epoch, placement = self._app[job], int(self._epoch[job]), self._placement[job]
            type_idx, local = int(self._type[job]), int(self._local[job])
            step_s, sync_s = self._steps[app][type_idx].at(placement, local)
            curve = self._noise[app].at(self._global_batch(job))
            noise = float(curve.grad_var[epoch] / curve.grad_sqr[epoch])
            key = (len(placement), sum(placement), local)
            self._news[job] |= self._speed.report(job, type_idx, key, (step_s, sync_s), noise)
            self._rate[job] = curve.gain[epoch] / (step_s + self._passes[job] * (step_s - sync_s))
            self._stale[job] = False

    def _interference(self, running: Running) -> Floats:
        """The loss of distributed jobs that share a node with another one, [rows]."""
        if self.options.interference_frac == 0:
            return np.zeros(len(running))
        spread = (running.gpus > 0) & (running.n_nodes > 1)[:, None]
        crowded = spread & (spread.sum(axis=0) > 1)
        return np.where(crowded.any(axis=1), self.options.interference_frac, 0.0)


def limits_of(profiles: Sequence[ApplicationProfile], batch: Floats, types: int) -> Records:
    """LIMITS records [jobs, types] of jobs with these profiles and requested batches."""
    limits = np.zeros((len(profiles), types), LIMITS)
    for row, profile, asked in zip(limits, profiles, batch, strict=True):
        row["init_batch"], row["max_batch"] = profile.init_batch, profile.max_batch
        row["min_local"], row["max_local"] = profile.min_local, profile.max_local
        row["asked_batch"], row["agent_batch"] = asked, profile.agent_batch
    return limits


def _applications(workload: Workload, profiles: Sequence[ApplicationProfile]) -> Ints:
    known = {profile.name: i for i, profile in enumerate(profiles)}
    for job, model in enumerate(workload.model_idx):
        if (name := workload.model_names[model]) not in known:
            raise UsageError(
                "has no profile",
                file=workload.name,
                field=f"job {workload.job_ids[job]}",
                value=name,
                expected=f"one of {', '.join(known)}",
            )
    return np.array([known[workload.model_names[model]] for model in workload.model_idx], np.int64)
