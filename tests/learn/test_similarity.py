"""Similarity of workloads against values by hand, and what does not count as a difference."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.learn.drawn_workloads import Workloads
from trimtab.learn.similarity import (
    PARTS,
    POINTS,
    STATISTICS_KEY,
    Similarity,
    similarity,
    source_statistics,
    statistics_of,
    told_statistics,
)

DRAWN = Workloads(requests=200, nodes=(8,))


def scenario(*, nodes: int = 4, seconds: float = 2.0, load_s: float = 0.0, slots: int = 1) -> Scenario:
    """Requests of two sizes, one model of half a node's memory, and half the nodes half as fast."""
    types = {name: {"memory_gib": 8.0, "slots": slots, "speed": s} for name, s in (("a", 1.0), ("b", 0.5))}
    size = {"distribution": "constant", "value": 1.0}
    return Scenario.model_validate(
        {
            "cluster": {"types": types, "nodes": [{"type": name, "count": nodes // 2} for name in types]},
            "models": {"m": {"memory_gib": 4.0, "load_s": load_s}},
            "classes": {"c": {"model": "m", "unit_s": seconds}, "d": {"model": "m", "unit_s": 3.0 * seconds}},
            "workload": {
                "generate": {
                    "requests": 400,
                    "arrival": {"process": "poisson", "rate_per_s": 1.0},
                    "mix": {name: {"share": 1.0, "size": size} for name in ("c", "d")},
                },
                "load": 0.5,
            },
        }
    )


def distances(one: Scenario, other: Scenario) -> dict[str, float]:
    a, b = (statistics_of(Workloads(each), [0]) for each in (one, other))
    return dict(similarity(a, b).distances)


def test_nothing_lies_between_a_workload_and_itself_and_both_ways_are_as_long() -> None:
    a, b = (statistics_of(DRAWN, [i]) for i in (1, 2))
    assert similarity(a, a).total == 0.0
    assert similarity(a, b) == similarity(b, a)
    assert similarity(a, b).total > 0.1
    assert set(similarity(a, b).distances) == {part.name for part in PARTS}


def test_distributions_of_a_cluster_by_hand() -> None:
    found = statistics_of(Workloads(scenario(load_s=2.0)), [0])
    by_speed = sorted(found["speeds"])
    assert by_speed[0] == 0.0
    assert by_speed[-1] == pytest.approx(math.log(2.0))
    assert sum(x > 0.0 for x in by_speed) == POINTS // 2  # half of the slots are half as fast
    assert math.exp(max(found["sizes"]) - min(found["sizes"])) == pytest.approx(3.0)
    assert {round(x, 12) for x in found["loads"]} == {0.5, 0.25}  # 2 s beside 2 s or 6 s
    assert set(found["memory"]) == {1.0}
    assert np.mean(found["rates"]) == pytest.approx(0.5, rel=0.1)  # the load


def test_distances_by_hand() -> None:
    found = distances(scenario(), scenario(nodes=8, slots=2))
    assert found["nodes"] == pytest.approx(math.log(2.0))
    assert found["slots"] == pytest.approx(math.log(2.0))
    assert found["speeds"] == found["sizes"] == found["loads"] == found["memory"] == 0.0
    shares = distances(scenario(), scenario(load_s=2.0))
    assert shares["loads"] == pytest.approx(0.375, abs=0.01)  # half of the requests 0.5, half 0.25


def test_a_cluster_that_is_twice_as_fast_under_twice_the_rate_is_equal() -> None:
    found = distances(scenario(load_s=1.0), scenario(seconds=1.0, load_s=0.5))
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-9)


def test_the_total_is_the_mean_of_distances_over_usual_ones() -> None:
    found = Similarity({"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 1.0})
    assert found.relative == {"a": 0.5, "b": 3.0}
    assert found.total == 1.75
    assert found.to_dict()["parts"]["b"] == {"distance": 3.0, "relative": 3.0}


def test_statistics_are_kept_with_weights_and_others_are_refused() -> None:
    told = told_statistics(statistics_of(DRAWN, range(3)))
    weights = Artifact("w", {"x": np.zeros(1)}, {STATISTICS_KEY: told})
    kept = source_statistics(weights)
    assert similarity(kept, statistics_of(DRAWN, range(3))).total < 1e-4  # written with five digits
    with pytest.raises(UsageError, match="w: statistics: do not tell what they were trained on"):
        source_statistics(Artifact("w", {"x": np.zeros(1)}))
    short, gone = json.loads(told), json.loads(told)
    short["rates"].pop()
    del gone["memory"]
    for wrong, problem in (
        (json.dumps(short), "are incomplete"),
        (json.dumps(gone), "can't be read"),
        ("[", "can't"),
    ):
        with pytest.raises(UsageError, match=problem):
            source_statistics(Artifact("w", {"x": np.zeros(1)}, {STATISTICS_KEY: wrong}))


def test_the_guide_names_all_distances() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "learn.md").read_text("utf-8")
    for part in PARTS:
        assert f"| `{part.name}` | {part.unit} | {part.meaning} |" in text


def test_what_no_node_serves_has_nothing_to_compare() -> None:
    values = scenario().content()
    del values["workload"]["load"]
    values["models"]["m"]["memory_gib"] = 9.0
    with pytest.raises(UsageError, match="has nothing to compare"):
        statistics_of(Workloads(Scenario.model_validate(values)), [0])
