"""Claims of docs/benchmarks/learned.md, by figures made up by hand; its weights are those of its figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench.ages import without_age
from bench.learned import PAGE, RESULTS, SETTINGS, WEIGHTS
from bench.learned_page import page, verdict

from trimtab.domain.artifact import Artifact
from trimtab.policies import find


def judged(mean: tuple[float, float], p99: tuple[float, float]) -> dict[str, Any]:
    """A policy with these intervals."""
    return {
        name: {"frac": sum(ends) / 2, "low_frac": ends[0], "high_frac": ends[1], "worst_frac": 0.2}
        for name, ends in (("mean", mean), ("p99", p99))
    }


def test_a_gain_needs_the_mean_beyond_its_interval_at_a_p99_that_is_not_higher() -> None:
    cases = {
        "a": {"policies": {"ES x": judged((-0.2, -0.1), (-0.1, 0.1)), "auto": judged((1, 2), (0, 1))}},
        "b": {"policies": {"ES x": judged((-0.2, -0.1), (0.1, 0.2))}},
        "c": {"policies": {"ES x": judged((-0.2, 0.1), (-0.2, -0.1))}},
    }
    (line,) = verdict(cases)
    assert line.startswith("- ES x: a lower mean")
    assert "in 1 of 3 cases; a higher mean or p99 beyond its interval in 1." in line


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_are_those_of_the_figures_and_of_this_version(name: str) -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))["trained"][name]
    path = WEIGHTS / f"{name}.safetensors"
    assert Artifact.read(str(path)).sha256 == saved["sha256"]
    find(f"{saved['policy']}(artifact={path})")
