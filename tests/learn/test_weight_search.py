"""Training of weights: the same after an interruption, judged by hand, workloads that are what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.learn.drawn_workloads import Figures, Objective, Workloads, figures_of
from trimtab.learn.generated_clusters import SIZES, generated_cluster
from trimtab.learn.judgement import change, judged
from trimtab.learn.weight_search import Setting, WeightSearch
from trimtab.policies import find
from trimtab.policies.shared.features import FEATURES
from trimtab.policies.shared.learned_score import is_by_group

SMALL = Workloads(requests=100, nodes=(8,))


def search(policy: str = "learned-residual", generations: int = 3) -> WeightSearch:
    objective = Objective.parsed("mean+0.5*tail")
    return WeightSearch(Setting(policy, objective, SMALL, generations, 2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["learned-residual", "learned-dispatch"])
def test_a_training_that_goes_on_gives_the_weights_of_one_that_was_never_interrupted(policy: str) -> None:
    whole, begun = search(policy), search(policy)
    while not whole.is_over:
        whole.step()
    begun.step()
    rest = search(policy)
    rest.restore(begun.checkpoint(), "checkpoint.npz")
    while not rest.is_over:
        rest.step()
    assert rest.history == whole.history
    artifact = rest.artifact("w")
    assert artifact == whole.artifact("w")
    assert is_by_group(artifact)
    assert any(artifact.arrays["skip"])
    ranges = artifact.arrays["ranges"]
    slack = 0.02 + 0.05 * 2.0
    for (least, most), feature in zip(ranges, FEATURES, strict=True):
        assert feature.least - slack <= least < most <= feature.most + slack, feature.name
    assert find(f"{policy}(artifact=none)").dispatch != find(policy).dispatch.__class__(artifact=artifact)


def test_a_checkpoint_of_another_training_is_refused_by_what_differs() -> None:
    kept = search().checkpoint()
    other = WeightSearch(Setting("learned-residual", Objective.parsed("p99"), SMALL, 3, 2, 2))
    with pytest.raises(UsageError, match=r"c.npz: objective: was trained otherwise .*'p99', or --no-resume"):
        other.restore(kept, "c.npz")
    longer = search(generations=9)
    longer.restore(kept, "c.npz")  # of more generations it is the same training
    assert not longer.is_over


def test_an_objective_by_hand() -> None:
    objective = Objective.parsed("mean + 0.5*tail")
    assert str(objective) == "mean+0.5*tail"
    found = objective.loss(Figures(2.0, 8.0, 1.0), Figures(1.0, 2.0, 1.0))
    assert found == pytest.approx(math.log(2.0) + 0.5 * math.log(4.0))
    for text in ("p50", "", "2mean", "mean-tail"):
        with pytest.raises(UsageError, match="--objective: names no metric"):
            Objective.parsed(text)


def test_clusters_differ_by_seed_only() -> None:
    assert generated_cluster(5).hash() == generated_cluster(5).hash() != generated_cluster(6).hash()
    sizes = {sum(node.count for node in generated_cluster(i).cluster.nodes) for i in range(40)}
    assert len(sizes) > 4
    assert max(sizes) <= max(SIZES) + 3  # each type has a node
    inputs = Workloads(requests=150).inputs(7)
    assert len(inputs.requests) == 150


def test_a_policy_judged_against_itself_changes_nothing_and_worse_ones_are_counted() -> None:
    same, worse = judged(["late-binding", "random"], SMALL, range(1_000, 1_006))
    assert (same.mean.frac, same.mean.low_frac, same.p99.worst_frac, same.worse_share) == (0.0, 0.0, 0.0, 0.0)
    logs = []
    for i in range(1_000, 1_006):
        random, rule = (figures_of(SMALL, i, find(name)) for name in ("random", "late-binding"))
        logs.append(math.log(random.mean / rule.mean))
    assert worse.mean == change(np.array(logs))
    assert worse.worse_share == np.mean(np.exp(logs) > 1.05) > 0.5
    with pytest.raises(UsageError, match="at least 2"):
        judged(["random"], SMALL, [1])
