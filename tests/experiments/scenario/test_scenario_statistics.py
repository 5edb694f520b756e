"""The built-in scenarios have the statistics of the traces in whose manner they were made."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.scenario.build import RunInputs, build


@pytest.fixture(scope="module")
def images() -> RunInputs:
    return build(load_scenario("aigc-images"), 0)


def shares(positions: np.ndarray) -> np.ndarray:
    """Share of each value, most frequent first."""
    return np.sort(np.bincount(positions))[::-1] / len(positions)


def test_aigc_has_the_size_of_the_field_s_case(images: RunInputs) -> None:
    assert images.cluster.n_nodes == 100
    assert images.cluster.n_types == 4
    assert len(images.requests) == 10_000
    assert set(images.requests.work["priority"]) == {0, 1, 2}
    assert np.isfinite(images.requests.work["deadline_s"]).all()
    assert len(np.unique(images.cluster.fixed_s[0] + 30 * images.cluster.unit_s[0])) == 4


def test_aigc_execution_times_on_random_nodes(images: RunInputs) -> None:
    """GenTD26: 22 / 47 / 89 s (p50 / p90 / p99), mean 26.7 s."""
    cluster, work, truth = images.cluster, images.requests.work, images.requests.truth
    rng = np.random.default_rng(0)
    table = cluster.fixed_s[work["class_idx"]] + cluster.unit_s[work["class_idx"]] * truth["units"][:, None]
    can = np.isfinite(table)[:, cluster.type_idx]
    node = np.argmax(np.where(can, rng.random(can.shape), -1.0), axis=1)
    seconds = table[np.arange(len(work)), cluster.type_idx[node]] * truth["factor"]
    assert np.quantile(seconds, [0.5, 0.9, 0.99]) == pytest.approx([22, 47, 89], rel=0.08)
    assert seconds.mean() == pytest.approx(26.7, rel=0.05)


def test_aigc_models_and_adapters(images: RunInputs) -> None:
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


def test_aigc_arrivals_are_bursty(images: RunInputs) -> None:
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


def test_edge_cloud_serves_every_class_near_and_far() -> None:
    built = build(load_scenario("edge-cloud"), 0)
    c, work = built.cluster, built.requests.work
    assert built.n_fits_no_node == 0
    assert len(c.resource_names) == 5
    zone_of_cloud = c.zone_names.index("cloud")
    assert shares(work["zone_idx"]) == pytest.approx([0.45, 0.35, 0.2, 0], abs=0.02)
    assert (work["zone_idx"] != zone_of_cloud).all()
    is_near = c.zone_idx != zone_of_cloud
    for k in range(len(c.class_names)):
        serves = np.isfinite(c.fixed_s[k, c.type_idx])
        assert serves[is_near].any()
        assert serves[~is_near].any()
        assert (c.capacity[serves] >= c.demand[k]).all()
    # on some nodes a class runs out of a resource first, on others out of slots
    fits = np.min(c.capacity[:, None] / np.maximum(c.demand, 1e-9), axis=2).astype(int)
    assert ((fits < c.slots[:, None]) & (fits > 0)).any()
    assert ((fits > c.slots[:, None]) & (fits > 0)).any()


def test_regime_change_changes_mix_and_rate_half_way() -> None:
    built = build(load_scenario("regime-change"), 0)
    work, change = built.requests.work, 3 * len(built.requests) // 4
    first, then = work[:change], work[change:]
    assert np.ptp(first["arrival_s"]) == pytest.approx(np.ptp(then["arrival_s"]), rel=0.3)
    assert np.mean(first["class_idx"] == 1) == pytest.approx(0.03, abs=0.005)
    assert np.mean(then["class_idx"] == 1) == pytest.approx(0.5, abs=0.02)
    gap_s = [np.diff(part["arrival_s"]).mean() for part in (first, then)]
    assert gap_s[0] / gap_s[1] == pytest.approx(0.42, rel=0.06)
    assert built.offered_load == pytest.approx(0.78)
    offered = [part["estimate_s"].sum() / np.ptp(part["arrival_s"]) for part in (first, then)]
    assert offered[1] == pytest.approx(offered[0], rel=0.1)


def test_tiny_is_tiny() -> None:
    built = build(load_scenario("tiny"), 0)
    assert built.cluster.n_nodes == 6
    assert len(built.requests) == 300
