"""Training of `learned-dispatch` by reinforcement learning: the artifact is the network, resume, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trimtab.domain.policy import Decider
from trimtab.errors import UsageError
from trimtab.learn.dispatch_training import DispatchTraining
from trimtab.learn.drawn_workloads import Objective, Workloads, figures_of
from trimtab.learn.environments import DispatchEnv
from trimtab.learn.methods.learner import masked
from trimtab.learn.weight_search import Setting
from trimtab.policies.learned.learned_dispatch import LearnedDispatch
from trimtab.policies.shared.learned_score import is_by_group

SMALL = Workloads(requests=100, nodes=(8,))


def training(method: str, **other: Any) -> DispatchTraining:
    given = {"policy": "learned-dispatch", "objective": Objective.parsed("mean"), **other}
    return DispatchTraining(
        Setting(workloads=SMALL, generations=2, hidden=2, method=method, decisions=3_200, **given)  # type: ignore[arg-type]
    )


def mean_s(network: Any, i: int) -> float:
    """Mean completion of workload i by the greedy choices of a network, in double precision."""
    env = DispatchEnv(SMALL.scenario_of(i), dtype="float64")
    rows, info = env.reset(options={"seed": i})
    is_over, total = False, 0.0
    while not is_over:
        mask = torch.from_numpy(info["action_mask"])
        with torch.no_grad():
            action = masked(network(torch.from_numpy(rows[None])), mask).argmax()
        rows, reward, is_over, _, info = env.step(np.int64(action))
        total += reward
    return -total


@pytest.mark.parametrize("method", ["a2c", "ppo", "dqn"])
def test_the_exported_policy_chooses_as_the_network_and_an_interruption_changes_nothing(method: str) -> None:
    whole, begun, rest = (training(method) for _ in range(3))
    while not whole.is_over:
        whole.step()
    begun.step()
    begun.network.correction.data += 1.0  # interrupted within the next generation
    rest.restore(begun.checkpoint(), "c.npz")
    rest.step()
    assert rest.history == whole.history
    artifact = whole.artifact("w")
    assert rest.artifact("w") == artifact
    assert is_by_group(artifact)
    assert any(artifact.arrays["skip"])
    policy = Decider.of(LearnedDispatch(artifact=artifact, in_range=False))
    network = whole.network.double()
    network.correction.data *= 20.0  # far from the rule, so that a difference would show
    assert mean_s(network, 1_001) != pytest.approx(figures_of(SMALL, 1_001, policy).mean, rel=1e-6)
    network.correction.data /= 20.0
    for i in range(1_000, 1_004):
        assert mean_s(network, i) == pytest.approx(figures_of(SMALL, i, policy).mean, rel=1e-9)


def test_what_the_methods_do_not_train_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--policy: is not trained so .*learned-dispatch with --method ppo"):
        training("ppo", policy="learned-residual")
    with pytest.raises(UsageError, match=r"--objective: is no reward .*mean with --method a2c"):
        training("a2c", objective=Objective.parsed("mean+p99"))
