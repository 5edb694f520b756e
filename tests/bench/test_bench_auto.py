"""The page says what was measured; generated clusters are scenarios, the same for the same seed."""

from __future__ import annotations

import json

import numpy as np
from bench.ages import without_age
from bench.auto import CLUSTERS, PAGE, POLICIES, RESULTS
from bench.auto_page import page
from bench.generated_clusters import generated_cluster

from trimtab.experiments.scenario.build import build


def test_page_is_made_from_what_is_saved() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert len(saved["clusters"]) == CLUSTERS
    assert all(found.keys() == {*POLICIES} for found in saved["clusters"].values())
    assert without_age(PAGE) == page(saved)


def test_generated_clusters_differ_and_come_again() -> None:
    made = [generated_cluster(seed, 50) for seed in range(12)]
    assert len({scenario.hash() for scenario in made}) == 12
    assert generated_cluster(3, 50).hash() == made[3].hash()
    for seed, scenario in enumerate(made):
        built = build(scenario, seed)
        assert len(built.requests) == 50
        assert 8 <= built.cluster.n_nodes <= 68, "at least one node of each of up to 4 types"
        assert np.isfinite(built.cluster.fixed_s).all()
