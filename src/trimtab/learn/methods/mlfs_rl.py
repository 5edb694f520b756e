"""MLF-RL: weights of the allocator `mlf-rl`, by imitation of MLF-H and then by policy gradient.

Source: Wang, Liu and Shen, Job Scheduling for Large-scale Machine Learning Clusters, CoNEXT 2020, §3.4: warm
start from the heuristic's decisions, reward of completion and deadlines with its weights .5 and .55,
discounted reward after a decision. The step is that of Schulman et al., Proximal policy optimization
algorithms, arXiv:1707.06347, 2017: several updates by each batch, with the ratio clipped.

Deviations: rollouts of one workload share the time of rounds, so the baseline of a decision is what the
others earned from the same time on. One trunk has heads for the actions, for throughput (the share of the
speed with the GPUs asked for that the job had until the next decision) and for convergence (x / (1 + x) of
the seconds until the job ends, in mean job lengths), all trained together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.artifact import Artifact
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, Records
from trimtab.errors import MissingExtra
from trimtab.training.allocators.mlf_rl import ACTIONS, FEATURES, HEADS, HIDDEN, VERSION, MlfRl, take_turns
from trimtab.training.allocators.mlfs import Mlfs
from trimtab.training.job_records import JobRecords

try:
    import torch
except ModuleNotFoundError as missing:
    raise MissingExtra("needs torch", expected="pip install 'trimtab[learn]'") from missing

Run = Callable[[Allocator], JobRecords]
_COMPLETION, _DEADLINE = 0.5, 0.55  # weights of the reward, of the source


@dataclass(frozen=True)
class Settings:
    """Of the training."""

    actions: str = "mlfs-style"
    discount: float = 0.99  # a decision; the source has .95
    rollouts: int = 4  # of each workload
    imitation_steps: int = 300
    smoothing: float = 0.03  # of the imitated actions, over all that are allowed
    updates: int = 6  # by each batch of rollouts
    clip: float = 0.2
    rate: float = 3e-3
    auxiliary: float = 0.1  # weight of the errors of throughput and convergence
    batches: int = 1000  # of rollouts, at most; with fewer CPU seconds the same seed gives other weights
    cpu_s: float = 600.0  # of the policy gradient, at most


@dataclass
class Decisions:
    """What a rollout saw and did: one row for each job and decision."""

    now_s: list[float] = field(default_factory=list)  # [decisions]
    active: list[int] = field(default_factory=list)
    job: list[Ints] = field(default_factory=list)
    left_s: list[Floats] = field(default_factory=list)  # with the GPUs asked for
    seen: list[Floats] = field(default_factory=list)
    allowed: list[Any] = field(default_factory=list)
    done: list[Ints] = field(default_factory=list)


class Exploring(Allocator):
    """`mlf-rl` whose actions are drawn, or those of MLF-H; it keeps what it did."""

    def __init__(self, made: MlfRl, weights: Floats, rng: np.random.Generator | None) -> None:
        self.made, self.weights, self.rng, self.kept = made, weights, rng, Decisions()
        for name in ("needs", "clock", "placement"):
            setattr(self, name, getattr(made, name))

    def init(self, cluster: Any, n_jobs: int) -> Any:
        """As MLF-H."""
        return self.made.init(cluster, n_jobs)

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Any
    ) -> Allocation:
        """Draw an action for each job; without a generator do as MLF-H."""
        turns = self.made.turns(jobs, cluster, now_s, speed)
        n = len(jobs)
        if self.rng is None:
            given = Mlfs.allocate(self.made, jobs, cluster, now_s, speed, memory)
            assert given.counts is not None
            wish = given.counts.sum(axis=1)[turns.order] > 0
            held = turns.held[turns.order] >= 0
            noise = np.zeros((n, len(ACTIONS)))
            noise[np.arange(n), np.where(held, np.where(wish, 0, 4), np.where(wish, 3, 0))] = 1e9
        else:
            noise = -np.log(-np.log(self.rng.uniform(1e-12, 1.0, (n, len(ACTIONS)))))
        wanted, seen, allowed, done = take_turns(*turns, noise, self.weights, cluster.n_gpus)
        rows = np.arange(n)
        alone = np.maximum(turns.speed[rows, turns.asked], 1e-12)
        kept = self.kept
        kept.now_s.append(now_s)
        kept.active.append(n)
        kept.job.append(jobs["job_idx"][turns.order].copy())
        kept.left_s.append((jobs["work_left"] / alone)[turns.order])
        kept.seen.append(seen)
        kept.allowed.append(allowed)
        kept.done.append(done)
        return self.made.given(jobs, cluster, turns.order, wanted)


class Net(torch.nn.Module):  # torch has no types here
    """The network of `compiled.dense`, with several outputs."""

    def __init__(self) -> None:
        super().__init__()
        f = len(FEATURES)
        self.trunk = torch.nn.Parameter(torch.randn(HIDDEN, f) * f**-0.5)
        self.bias = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.out = torch.nn.Parameter(torch.randn(HEADS, HIDDEN) * 0.1)
        self.skip = torch.nn.Parameter(torch.zeros(HEADS, f))

    def forward(self, x: Any) -> Any:
        """Values of the heads, [rows, heads]."""
        hidden = torch.nn.functional.softsign(x @ self.trunk.T + self.bias)
        return hidden @ self.out.T + x @ self.skip.T

    def artifact(self, name: str, actions: str) -> Artifact:
        """For the allocator."""
        arrays = {key: value.detach().double().numpy() for key, value in self.named_parameters()}
        return Artifact(name, arrays, {"features": VERSION, "actions": actions})


@dataclass
class Trained:
    """Weights, and the course of the training."""

    artifact: Artifact
    imitated: Artifact  # after the imitation
    agreement: float  # of the imitation's actions with MLF-H's
    course: list[dict[str, float]]  # of each iteration
    cpu_s: float


def train(workloads: Sequence[Run], settings: Settings, seed: int = 0) -> Trained:
    """Train on these workloads, each a function that runs an allocator on one and gives its records."""
    begun_s = time.process_time()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net, rng = Net(), np.random.default_rng(seed)
    base = MlfRl(actions=settings.actions)  # type: ignore[arg-type]  # a text of the two
    teachers, heuristic = [], []
    for run in workloads:
        teacher = Exploring(base, _weights(net, settings), None)
        heuristic.append(_outcome(run(teacher)))
        teachers.append(_rows(teacher.kept))
    agreement = _imitate(net, teachers, settings)
    imitated = net.artifact("imitated", settings.actions)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    course: list[dict[str, float]] = []
    trained_s = time.process_time()
    while len(course) < settings.batches and time.process_time() - trained_s < settings.cpu_s:
        k = int(rng.integers(len(workloads)))
        batch, outcomes = [], []
        for _ in range(settings.rollouts):
            explorer = Exploring(base, _weights(net, settings), rng)
            records = workloads[k](explorer)
            outcomes.append(_outcome(records))
            batch.append((explorer.kept, records))
        _improve(net, optimizer, batch, settings)
        mean = {key: float(np.mean([outcome[key] for outcome in outcomes])) for key in outcomes[0]}
        course.append({f"{key}_over_mlfs": mean[key] / heuristic[k][key] for key in mean})
    artifact = net.artifact("mlf-rl", settings.actions)
    return Trained(artifact, imitated, agreement, course, time.process_time() - begun_s)


def _weights(net: Net, settings: Settings) -> Floats:
    return MlfRl(actions=settings.actions, artifact=net.artifact("now", settings.actions)).weights()  # type: ignore[arg-type]


def _outcome(records: JobRecords) -> dict[str, float]:
    completion_s = (records.finish_s - records.workload.submit_s)[records.finished]
    return {"mean": float(completion_s.mean()), "p99": float(np.percentile(completion_s, 99))}


def _rows(kept: Decisions) -> tuple[Any, Any, Any]:
    """Features, what was allowed, and actions, of all turns."""
    parts = np.concatenate(kept.seen), np.concatenate(kept.allowed), np.concatenate(kept.done)
    return torch.tensor(parts[0], dtype=torch.float32), torch.tensor(parts[1]), torch.tensor(parts[2])


def _log_all(values: Any, allowed: Any) -> Any:
    """Logarithm of the probability of each action, [rows, actions]."""
    return torch.log_softmax(values[:, : len(ACTIONS)].masked_fill(~allowed, -1e9), 1)


def _log_shares(values: Any, allowed: Any, done: Any) -> Any:
    """Logarithm of the probability of what was done."""
    return _log_all(values, allowed).gather(1, done[:, None])[:, 0]


def _imitate(net: Net, teachers: Sequence[tuple[Any, Any, Any]], settings: Settings) -> float:
    """Cross-entropy with MLF-H's actions, each kind of action weighing the same; returns the agreement."""
    seen, allowed, done = (torch.cat(parts) for parts in zip(*teachers, strict=True))
    count = torch.bincount(done, minlength=len(ACTIONS)).clamp(min=1).float()
    weight = (len(done) / count).sqrt()[done]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(settings.imitation_steps):
        rows = torch.randint(len(done), (4096,))
        shares = _log_all(net(seen[rows]), allowed[rows])
        even = (shares * allowed[rows]).sum(1) / allowed[rows].sum(1)
        taken = shares.gather(1, done[rows, None])[:, 0]
        loss = -(weight[rows] * ((1 - settings.smoothing) * taken + settings.smoothing * even)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        masked = net(seen)[:, : len(ACTIONS)].masked_fill(~allowed, -1e9)
    return float((masked.argmax(1) == done).float().mean())


def _improve(
    net: Net, optimizer: Any, batch: Sequence[tuple[Decisions, JobRecords]], settings: Settings
) -> None:
    """Clipped policy gradient over a batch of rollouts of one workload."""
    earned = [_earned(kept, records, settings.discount) for kept, records in batch]
    advantages = []
    for r, (kept, _) in enumerate(batch):
        others = [
            np.interp(kept.now_s, batch[o][0].now_s, earned[o], right=0.0)
            for o in range(len(batch))
            if o != r
        ]
        advantages.append(np.repeat(earned[r] - np.mean(others, axis=0), kept.active))
    advantage = torch.tensor(np.concatenate(advantages), dtype=torch.float32)
    advantage = advantage / (advantage.std() + 1e-6)
    seen, allowed, done = (torch.cat(parts) for parts in zip(*(_rows(k) for k, _ in batch), strict=True))
    target = torch.tensor(np.concatenate([_targets(*each) for each in batch]), dtype=torch.float32)
    known = torch.isfinite(target)
    free = allowed.sum(1) > 1
    with torch.no_grad():
        before = _log_shares(net(seen), allowed, done)
    for _ in range(settings.updates):
        values = net(seen)
        ratio = torch.exp(_log_shares(values, allowed, done) - before)
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * advantage, clipped * advantage)[free].mean()
        error = ((values[:, len(ACTIONS) :] - torch.nan_to_num(target)) ** 2)[known].mean()
        loss = settings.auxiliary * error - gain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _earned(kept: Decisions, records: JobRecords, discount: float) -> Floats:
    """Discounted reward from each decision on: − completion in mean job lengths, + deadlines met."""
    unit_s, now_s = _unit_s(records), np.asarray(kept.now_s)
    lasts_s = np.diff(np.append(now_s, records.end_s))
    reward = -_COMPLETION * np.asarray(kept.active) * lasts_s / unit_s
    at = np.searchsorted(now_s, records.finish_s[records.on_time], side="right") - 1
    reward += _DEADLINE * np.bincount(at, minlength=len(now_s))
    earned, total = np.zeros(len(reward)), 0.0
    for i in range(len(reward) - 1, -1, -1):
        total = reward[i] + discount * total
        earned[i] = total
    return earned


def _unit_s(records: JobRecords) -> float:
    """A mean job length: as recorded, else as it ran."""
    recorded_s = records.workload.duration_s
    known = np.isfinite(recorded_s)
    return float(recorded_s[known].mean() if known.any() else records.run_s.mean())


def _targets(kept: Decisions, records: JobRecords) -> Floats:
    """Of throughput and convergence, [turns, 2]; nan = not known."""
    unit_s, parts = _unit_s(records), []
    for i, (job, left_s) in enumerate(zip(kept.job, kept.left_s, strict=True)):
        ends = (records.finish_s[job] - kept.now_s[i]) / unit_s
        target = np.full((len(job), 2), np.nan)
        target[:, 1] = ends / (1.0 + ends)
        if i + 1 < len(kept.job):
            at = {int(j): k for k, j in enumerate(kept.job[i + 1].tolist())}
            lasts_s = kept.now_s[i + 1] - kept.now_s[i]
            for k, j in enumerate(job.tolist()):
                if j in at and lasts_s > 0:
                    target[k, 0] = (left_s[k] - kept.left_s[i + 1][at[j]]) / lasts_s
        parts.append(target)
    return np.concatenate(parts)
