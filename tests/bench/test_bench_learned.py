"""Claims of docs/benchmarks/learned.md, by figures made up by hand; its weights are those of its figures."""

from __future__ import annotations

import json

import pytest
from bench.ages import without_age
from bench.learned import PAGE, RESULTS, SETTINGS, WEIGHTS
from bench.learned_page import changes, page, verdict

from trimtab.domain.artifact import Artifact
from trimtab.learn.judgement import Change
from trimtab.policies import find


def between(low: float, high: float) -> Change:
    """A change with this interval."""
    return Change((low + high) / 2, low, high, high)


def test_a_gain_needs_the_mean_beyond_its_interval_at_a_p99_that_is_not_higher() -> None:
    pairs = [
        (between(-0.2, -0.1), between(-0.1, 0.1)),
        (between(-0.2, -0.1), between(0.1, 0.2)),
        (between(-0.2, 0.1), between(-0.2, -0.1)),
    ]
    assert verdict(pairs) == (1, 1)


def test_a_change_is_that_of_the_geometric_mean_on_the_workloads_that_both_ran_on() -> None:
    of = {"rule": ([10.0, 20.0, 99.0], [30.0, 30.0, 99.0]), "few": ([5.0, 40.0], [60.0, 60.0])}
    case = {"policies": {name: {"mean": mean, "p99": p99} for name, (mean, p99) in of.items()}}
    mean, p99 = changes(case, "few", "rule")
    assert mean.frac == pytest.approx(0.0)  # half and twice
    assert mean.worst_frac == pytest.approx(1.0)
    assert (p99.low_frac, p99.high_frac) == pytest.approx((1.0, 1.0))


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_are_those_of_the_figures_and_of_this_version(name: str) -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))["trained"][name]
    path = WEIGHTS / f"{name}.safetensors"
    assert Artifact.read(str(path)).sha256 == saved["sha256"]
    find(f"{saved['policy']}(artifact={path})")
