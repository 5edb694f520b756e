"""MLF-RL: job by job in the order of MLF-H, a learned policy decides instead of the heuristic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from trimtab.compiled.dense import forward
from trimtab.compiled.kernel import kernel
from trimtab.domain.allocator import Allocation, JobNeed, Speed
from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records, configs
from trimtab.errors import UsageError
from trimtab.training.allocators.mlfs import Mlfs
from trimtab.training.allocators.shared.in_order import given_in_order
from trimtab.training.allocators.shared.seen_losses import seen_losses

FEATURES: Final = (
    "one", "GPUs held", "GPUs asked for", "gain of a level more", "loss of a level less", "time left",
    "time to spare", "waited", "GPUs left", "held behind it", "wanted behind it", "place in the order",
    "efficiency", "cost of a restart", "what it asked for fits", "holds GPUs",
)  # fmt: skip
"""Of a job when its turn comes; shares of the cluster's GPUs, or x / (1 + |x|) of mean job lengths."""
VERSION: Final = "1"  # of the features
ACTIONS: Final = ("keep", "one level less", "one level more", "admit", "preempt")
HEADS: Final = len(ACTIONS) + 2  # and throughput and convergence, which only training reads
HIDDEN: Final = 16
_KEEP, _LESS, _MORE, _ADMIT, _PREEMPT = 0, 1, 2, 3, 4
_N_WEIGHTS: Final = HIDDEN * len(FEATURES) + 2 * HIDDEN + len(FEATURES)  # of an action, as `dense.n_weights`


class Turns(NamedTuple):
    """The jobs of one decision, in the order of their turns."""

    order: Ints  # [jobs] rows
    levels: Ints  # numbers of GPUs
    held: Ints  # [jobs] place among the levels; -1 = none
    asked: Ints  # [jobs]
    least: Ints  # [jobs]
    most: Ints  # [jobs]
    may_leave: Flags  # [jobs] or change
    fixed: Floats  # [jobs, features] what does not change during the decision
    speed: Floats  # [jobs, levels] work per second


@dataclass(frozen=True)
class MlfRl(Mlfs):
    """MLF-H's jobs in MLF-H's order, but a network decides what each of them gets.

    Idea
        In the order of `mlfs` each job has a turn. A network sees the job and what is left of the cluster
        (`FEATURES`), and gives each action a value; the best allowed one is taken. `actions` "mlfs-style":
        keep, one level less, one level more, admit with what was asked for, preempt. "paper": jobs keep what
        they asked for; those on full nodes may leave while others wait, and those that wait are placed or
        stay in the queue. A hidden layer is shared by the actions and by two more heads, throughput and
        convergence, that are trained with it. Weights come from `trimtab.learn.methods.mlfs_rl`: imitation
        of MLF-H, then policy gradient. Without weights it is `mlfs`.
    Source
        Wang, Liu and Shen, Job Scheduling for Large-scale Machine Learning Clusters, CoNEXT 2020, §3.4
        ("paper"). "mlfs-style": a survey's account of it, whose actions the paper does not have.
    Reads
        What `mlfs` reads, and preemptible, gpus_min, gpus_max, restart_s.
    Cost
        O(jobs · (levels + features · hidden units)) a round.
    When it wins / loses
        See docs/benchmarks/mlf-rl.md: "mlfs-style" gains what elastic jobs gain, since MLF-H resizes none.
    Deviations from the source
        A job is one task. A GPU has one job, so a node is overloaded when all its GPUs are held, and none is
        moved between nodes: which nodes a placed job gets is the run's placement rule. The paper's network is
        one matrix over all tasks and servers; this one scores a job at a time, so that any number fits. The
        reward is completion and deadlines, with the paper's weights .5 and .55; traffic and accuracy are not
        in it.
    """

    name: ClassVar[str] = "mlf-rl"
    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})
    actions: Literal["mlfs-style", "paper"] = "mlfs-style"
    artifact: Artifact = NO_ARTIFACT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.artifact:
            found = self.artifact.meta.get("features", "none"), self.artifact.meta.get("actions", "none")
            if found != (VERSION, self.actions):
                raise UsageError(
                    "weights for other features or actions",
                    file=self.artifact.path or self.artifact.name,
                    field="artifact",
                    value=f"features {found[0]}, actions {found[1]}",
                    expected=f"features {VERSION}, actions {self.actions}",
                )
            self.weights()

    def weights(self) -> Floats:
        """Of each action one after the other, as `compiled.dense` reads them. Raises UsageError."""
        f, actions = len(FEATURES), len(ACTIONS)
        trunk = self.artifact.floats("trunk", (HIDDEN, f)).ravel(), self.artifact.floats("bias", (HIDDEN,))
        out, skip = self.artifact.floats("out", (HEADS, HIDDEN)), self.artifact.floats("skip", (HEADS, f))
        return np.concatenate([np.concatenate([*trunk, out[a], skip[a]]) for a in range(actions)])

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """By turns."""
        if not self.artifact:
            return super().allocate(jobs, cluster, now_s, speed, memory)
        turns = self.turns(jobs, cluster, now_s, speed)
        noise = np.zeros((len(jobs), len(ACTIONS)))
        wanted, *_ = take_turns(*turns, noise, self.weights(), cluster.n_gpus)
        return self.given(jobs, cluster, turns.order, wanted)

    @property
    def is_elastic(self) -> bool:
        """Whether jobs may have other numbers of GPUs than they asked for."""
        return self.actions == "mlfs-style"

    def given(self, jobs: Records, cluster: GpuCluster, order: Ints, wanted: Ints) -> Allocation:
        """The allocation of these GPUs, [jobs]."""
        return Allocation(counts=given_in_order(jobs, cluster, order, may_pass=True, wanted=wanted))

    def turns(self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed) -> Turns:
        """What the network sees of each job before the first turn."""
        told = seen_losses(jobs, speed)
        order = np.argsort(-self._priorities(jobs, now_s, speed, told), kind="stable")
        levels = speed.levels if len(speed.levels) else 1 << np.arange(cluster.n_gpus.bit_length())
        levels = np.union1d(levels, jobs["gpus_requested"]).astype(np.int64)
        work_per_s = np.asarray(speed.goodput(jobs[:, None], configs(levels[None, :])), np.float64)
        held_gpus = cluster.held.sum(axis=1)
        held = np.searchsorted(levels, held_gpus, side="right") - 1
        asked = np.searchsorted(levels, jobs["gpus_requested"])
        scales = jobs["scales"] & self.is_elastic
        least = np.where(scales, np.searchsorted(levels, jobs["gpus_min"]), asked)
        most = np.where(scales, np.searchsorted(levels, jobs["gpus_max"], side="right") - 1, asked)
        rows = np.arange(len(jobs))
        alone = np.maximum(work_per_s[rows, asked], 1e-12)
        unit_s = max(float(np.mean(jobs["work_total"] / alone)), 1e-9)
        left_s = jobs["work_left"] / alone
        spare_s = np.minimum(jobs["deadline_s"], now_s + 1e3 * unit_s) - now_s - left_s
        waited_s = np.maximum(jobs["age_s"] - jobs["run_s"], 0.0)
        full = cluster.now_held.per_node >= cluster.capacity
        may_leave = jobs["preemptible"] & (
            self.is_elastic | ((cluster.gpus[:, full] > 0).any(axis=1) & bool((held_gpus == 0).any()))
        )
        fixed = np.zeros((len(jobs), len(FEATURES)))
        fixed[:, 0] = 1.0
        fixed[:, 1] = held_gpus / cluster.n_gpus
        fixed[:, 2] = jobs["gpus_requested"] / cluster.n_gpus
        fixed[:, 5], fixed[:, 6] = _soft(left_s / unit_s), _soft(spare_s / unit_s)
        fixed[:, 7] = _soft(waited_s / unit_s)
        fixed[order, 11] = rows / len(jobs)
        fixed[:, 13] = _soft(jobs["restart_s"] / np.maximum(left_s, 1.0))
        fixed[:, 15] = held_gpus > 0
        return Turns(order, levels, held, asked, least, most, may_leave, fixed, work_per_s)


def _soft(x: Floats) -> Floats:
    return np.asarray(x / (1.0 + np.abs(x)), np.float64)


@kernel
def take_turns(
    order: Any,
    levels: Any,
    held: Any,
    asked: Any,
    least: Any,
    most: Any,
    may_leave: Any,
    fixed: Any,
    speed: Any,
    noise: Any,
    weights: Any,
    n_gpus: int,
) -> Any:
    """GPUs of each job, and in the order of turns what was seen, what was allowed and what was done.

    `noise` [jobs, actions] is added to the values of the actions.
    """
    n, n_features = fixed.shape
    gpus = np.zeros(n, np.int64)
    seen, allowed = np.zeros((n, n_features)), np.zeros((n, len(ACTIONS)), np.bool_)
    done = np.zeros(n, np.int64)
    free, behind, wanted = n_gpus, 0, 0
    for i in range(n):
        if held[i] >= 0:
            behind += levels[held[i]]
        else:
            wanted += levels[asked[i]]
    for k in range(n):
        i = order[k]
        h, row, may = held[i], seen[k], allowed[k]
        for f in range(n_features):
            row[f] = fixed[i, f]
        if h >= 0:
            behind -= levels[h]
            now = max(speed[i, h], 1e-12)
            row[3] = (speed[i, h + 1] / now - 1.0) if h < most[i] else 0.0
            row[4] = (1.0 - speed[i, h - 1] / now) if h > least[i] else 1.0
            row[12] = now / (max(speed[i, 0], 1e-12) * levels[h] / levels[0])
            may[_KEEP] = levels[h] <= free
            may[_LESS] = h > least[i] and levels[h - 1] <= free and may_leave[i]
            may[_MORE] = h < most[i] and levels[h + 1] <= free and speed[i, h + 1] > 0.0 and may_leave[i]
            may[_PREEMPT] = may_leave[i] or not may[_KEEP]
        else:
            wanted -= levels[asked[i]]
            may[_KEEP] = True
            may[_ADMIT] = levels[asked[i]] <= free
        row[8] = free / n_gpus
        row[9] = behind / n_gpus
        row[10] = wanted / (n_gpus + wanted)
        row[14] = 1.0 if levels[asked[i]] <= free else 0.0
        best, best_value = _KEEP, -np.inf
        for a in range(len(ACTIONS)):
            if may[a]:
                value = forward(weights, a * _N_WEIGHTS, row, 0, n_features, HIDDEN) + noise[k, a]
                if value > best_value:
                    best, best_value = a, value
        level = h
        if best == _LESS:
            level = h - 1
        elif best == _MORE:
            level = h + 1
        elif best == _ADMIT:
            level = asked[i]
        elif best == _PREEMPT:
            level = -1
        if level >= 0:
            gpus[i] = levels[level]
            free -= levels[level]
        done[k] = best
    return gpus, seen, allowed, done
