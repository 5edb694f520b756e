"""The built-in scenarios have the statistics of the traces in whose manner they were made."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.experiments.build import Built, build
from trimtab.experiments.scenario import load_scenario


@pytest.fixture(scope="module")
def images() -> Built:
    return build(load_scenario("aigc-images"), 0)


def shares(positions: np.ndarray) -> np.ndarray:
    """Share of each value, most frequent first."""
    return np.sort(np.bincount(positions))[::-1] / len(positions)


def test_aigc_has_the_size_of_the_field_s_case(images: Built) -> None:
    assert images.cluster.n_nodes == 100
    assert images.cluster.n_types == 4
    assert len(images.requests) == 10_000
    assert set(images.requests.work["priority"]) == {0, 1, 2}
    assert np.isfinite(images.requests.work["deadline_s"]).all()
    assert len(np.unique(images.cluster.fixed_s[0] + 30 * images.cluster.unit_s[0])) == 4


def test_aigc_execution_times_on_random_nodes(images: Built) -> None:
    """GenTD26: 22 / 47 / 89 s (p50 / p90 / p99), mean 26.7 s."""
    cluster, work, truth = images.cluster, images.requests.work, images.requests.truth
    rng = np.random.default_rng(0)
    table = cluster.fixed_s[work["class_idx"]] + cluster.unit_s[work["class_idx"]] * truth["units"][:, None]
    can = np.isfinite(table)[:, cluster.type_idx]
    node = np.argmax(np.where(can, rng.random(can.shape), -1.0), axis=1)
    seconds = table[np.arange(len(work)), cluster.type_idx[node]] * truth["factor"]
    assert np.quantile(seconds, [0.5, 0.9, 0.99]) == pytest.approx([22, 47, 89], rel=0.08)
    assert seconds.mean() == pytest.approx(26.7, rel=0.05)


def test_aigc_models_and_adapters(images: Built) -> None:
    """GenTD26: the most popular model 30 %, five 67 %, ten 85 %; 15 % of the requests have an adapter."""
    popularity = shares(images.requests.work["model_idx"])
    assert len(popularity) == 32
    assert popularity[0] == pytest.approx(0.30, abs=0.03)
    assert popularity.cumsum()[[4, 9, 19]] == pytest.approx([0.67, 0.85, 0.96], abs=0.03)
    adapter = images.requests.work["adapter_idx"]
    assert np.mean(adapter >= 0) == pytest.approx(0.15, abs=0.012)
    assert shares(adapter[adapter >= 0])[:10].sum() == pytest.approx(1 / 3, abs=0.06)
    models, is_adapter = images.cluster.item_names, images.cluster.item_is_adapter.astype(bool)
    for model, chosen in {(int(r["model_idx"]), int(r["adapter_idx"])) for r in images.requests.work}:
        if chosen >= 0:
            assert is_adapter[chosen]
            assert models[chosen].startswith(models[model].split("-")[0])


def test_aigc_arrivals_are_bursty(images: Built) -> None:
    arrival_s = images.requests.work["arrival_s"]
    counts = np.bincount((arrival_s // 60).astype(int))[:-1]
    assert counts.var() / counts.mean() > 10
    gaps = np.diff(arrival_s)
    assert gaps.std() / gaps.mean() > 1.1


def test_llm_chat_lengths_and_arrivals() -> None:
    """Azure: size = output + 0.05 prompt; outputs 129 / 424 / 601 and prompts 1020 / 2735 / 4142; CV 1.09."""
    built = build(load_scenario("llm-chat"), 0)
    units = built.requests.truth["units"]
    assert units.mean() == pytest.approx(211 + 0.05 * 1155, rel=0.08)
    gaps = np.diff(built.requests.work["arrival_s"])
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, abs=0.04)
    assert built.cluster.n_nodes == 16


def test_tiny_is_tiny() -> None:
    built = build(load_scenario("tiny"), 0)
    assert built.cluster.n_nodes == 6
    assert len(built.requests) == 300
