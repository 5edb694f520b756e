"""Augmentation keeps what it says, and changes what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.experiments.scenario import load_scenario
from trimtab.learn.augmentation import Augmentation
from trimtab.learn.drawn_workloads import Workloads
from trimtab.learn.generated_clusters import generated_cluster

TARGET = Workloads(generated_cluster(5, 200, nodes=8))


def varied(text: str) -> Workloads:
    return replace(TARGET, augmentation=Augmentation.parsed(text))


def test_what_is_varied_is_read_and_written() -> None:
    assert str(Augmentation.parsed("speeds, resample,rates=0.5")) == "resample,rates=0.5,speeds=0.1"
    assert str(Augmentation.parsed("")) == ""
    for text, problem in (("sizes", "nothing to vary"), ("rates=0", "no amount"), ("speeds=x", "no amount")):
        with pytest.raises(UsageError, match=f"--augment: is {problem}"):
            Augmentation.parsed(text)


def test_without_variation_workloads_are_the_same() -> None:
    assert np.array_equal(varied("").inputs(3).requests.work, TARGET.inputs(3).requests.work)


def test_rates_change_the_load_within_their_amount_and_nothing_else() -> None:
    plain, given = TARGET.inputs(0), varied("rates=0.3")
    logs = [math.log(given.inputs(i).offered_load / TARGET.inputs(i).offered_load) for i in range(12)]
    assert all(-0.3 <= x <= 0.3 for x in logs)
    assert max(logs) > 0.05
    assert min(logs) < -0.05
    for name in ("units", "class_idx", "estimate_s"):
        assert np.array_equal(given.inputs(0).requests.work[name], plain.requests.work[name])


def test_speeds_change_all_classes_of_a_type_by_one_factor_at_the_same_load() -> None:
    factors = []
    for i in range(6):
        plain, given = TARGET.inputs(i), varied("speeds=0.2").inputs(i)
        ratio = plain.cluster.fixed_s + plain.cluster.unit_s
        ratio /= given.cluster.fixed_s + given.cluster.unit_s
        assert ratio == pytest.approx(np.broadcast_to(ratio[:1], ratio.shape))
        assert given.offered_load == pytest.approx(plain.offered_load)
        factors += ratio[0].tolist()
    assert 0.05 < np.std([math.log(x) for x in factors]) < 0.5


def test_resampled_requests_are_blocks_of_the_recorded_ones_with_their_gaps() -> None:
    plain = TARGET.inputs(0)
    given = varied("resample").inputs(0)
    old, new = plain.requests.work, given.requests.work
    assert len(new) == len(old)
    assert np.array_equal(new["serial"], np.arange(len(new)))
    assert np.all(np.diff(new["arrival_s"]) >= 0.0)
    where = {units: k for k, units in enumerate(old["units"].tolist())}
    rows = np.array([where[units] for units in new["units"].tolist()])
    follows = np.diff(rows) == 1
    assert follows.sum() >= len(rows) - 20  # of 20 blocks
    assert not follows.all()
    gaps = np.diff(old["arrival_s"], prepend=np.nan)[rows[1:]]
    assert np.diff(new["arrival_s"])[follows] == pytest.approx(gaps[follows])
    rate = (len(new) - 1) / (new["arrival_s"][-1] - new["arrival_s"][0])
    assert given.offered_load == pytest.approx(rate / plain.capacity_per_s)


def test_prompts_follow_their_requests() -> None:
    requests = Workloads(load_scenario("llm-agents")).inputs(0).requests
    rows = np.array([5, 5, 0, 9])
    old, new = requests.prefixes, requests.taken(rows, np.arange(4.0)).prefixes
    assert old is not None
    assert new is not None
    assert np.array_equal(new.prompt_tokens, old.prompt_tokens[rows])
    for k, row in enumerate(rows.tolist()):
        blocks = new.block_idx[new.first[k] : new.first[k + 1]]
        assert np.array_equal(blocks, old.block_idx[old.first[row] : old.first[row + 1]])
        assert len(blocks)


def test_what_cannot_be_varied_is_told() -> None:
    with pytest.raises(UsageError, match=r"cluster.types.*service: has an engine"):
        Workloads(load_scenario("llm-chat"), augmentation=Augmentation.parsed("speeds")).scenario_of(0)
