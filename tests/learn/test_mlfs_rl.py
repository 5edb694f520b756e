"""Training of MLF-RL: it begins as the heuristic, moves from there, and repeats."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra learn")

from support.training_runs import jobs_of, run_of
from trimtab.learn.methods.mlfs_rl import Settings, train
from trimtab.training.allocators.mlf_rl import MlfRl


def run(allocator):
    rng = np.random.default_rng(5)
    workload = jobs_of(
        np.sort(rng.uniform(0, 3000, 20)), rng.uniform(200, 3000, 20), rng.choice([1, 2, 4], 20),
        deadline_s=6000.0,
    )  # fmt: skip
    return run_of(workload, allocator, restart="flat(seconds_s=30)")


@pytest.mark.parametrize("actions", ["mlfs-style", "paper"])
def test_imitation_is_the_heuristic_and_the_gradient_leaves_it(actions: str) -> None:
    made = train([run], Settings(actions=actions, imitation_steps=150, batches=0))
    assert made.agreement > 0.98
    assert made.course == []
    heuristic = run("mlfs").finish_s
    imitated = run(MlfRl(actions=actions, artifact=made.artifact)).finish_s
    assert imitated.mean() == pytest.approx(heuristic.mean(), rel=0.05)


def test_training_counts_what_exploring_costs() -> None:
    made = train([run], Settings(imitation_steps=50, rollouts=2, batches=1))
    assert set(made.course[0]) == {"mean_over_mlfs", "p99_over_mlfs"}
    assert made.artifact != made.imitated
