"""Tunes a policy: searched on the first half of a workload, chosen on a quarter, tested on the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.compiled.parallel import Notice
from trimtab.errors import UsageError
from trimtab.experiments.compare.run_comparison import run_key
from trimtab.experiments.compare.task_pool import HERE, Progress, RunsDone, TaskRuns, check_place
from trimtab.experiments.compare.tasks import Task, TaskResult
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.machine import check_memory, cores
from trimtab.experiments.provenance import made_by
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.serving.serving_kind import Serving
from trimtab.experiments.tuning.evolution import LEAST_CANDIDATES, ROUNDS, Evolution
from trimtab.experiments.tuning.objective import MEAN, TAIL, Goal, change_frac, worse_frac
from trimtab.experiments.tuning.parts import TRAINED, VALIDATED, Part, check_length
from trimtab.experiments.tuning.request_values import family_of, resampled
from trimtab.experiments.tuning.space import Space
from trimtab.metrics import RANKED_FROM
from trimtab.policies import canonical, find
from trimtab.version import versions

CANDIDATES: Final = 96
GAIN, NO_GAIN = "gain", "nothing to gain"
TRAINED_SEEDS, VALIDATED_SEEDS, TESTED_SEEDS = 4, 5, 5
FINALISTS: Final = 8
_SERVED: Final = "finished_frac"


@dataclass(frozen=True, slots=True)
class Change:
    """A metric under the policy as given and under a candidate, over the seeds, on the same requests.

    `frac` is the relative change, `low_frac` and `high_frac` its 95 % interval by drawn seeds and blocks.
    """

    before: float
    now: float
    frac: float
    low_frac: float
    high_frac: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was chosen from: its values, and its changes on a part that the search did not see."""

    policy: str
    values: Mapping[str, float]
    changes: Mapping[str, Change]  # metric → change
    is_within: bool  # it serves as many requests, and keeps to the bounds

    def to_dict(self) -> dict[str, Any]:
        """The values for a file."""
        changes = {
            name: {
                "before": c.before,
                "now": c.now,
                "change_frac": c.frac,
                "ci95_frac": [c.low_frac, c.high_frac],
            }
            for name, c in self.changes.items()
        }
        return {
            "policy": self.policy,
            "values": dict(self.values),
            "is_within": self.is_within,
            "changes": changes,
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found.

    `best` is the candidate that did best where it was chosen, `test` the same on the last part; `verdict` is
    "gain" if its interval there, where it was chosen, excludes 0 within the bounds; then `policy` is it, else
    the policy as it was given.
    """

    scenario: Scenario
    base: str
    goal: Goal
    verdict: str
    policy: str
    best: Trial
    test: Trial
    chosen_from: tuple[Trial, ...]
    trained: Mapping[str, tuple[float, float]]  # last round's candidate → changes of mean and p99 completion
    given: Mapping[str, float]  # parameter → value before
    seed: int
    candidates: int
    requests: Mapping[str, int]  # part → requests that are counted
    seeds: Mapping[str, Sequence[int]]
    runs: int
    folders: tuple[Workfolder, ...] = field(repr=False, default=())

    @property
    def is_confirmed(self) -> bool:
        """Whether the test's interval excludes 0, within the bounds."""
        return self.test.is_within and _is_gain(self.goal, self.test)

    def in_words(self) -> str:
        """The verdict, and what the test says to it."""
        where = f"on {self.requests['validation']:,} requests that the search did not see"
        if self.verdict == NO_GAIN:
            return f"{NO_GAIN}: {self.goal} is not better than with {self.base}, {where}"
        test = "the test confirms it" if self.is_confirmed else "the test does not confirm it"
        return f"{GAIN}: {self.policy} is better in {self.goal} {where}; {test}"

    def front(self) -> list[Trial]:
        """Candidates that no other beats in both mean and p99, by mean."""
        front: list[Trial] = []
        for trial in sorted(self.chosen_from, key=lambda t: (t.changes[MEAN].frac, t.changes[TAIL].frac)):
            if not front or trial.changes[TAIL].frac < front[-1].changes[TAIL].frac:
                front.append(trial)
        return front

    def to_dict(self) -> dict[str, Any]:
        """The content of `--json` and `results.json`."""
        return {
            "tuning": {
                "policy": self.base,
                "objective": str(self.goal),
                "seed": self.seed,
                "candidates": self.candidates,
            },
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "verdict": self.verdict,
            "is_confirmed": self.is_confirmed,
            "tuned": self.policy,
            "given": dict(self.given),
            "requests": dict(self.requests),
            "seeds": {part: list(seeds) for part, seeds in self.seeds.items()},
            "validation": self.best.to_dict(),
            "test": self.test.to_dict(),
            "front": [trial.to_dict() for trial in self.front()],
            "trained": [
                {"policy": policy, MEAN: mean, TAIL: tail}
                for policy, (mean, tail) in sorted(self.trained.items())
            ],
            "runs": self.runs,
            "made_by": made_by(self.scenario.content(), [(self.base, find(self.base))]),
            "versions": versions(),
        }

    def content(self) -> dict[str, Any]:
        """The values of `tuned.yaml`: the policy, and what it rests on."""
        told = self.to_dict()
        names = (
            "verdict",
            "is_confirmed",
            "tuning",
            "validation",
            "test",
            "requests",
            "seeds",
            "scenario_hash",
        )
        policies = made_by({}, [(self.policy, find(self.policy))])["policies"]
        return {"policy": policies[0], **{name: told[name] for name in (*names, "made_by", "versions")}}


def tune_policy(
    scenario: Scenario,
    policy: str,
    goal: Goal,
    *,
    candidates: int = CANDIDATES,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = True,
    jobs: int | None = None,
    on: str = HERE,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Tuning:
    """Search the numbers of a policy on the first half of a workload, and judge what was found on the rest.

    Args:
        scenario: the workload; its requests are split by arrival, half, quarter, quarter.
        policy: NAME, NAME+ORDER or file.py:Class, with the values that it is compared with.
        goal: what is to be better, and what may not be worse.
        candidates: of the first round; the rounds after have fewer, on more requests.
        seed: of the search; the seeds of the runs count up from it, others for each part.
        out: folder for finished runs; an interrupted search goes on from there.
        resume: whether runs that are there are used.
        jobs: runs at a time; default: one per core, on Ray one per CPU of the cluster.
        on: where the runs are made: "processes" of this machine, "ray", or the address of a Ray cluster.
        progress: called with how far it is.
        notice: called with a line while kernels are compiled.

    Raises UsageError for a policy without numbers that say their range, for a workload that is too short, and
    for what comparing refuses; PolicyError for a policy that fails.
    """
    if candidates < LEAST_CANDIDATES:
        expected = f"at least {LEAST_CANDIDATES}"
        raise UsageError("too few", field="--candidates", value=candidates, expected=expected)
    check_place(on)
    space = Space(policy)
    check_length(scenario)
    runs = PartRuns(scenario, space.spec, out, resume, jobs, on, progress)
    runs.expect(candidates, seed)
    runs.prepare(notice)
    return _Search(space, goal, runs, candidates, seed).tuning()


class _Search:
    def __init__(self, space: Space, goal: Goal, runs: PartRuns, candidates: int, seed: int) -> None:
        self._space, self._goal, self._runs = space, goal, runs
        self._candidates, self._seed = candidates, seed

    def tuning(self) -> Tuning:
        trained, finalists = self._trained()
        runs = self._runs
        chosen_from = self._trials(finalists, TRAINED, VALIDATED, runs.seeds["validation"])
        within = [trial for trial in chosen_from if trial.is_within] or chosen_from
        best = min(within, key=lambda t: worse_frac(self._goal.metric, t.changes[self._goal.metric].frac))
        is_gain = best.is_within and _is_gain(self._goal, best)
        (test,) = self._trials([best.policy], VALIDATED, 1.0, runs.seeds["test"])
        n = runs.scenario.n_requests()
        edges = (0, round(TRAINED * n), round(VALIDATED * n), n)
        return Tuning(
            scenario=runs.scenario,
            base=self._space.spec,
            goal=self._goal,
            verdict=GAIN if is_gain else NO_GAIN,
            policy=best.policy if is_gain else self._space.spec,
            best=best,
            test=test,
            chosen_from=tuple(chosen_from),
            trained=trained,
            given=self._space.given(),
            seed=self._seed,
            candidates=self._candidates,
            requests={part: edges[k + 1] - edges[k] for k, part in enumerate(runs.seeds)},
            seeds=runs.seeds,
            runs=runs.done,
            folders=tuple(runs.folders),
        )

    def _trained(self) -> tuple[dict[str, tuple[float, float]], list[str]]:
        """Changes of mean and p99 of the last round's candidates, and those that are worth a closer look."""
        evolution, base = Evolution(self._space, self._candidates, self._seed), self._space.spec
        evolution.add(base, self._space.start())
        named = evolution.first()
        scores: dict[str, float] = {}
        trained: dict[str, tuple[float, float]] = {}
        ended: dict[str, float] = {}  # policy → score on all requests to train on
        for k, each in enumerate(ROUNDS):
            named = named if k == 0 else evolution.next(k, scores)
            part = Part(end_frac=TRAINED * each.of_requests)
            found = self._runs.run(part, list(dict.fromkeys([base, *named])), self._runs.seeds["train"])
            means = {policy: means_of(results) for policy, results in found.items()}
            scores = {policy: self._score(means[policy], means[base]) for policy in means}
            if each.of_requests == 1.0:
                ended |= scores
                trained |= {
                    policy: (change_frac(m[MEAN], means[base][MEAN]), change_frac(m[TAIL], means[base][TAIL]))
                    for policy, m in means.items()
                }
        del ended[base]
        best = sorted(ended, key=lambda policy: ended[policy])
        better = [policy for policy in best if ended[policy] < 0.0]
        return trained, better[:FINALISTS] or best[:1]

    def _score(self, found: Mapping[str, float], base: Mapping[str, float]) -> float:
        return self._goal.score(found, base) if serves_as_many(found, base) else float("inf")

    def _trials(
        self, policies: Sequence[str], begin_frac: float, end_frac: float, seeds: Sequence[int]
    ) -> list[Trial]:
        """The candidates against the policy as given, on the requests of a part."""
        families = tuple(dict.fromkeys(map(family_of, self._goal.metrics)))
        part, base = Part(begin_frac, end_frac, families), self._space.spec
        found = self._runs.run(part, [base, *policies], seeds)
        return [self._trial(policy, found[policy], found[base]) for policy in policies]

    def _trial(self, policy: str, now: Sequence[TaskResult], before: Sequence[TaskResult]) -> Trial:
        means, base = means_of(now), means_of(before)
        changes = {}
        for metric in self._goal.metrics:
            values = [
                [result.run.remarks[family_of(metric)] for result in results] for results in (before, now)
            ]
            of_base, drawn = resampled(metric, values, self._seed)
            pairs = zip(drawn, of_base, strict=True)
            fracs = [change_frac(float(a), float(b)) for a, b in pairs]
            low, high = np.quantile(fracs, [0.025, 0.975])
            change = change_frac(means[metric], base[metric])
            changes[metric] = Change(base[metric], means[metric], change, float(low), float(high))
        is_within = serves_as_many(means, base) and all(
            worse_frac(b.metric, changes[b.metric].frac) <= b.worse_frac for b in self._goal.bounds
        )
        return Trial(policy, self._space.read(policy), changes, is_within)


class PartRuns:
    """Makes the runs, keeps finished ones in a folder, and says how far all are."""

    def __init__(
        self,
        scenario: Scenario,
        base: str,
        out: Path | None,
        resume: bool,
        jobs: int | None,
        on: str,
        progress: Progress | None,
    ) -> None:
        self.scenario, self.base = scenario, base
        self.out, self.resume, self.jobs, self.on, self.progress = out, resume, jobs, on, progress
        self.mode, self.done, self.kept, self.total = "auto", 0, 0, 0
        self.folders: list[Workfolder] = []
        self.ended: dict[str, TaskResult] = {}  # key of the task → its result
        self.seeds: dict[str, Sequence[int]] = {}

    def expect(self, candidates: int, seed: int) -> None:
        """Choose the seeds of the parts, and count the runs. Raises UsageError for too little memory."""
        counts = {"train": TRAINED_SEEDS, "validation": VALIDATED_SEEDS, "test": TESTED_SEEDS}
        if Serving().seedless(self.scenario, [self.base], seed):
            counts = dict.fromkeys(counts, 1)
        first = seed
        for part, count in counts.items():
            self.seeds[part] = range(first, first + count)
            first += count
        rounds = sum(1 + max(LEAST_CANDIDATES, round(candidates * r.of_candidates)) for r in ROUNDS)
        self.total = rounds * counts["train"] + (1 + FINALISTS) * counts["validation"] + 2 * counts["test"]
        check_memory(self.total, self.scenario.n_requests(), self.jobs or cores(), "requests")

    def prepare(self, notice: Notice | None) -> None:
        """Compile what the runs need."""
        items = self.total * self.scenario.n_requests() // 2
        self.mode = Part().prepare(self.scenario, [self.base], "auto", items, notice)

    def run(self, part: Part, policies: Sequence[str], seeds: Sequence[int]) -> dict[str, list[TaskResult]]:
        """Policy → its results, one for each seed."""
        tasks = [self._task(part, policy, seed) for seed in seeds for policy in policies]
        new = [task for task in tasks if task.key not in self.ended]
        self.done += len(tasks) - len(new)
        folder = None if self.out is None else self._folder(self.out, new)
        with folder or nullcontext():
            runs = TaskRuns(new, folder)
            self.kept += len(runs.ended)
            runs.run(self.jobs, self._told if self.progress else None, None, self.on)
        self.done += len(new)
        self.ended |= {task.key: result for task, result in zip(new, runs.ended, strict=True)}
        found: dict[str, list[TaskResult]] = {policy: [] for policy in policies}
        for task in tasks:
            found[task.policy].append(self.ended[task.key])
        return found

    def _task(self, part: Part, policy: str, seed: int) -> Task:
        key = repr((run_key(part, self.scenario, policy), part, seed))
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return Task(part, self.scenario, seed, None, policy, canonical(policy), self.mode, key=digest)

    def _folder(self, out: Path, tasks: Sequence[Task]) -> Workfolder:
        folder = Workfolder(out, tasks)
        if not self.resume:
            folder.remove()
            folder = Workfolder(out, tasks)
        self.folders.append(folder)
        return folder

    def _told(self, runs: RunsDone) -> None:
        assert self.progress is not None
        total = max(self.total, self.done + runs.total)
        told = replace(runs, done=self.done + runs.done, total=total, kept=self.kept, left_s=None)
        self.progress(told)  # rounds differ in requests, so that what a run took tells little of the next


def means_of(results: Sequence[TaskResult]) -> dict[str, float]:
    """The metrics over the seeds."""
    names = results[0].run.metrics
    return {name: float(np.mean([result.run.metrics[name] for result in results])) for name in names}


def serves_as_many(found: Mapping[str, float], base: Mapping[str, float]) -> bool:
    """Whether about as many requests are served: the mean of fewer would flatter."""
    return found[_SERVED] >= RANKED_FROM * base[_SERVED]


def _is_gain(goal: Goal, trial: Trial) -> bool:
    change = trial.changes[goal.metric]
    return max(worse_frac(goal.metric, change.low_frac), worse_frac(goal.metric, change.high_frac)) < 0.0
