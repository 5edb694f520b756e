"""The true speed of replayed jobs at the batch that each asked for: what an oracle knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import Floats, Ints, Records
from trimtab.domain.training_profiles import ApplicationProfile
from trimtab.training.batch_choice import divided_batch
from trimtab.training.levels import never_measured
from trimtab.training.truths.step_times import StepTimes


class ReplayOracle:
    """Iterations per second. GPUs are packed into whole nodes where the configuration says so many nodes."""

    def __init__(
        self,
        profiles: Sequence[ApplicationProfile],
        steps: Sequence[Sequence[StepTimes]],
        app: Ints,
        limits: Records,
        is_artifact: bool,
    ) -> None:
        self._profiles, self._steps, self._limits = profiles, steps, limits
        self._least_passes = 1 if is_artifact else 0  # of a single GPU
        asked = limits["asked_batch"][:, 0]
        self._batches, curve = np.unique(np.stack([app.astype(float), asked]), axis=1, return_inverse=True)
        self._curve, self._app = curve.ravel(), app
        self._node_gpus = np.array([profile.node_gpus for profile in profiles])
        self._known: dict[tuple[int, int, int, int], float] = {}
        most = max(profile.gpus_max for profile in profiles) + 1
        self._packed_s = np.full((self._batches.shape[1], limits.shape[1], most), np.nan)

    @property
    def levels(self) -> Ints:
        """Any number of GPUs."""
        return np.zeros(0, np.int64)

    @property
    def provides(self) -> frozenset[JobNeed]:
        """True work and true speed, on each type."""
        types = {JobNeed.TYPES} if self._limits.shape[1] > 1 else set()
        return frozenset({JobNeed.ORACLE, JobNeed.SCALING, JobNeed.WORK_LEFT} | types)

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Iterations per second; 0 = the batch can't be divided so."""
        job, type_idx, nodes, gpus = np.broadcast_arrays(
            jobs["job_idx"], configs["type_idx"], configs["nodes"], configs["gpus"]
        )
        curve, shape = self._curve[job.ravel()], job.shape
        type_idx, nodes, gpus = type_idx.ravel(), nodes.ravel(), gpus.ravel()
        width = self._node_gpus[self._app[job.ravel()]]
        packed = (nodes == -(-gpus // width)) & (gpus < self._packed_s.shape[2]) & (gpus > 0)
        at = curve, type_idx, np.where(packed, gpus, 0)
        missing = np.flatnonzero(packed & np.isnan(self._packed_s[at]))
        for i in missing:
            self._packed_s[at[0][i], at[1][i], gpus[i]] = self._iteration_s(
                job.ravel()[i], type_idx[i], nodes[i], gpus[i]
            )
        seconds = self._packed_s[at]
        for i in np.flatnonzero(~packed):
            seconds[i] = self._iteration_s(job.ravel()[i], type_idx[i], nodes[i], gpus[i])
        with np.errstate(divide="ignore"):
            return np.where(np.isfinite(seconds), 1.0 / seconds, 0.0).reshape(shape)

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """The batch that the job asked for, divided."""
        job, type_idx, gpus = np.broadcast_arrays(jobs["job_idx"], configs["type_idx"], configs["gpus"])
        pairs = [
            self._divided(j, t, max(n, 1))
            for j, t, n in zip(job.ravel(), type_idx.ravel(), gpus.ravel(), strict=True)
        ]
        local = np.array([pair[0] for pair in pairs], np.float64).reshape(job.shape)
        return local, np.array([pair[1] for pair in pairs], np.int64).reshape(job.shape)

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Never measured."""
        return never_measured(jobs, partners, configs)

    def _divided(self, job: int, type_idx: int, gpus: int) -> tuple[int, int]:
        bound = self._limits[job, type_idx]
        batch = float(bound["asked_batch"] or max(bound["init_batch"], bound["min_local"] * gpus))
        if gpus == 1 and self._least_passes:
            passes = max(-int(-(np.ceil(batch - 1e-8) / bound["max_local"] - 1e-8) // 1) - 1, 1)
            local = int(np.ceil(np.ceil(batch - 1e-8) / (passes + 1) - 1e-8))
            return min(local, int(bound["max_batch"] / (passes + 1))), passes
        bounds = (float(bound[name]) for name in ("init_batch", "max_batch", "max_local"))
        local, passes = divided_batch(batch, int(gpus), *bounds)
        return int(local), int(passes)

    def _iteration_s(self, job: int, type_idx: int, nodes: int, gpus: int) -> float:
        """Seconds of an iteration; inf = it can't run so."""
        bound = self._limits[job, type_idx]
        most = bound["asked_batch"] // bound["min_local"] if bound["asked_batch"] > 0 else gpus
        if not 1 <= nodes <= gpus <= most:
            return np.inf
        local, passes = self._divided(job, type_idx, gpus)
        width = int(self._node_gpus[self._app[job]])
        if nodes == -(-gpus // width):
            placement = (width,) * (gpus // width) + ((gpus % width,) if gpus % width else ())
        else:
            least, more = divmod(int(gpus), int(nodes))
            placement = (least,) * (nodes - more) + (least + 1,) * more
        step_s, sync_s = self._steps[self._app[job]][type_idx].at(tuple(map(int, placement)), local)
        return step_s + passes * (step_s - sync_s)
