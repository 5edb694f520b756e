"""Transfer: the way that distances choose, and trainings that begin where the given weights are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimtab.domain.artifact import Artifact
from trimtab.domain.policy import Decider
from trimtab.errors import UsageError
from trimtab.learn.augmentation import UNCHANGED, Augmentation
from trimtab.learn.dispatch_training import DispatchTraining
from trimtab.learn.drawn_workloads import Objective, Workloads, figures_of
from trimtab.learn.generated_clusters import generated_cluster
from trimtab.learn.similarity import Similarity
from trimtab.learn.transfer import (
    ANEW_FROM,
    AS_IS_BELOW,
    GENERATIONS,
    TRANSFER_KEY,
    Way,
    setting_of,
    trained_by,
    way_of,
    with_provenance,
)
from trimtab.learn.weight_search import Setting, WeightSearch
from trimtab.policies.learned.learned_dispatch import LearnedDispatch
from trimtab.policies.shared.learned_score import vector_of

SMALL = Workloads(requests=100, nodes=(8,))
TARGET = Workloads(generated_cluster(5_000, 100, nodes=8))


@pytest.fixture(scope="module")
def source() -> Artifact:
    """Weights of two generations of evolution strategies."""
    search = WeightSearch(Setting("learned-dispatch", Objective.parsed("mean+0.5*tail"), SMALL, 2, 2, 2))
    while not search.is_over:
        search.step()
    return search.artifact("source")


def with_meta(weights: Artifact, **meta: str) -> Artifact:
    return Artifact(weights.name, weights.arrays, {**weights.meta, **meta})


def of(
    weights: Artifact, way: Way = "fine-tuned", augmentation: Augmentation = UNCHANGED, **given: Any
) -> Setting:
    return setting_of(weights, TARGET, augmentation, way, **given)


def test_the_farther_the_target_the_less_is_kept() -> None:
    assert [way_of(total, 0.2, 0.5) for total in (0.0, 0.2, 0.4, 0.5)] == [
        "as-is",
        "fine-tuned",
        "fine-tuned",
        "anew",
    ]
    assert 0.0 <= AS_IS_BELOW <= ANEW_FROM


def test_a_transfer_trains_as_the_weights_were_trained(source: Artifact) -> None:
    setting = of(source, samples=2 * 2 * 6 * 3 + 1, seed=4, augmentation=Augmentation(rates=0.1))
    assert (setting.policy, setting.method, str(setting.objective)) == (
        "learned-dispatch",
        "es",
        "mean+0.5*tail",
    )
    assert (setting.pairs, setting.hidden, setting.seed, setting.generations) == (2, 2, 4, 3)
    assert setting.start == source
    assert str(setting.workloads.augmentation) == "rates=0.1"
    assert not of(source, way="anew").start
    assert of(source).generations == GENERATIONS


def test_training_begins_at_the_loss_of_the_weights(source: Artifact) -> None:
    search = trained_by(replace(of(source), workloads=SMALL), None)
    begun = search.artifact("begun")
    assert np.array_equal(vector_of(begun), vector_of(source))
    assert np.array_equal(begun.arrays["ranges"], source.arrays["ranges"])
    found, expected = (
        figures_of(SMALL, 1_000, Decider.of(LearnedDispatch(artifact=weights))) for weights in (begun, source)
    )
    assert found == expected
    assert begun.meta["statistics"] == source.meta["statistics"]
    anew = trained_by(of(source, way="anew"), None)
    assert not np.array_equal(vector_of(anew.artifact("anew")), vector_of(source))


def test_reinforcement_learning_begins_at_the_weights(source: Artifact) -> None:
    setting = Setting(
        "learned-dispatch", Objective.parsed("mean"), SMALL, 1, hidden=2, method="a2c", start=source
    )
    network = DispatchTraining(setting).network
    assert network.weights() == pytest.approx(vector_of(source), abs=1e-6)


def test_an_interrupted_transfer_goes_on_and_other_weights_are_another_training(source: Artifact) -> None:
    setting = of(source, samples=48)
    whole, begun, rest = (trained_by(setting, None) for _ in range(3))
    while not whole.is_over:
        whole.step()
    begun.step()
    rest.restore(begun.checkpoint(), "c.npz")
    rest.step()
    assert rest.history == whole.history
    assert rest.artifact("w") == whole.artifact("w")
    with pytest.raises(UsageError, match=r"c.npz: start: was trained otherwise"):
        trained_by(of(source, samples=48, way="anew"), None).restore(begun.checkpoint(), "c.npz")


def test_weights_tell_what_they_come_from(source: Artifact) -> None:
    made = with_provenance(source, source, "as-is", Similarity({"rates": 0.5}, {"rates": 1.0}))
    assert source.sha256 in made.meta[TRANSFER_KEY]
    assert '"way": "as-is"' in made.meta[TRANSFER_KEY]
    assert '"total": 0.5' in made.meta[TRANSFER_KEY]
    assert np.array_equal(vector_of(made), vector_of(source))


def test_what_does_not_go_on_is_told(source: Artifact) -> None:
    with pytest.raises(
        UsageError, match=r"--samples: too few \(got 23\); expected at least 24 simulated runs"
    ):
        of(source, samples=23)
    told = '{"method": "%s", "policy": "%s", "objective": "mean"}'
    by_ppo = with_meta(source, training=told % ("ppo", "learned-dispatch"))
    with pytest.raises(UsageError, match="--augment: is not done"):
        of(by_ppo, augmentation=Augmentation(resample=True))
    with pytest.raises(UsageError, match="at least 51,200 decisions"):
        of(by_ppo, samples=100)
    with pytest.raises(UsageError, match="source: training: do not tell it"):
        of(with_meta(source, training="{}"))
    other = with_meta(source, training=told % ("rnn", "learned-pointer"))
    with pytest.raises(UsageError, match="source: method: does not go on from weights"):
        of(other)
    with pytest.raises(UsageError, match="was trained on version 0 of the features"):
        of(with_meta(source, features_version="0"))
