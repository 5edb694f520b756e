"""`trimtab/Allocate-v0`: how many GPUs each training job has, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records, configs
from trimtab.errors import UsageError
from trimtab.experiments.training.training_inputs import TrainingInputs
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TrainingScenario
from trimtab.learn.environments.request_runs import checked_seeds, drawn_seed
from trimtab.learn.environments.rewards import Reward, weights_of
from trimtab.policies.shared.features import Feature
from trimtab.training.allocators.shared.in_order import given_in_order
from trimtab.training.training_loop import TrainingRun

LEVELS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # times the GPUs that a job asked for
JOB_COLUMNS: Final = (
    Feature("age", "share of age and an hour", "since the submission", 0.0, 1.0),
    Feature("left", "share of this and an hour", "estimated time left as asked for; 1 = not known", 0.0, 1.0),
    Feature("slack", "x / (|x| + 1)", "x = hours that it may still wait; 1 = no deadline", -1.0, 1.0),
    Feature("asked", "share of the GPUs", "that the job asked for", 0.0, 1.0),
    Feature("held", "share of the GPUs", "that the job has now", 0.0, 1.0),
    Feature("served", "share of this and an hour", "GPU time received, of each GPU asked for", 0.0, 1.0),
    Feature("restarts", "n / (n + 1)", "n = changes of its GPUs after its first start", 0.0, 1.0),
    Feature("free", "share of the GPUs", "that no job has", 0.0, 1.0),
    Feature("demand", "q / (1 + q)", "q = GPUs that active jobs asked for, of all", 0.0, 1.0),
    *(
        Feature(f"speed_{level:g}", "s / (s + 1)", f"s = speed with {level:g} × asked, over asked", 0.0, 1.0)
        for level in LEVELS[1:]
    ),
)
JOB_REWARDS: Final[Mapping[str, Reward]] = {
    "completion": Reward("s", "− mean seconds from submission to end"),
    "deadlines": Reward("share of jobs", "+ jobs that ended by their deadlines"),
    "utilisation": Reward("share of GPU time", "+ GPU time held, of all until the last submission"),
}
_HOUR_S: Final = 3600.0


class AsksAboutJobs(Allocator):
    """Gives each job what an agent wrote for it, in order of submission; what does not fit waits."""

    keeps_gangs: ClassVar[bool] = False
    clock: ClassVar[str] = "rounds(period_s=60)"

    def __init__(self, n_jobs: int) -> None:
        self.wanted: Ints = np.zeros(n_jobs, np.int64)

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """The GPUs written, and the next round even if nothing runs."""
        wanted = self.wanted[jobs["job_idx"]]
        counts = given_in_order(jobs, cluster, np.arange(len(jobs)), may_pass=True, wanted=wanted)
        return Allocation(counts=counts, wake_s=now_s)


class AllocateEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Each step is a round: a level of GPUs for each active job, in order of submission.

    Observation: [jobs, columns] of `JOB_COLUMNS`, of the first `jobs` active ones. Action: [jobs] indices of
    LEVELS. A level that the mask forbids is level 0. If nothing would run and no more jobs come, the first
    job gets what it asked for.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        scenario: TrainingScenario | str = "elastic-training",
        *,
        jobs: int = 32,
        load: float | None = None,
        seeds: Sequence[int] | None = None,
        reward: str | Mapping[str, float] = "completion",
        most_rounds: int = 100_000,
    ) -> None:
        """An environment of a training scenario; `seeds`: those that episodes are drawn from; None = any.

        `reward`: one of JOB_REWARDS, or several with weights. An episode is truncated after `most_rounds`.
        Raises ScenarioError and UsageError.
        """
        self._scenario = TRAINING_KIND.read(scenario, load=load, policies=None, seeds=None)
        self._seeds = checked_seeds(seeds)
        self._weights = weights_of(reward, JOB_REWARDS)
        self._inputs = lru_cache(8)(lambda seed: TRAINING_KIND.build(self._scenario, seed, None))
        self._most_rounds, self._rounds, self.seed = most_rounds, 0, 0
        self.observation_space = spaces.Box(-1.0, 1.0, (jobs, len(JOB_COLUMNS)), np.float32)
        self.action_space = spaces.MultiDiscrete([len(LEVELS)] * jobs)
        self._rows = np.zeros((jobs, len(JOB_COLUMNS)), np.float32)
        self._mask = np.zeros((jobs, len(LEVELS)), np.bool_)
        self.run: TrainingRun | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode: of a seed drawn by `seed`, or of `options["seed"]`. Raises UsageError."""
        super().reset(seed=seed)
        given = (options or {}).get("seed")
        self.seed = drawn_seed(self._seeds, self.np_random) if given is None else int(given)
        inputs: TrainingInputs = self._inputs(self.seed)
        self._asked = AsksAboutJobs(len(inputs.workload))
        self.run, self._rounds = TRAINING_KIND.begun(inputs, self._asked), 0
        self._totals = np.zeros(len(JOB_REWARDS))
        self._go_on(is_over=False)
        return self._rows.copy(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Give the jobs their GPUs for a round. Raises UsageError before the first `reset`."""
        run = self._begun()
        jobs, _ = run.shown()
        shown = jobs[: len(self._rows)]
        level = np.where(self._mask[np.arange(len(self._rows)), action], action, 0)[: len(shown)]
        self._asked.wanted[:] = 0
        self._asked.wanted[shown["job_idx"]] = self._gpus(shown)[np.arange(len(shown)), level]
        if not self._asked.wanted.any() and len(shown) and run.arrived == len(run.workload):
            self._asked.wanted[shown["job_idx"][0]] = shown["gpus_requested"][0]
        self._rounds += 1
        is_over = self._go_on(is_over=not run.step())
        before, self._totals = self._totals, self._so_far()
        reward = sum(
            w * (now - past) for w, now, past in zip(self._weights, self._totals, before, strict=True)
        )
        is_cut = not is_over and self._rounds >= self._most_rounds
        return self._rows.copy(), reward, is_over, is_cut, self._info()

    def action_masks(self) -> np.ndarray:
        """Which levels are allowed now, [jobs, levels] bool; level 0 always is."""
        return self._mask.copy()

    def _begun(self) -> TrainingRun:
        if self.run is None:
            raise UsageError("has no episode yet", field="environment", expected="a call of reset() first")
        return self.run

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "seed": self.seed}

    def _go_on(self, *, is_over: bool) -> bool:
        """Go on to the next round with active jobs, and show it. Returns whether the run is over."""
        run = self._begun()
        jobs, cluster = run.shown()
        while not is_over and not len(jobs):
            is_over = not run.step()
            jobs, cluster = run.shown()
        self._rows[:], self._mask[:] = 0.0, False
        self._mask[:, 0] = True
        if len(jobs) and not is_over:
            self._show(jobs, cluster)
        return is_over

    @staticmethod
    def _gpus(jobs: Records) -> Ints:
        """GPUs of each level, [jobs, levels]; 0 where it would be no whole number."""
        gpus = jobs["gpus_requested"][:, None] * np.array(LEVELS)
        return np.where(gpus % 1.0 == 0.0, gpus, 0.0).astype(np.int64)

    def _show(self, jobs: Records, cluster: GpuCluster) -> None:
        run, total = self._begun(), float(self._begun().total_gpus)
        held, n_active = cluster.held.sum(axis=1)[: len(self._rows)], jobs["gpus_requested"].sum()
        jobs = jobs[: len(self._rows)]
        gpus, asked = self._gpus(jobs), jobs["gpus_requested"]
        rate = run.speed.goodput(jobs[:, None], configs(np.maximum(gpus, 1)))
        asked_rate = run.speed.goodput(jobs, configs(asked))
        relative = rate / np.maximum(asked_rate, 1e-300)[:, None]
        left_s = np.nan_to_num(jobs["work_left"] / np.maximum(asked_rate, 1e-300), nan=np.inf)
        slack = (jobs["deadline_s"] - run.now_s - np.minimum(left_s, 1e15)) / _HOUR_S
        within = (gpus >= jobs["gpus_min"][:, None]) & (gpus <= jobs["gpus_max"][:, None])
        is_own = (gpus == asked[:, None]) | jobs["scales"][:, None]
        mask = (gpus > 0) & within & is_own & (rate > 0.0) & (gpus <= total)
        mask[:, 0] = True
        columns = [
            _share(jobs["age_s"]),
            _share(left_s),
            np.where(np.isfinite(slack), slack / (np.abs(slack) + 1.0), 1.0),
            asked / total,
            held / total,
            _share(jobs["attained_gpu_s"] / np.maximum(asked, 1)),
            jobs["restarts"] / (jobs["restarts"] + 1.0),
            np.full(len(jobs), (total - cluster.held.sum()) / total),
            np.full(len(jobs), n_active / (n_active + total)),
            *np.where(mask, relative / (relative + 1.0), 0.0)[:, 1:].T,
        ]
        self._rows[: len(jobs)] = np.clip(np.stack(columns, axis=1), -1.0, 1.0)
        self._mask[: len(jobs)] = mask

    def _so_far(self) -> Floats:
        """What each of JOB_REWARDS has come to."""
        run = self._begun()
        submit_s, end_s = run.workload.submit_s, run.jobs.finish_s
        until_s = np.minimum(np.where(np.isnan(end_s), np.inf, end_s), run.now_s)
        in_system_s = np.maximum(until_s - submit_s, 0.0).sum()
        met = np.count_nonzero(end_s <= run.jobs.jobs["deadline_s"])
        gpu_s = run.jobs.jobs["attained_gpu_s"].sum()
        all_gpu_s = run.total_gpus * max(float(submit_s[-1]), 1e-9)
        return np.array([-in_system_s / len(submit_s), met / len(submit_s), gpu_s / all_gpu_s])


def _share(seconds: Any) -> Floats:
    """Of seconds in themselves and an hour; 1 where they are not known."""
    known: Floats = np.minimum(seconds, 1e15)
    return known / (known + _HOUR_S)
