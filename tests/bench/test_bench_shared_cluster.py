"""The page of shared clusters, from results made up here."""

from __future__ import annotations

from bench.shared_cluster import KEPT, WAYS, page

from trimtab.experiments.colocation.sharing_policies import find_sharing
from trimtab.experiments.kinds import load_any


def test_the_page_has_means_and_intervals_of_each_way() -> None:
    values = {name: [1.0, 2.0, 3.0] for name in KEPT} | {"slo_attained_frac": [0.99, 0.99, 0.99]}
    idle = [10.0, 10.0, 10.0]
    less = values | {"gained_gpu_hours": [0.5, 1.5, 2.5]}
    ways = {"lending": values, "muxflow": values}
    found = {"ways": ways, "idle_gpu_hours": idle, "muxflow_busier": values, "muxflow_measured": {"A": less}}
    text = page(found)
    # Mean 2, s = 1, t(0.975, 2) = 4.303: half-width 4.303 / √3 = 2.48.
    row = "| `lending` | 2.0 ± 2.5 | 2.0 ± 2.5 | 2.0 ± 2.5 | 99.00 ± 0.00 | 2.0 ± 2.5 |"
    assert row in text
    assert "over 3 seeds" in text
    assert "gains\n2.0 ± 2.5 GPU hours" in text
    assert "Requests leave 10.0 ± 0.0 GPU hours" in text
    row = "| measured, requests as A | 2.0 ± 2.5 | 1.5 ± 2.5 | -0.5 ± 0.0 | 99.00 ± 0.00 | 2.0 ± 2.5 |"
    assert row in text


def test_the_ways_are_ways_of_sharing() -> None:
    assert len({find_sharing(way) for way in WAYS}) == len(WAYS)
    assert load_any("shared-cluster").slo_target_frac == 0.99
