"""Claims of docs/benchmarks/imitation.md, by figures made up by hand; its weights are of its figures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from bench.ages import without_age
from bench.imitation import PAGE, RESULTS, matched_again, path, trainings
from bench.imitation_page import page, verdict

from trimtab.domain.artifact import Artifact
from trimtab.policies import find
from trimtab.policies.resource_aware.hungarian import least_cost
from trimtab.policies.shared.plan_features import Window, window


def judged(mean: tuple[float, float], p99: tuple[float, float]) -> dict[str, Any]:
    """A policy with these intervals."""
    return {
        name: {"frac": sum(ends) / 2, "low_frac": ends[0], "high_frac": ends[1], "worst_frac": 0.2}
        for name, ends in (("mean", mean), ("p99", p99))
    }


def test_claims_are_counted() -> None:
    sizes = {
        "3": {"hungarian": {"mean": 0.1}, "x": {"mean": 0.05}},
        "4": {"hungarian": {"mean": 0.1}, "x": {"mean": 0.2}},
    }
    policies = {"hungarian": judged((0.0, 0.2), (0.0, 0.1)), "x": judged((-0.2, -0.1), (-0.1, 0.1))}
    near, loop, below = verdict({"small": sizes, "policies": policies, "trained": {"x": {}}})
    assert "x is nearer to the optimum than `hungarian` in the mean of 1 of 2 sizes" in near
    assert loop.endswith("not higher beyond its own: x. A higher mean or p99 beyond its interval: none.")
    assert below.endswith("whose place they take: x.")


def test_what_waits_is_matched_again_whenever_a_request_starts() -> None:
    """One slot: 1 s, then 2 s more, then 3 s, of which a load takes 1 s: 1 + 3 + 6."""

    def seconds(*values: float) -> np.ndarray:
        return np.array(values)[:, None]

    w = window(
        seconds(2.0, 2.0, 1.0),
        seconds(0.0, 1.0, 0.0),
        np.zeros(1),
        np.ones(3),
        np.zeros(3),
        np.full(3, -1),
        np.zeros(1),
    )

    def rule(left: Window) -> Any:
        return least_cost(left.free_s + left.load_s + left.service_s, np.zeros(len(left.best_s)))

    assert matched_again(w, rule) == pytest.approx(1.0 + 3.0 + 6.0)
    assert matched_again(w, lambda left: np.full(len(left.best_s), -1)) == pytest.approx(1.0 + 3.0 + 6.0)


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", trainings())
def test_weights_are_those_of_the_figures_and_of_this_version(name: str) -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))["trained"][name]
    assert Artifact.read(str(path(name))).sha256 == saved["sha256"]
    find(f"{saved['policy']}(artifact={path(name)})")
