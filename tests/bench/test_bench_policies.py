"""What docs/benchmarks/policies.md claims, from figures made up by hand; and the scenarios themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench.ages import without_age
from bench.policies import PAGE, RESULTS
from bench.policies_page import claims, page, ranked
from bench.policy_cases import cases


def case(group: str, load: float, **policies: tuple[list[float], list[float]]) -> dict[str, Any]:
    """A saved case: policy → (mean completion, p99) by seed; nothing is rejected, Var(U) is the mean."""
    zeros = [0.0] * len(next(iter(policies.values()))[0])
    entries = {
        name.replace("_", "-"): {
            "completion_mean_s": mean,
            "completion_p99_s": p99,
            "slo_attained_frac": zeros,
            "utilisation_var": mean,
            "rejected_frac": zeros,
            "distance_frac": zeros,
        }
        for name, (mean, p99) in policies.items()
    }
    return {
        "group": group,
        "load": load,
        "requests": 10,
        "reports_s": 0.0,
        "seeds": len(zeros),
        "policies": entries,
    }


def test_ratios_are_taken_seed_by_seed() -> None:
    stale = case(
        "claims",
        0.8,
        power_of_d=([1.0, 1.0], [2.0, 4.0]),
        sampled_completion=([1.0, 1.0], [1.0, 4.0]),
        least_expected_completion=([1.0, 1.0], [20.0, 40.0]),
    )
    (claim,) = claims({"reports 1 services old": stale})
    assert claim.value is not None
    assert claim.value.mean == pytest.approx(0.75)  # of 0.5 and 1
    assert claim.is_met
    assert "10.0 ×" in claim.note


def test_auto_is_held_against_the_best_fixed_policy_and_in_both_metrics() -> None:
    policies = {
        "auto": ([1.02, 1.02], [3.0, 3.0]),
        "what_if": ([0.5, 0.5], [0.5, 0.5]),  # chooses too, so it is not what auto is held against
        "round_robin": ([1.0, 1.0], [2.0, 2.0]),
    }
    (claim,) = [c for c in claims({"x": case("traces", 0.7, **policies)}) if c.what.startswith("x:")]
    assert claim.value is not None
    assert claim.value.mean == pytest.approx(1.02)
    assert not claim.is_met  # for its p99
    policies["auto"] = ([1.02, 1.02], [2.1, 2.1])
    (claim,) = [c for c in claims({"x": case("traces", 0.7, **policies)}) if c.what.startswith("x:")]
    assert claim.is_met


def test_who_turns_work_away_does_not_rank_first() -> None:
    found = case("loads", 1.1, quick=([1.0], [1.0]), honest=([2.0], [2.0]))
    found["policies"]["quick"]["rejected_frac"] = [0.5]
    assert ranked(found, "completion_mean_s") == ["honest", "quick"]


def test_the_page_shows_every_case() -> None:
    found = {"aigc-images 0.8": case("loads", 0.8, a=([1.0, 2.0], [3.0, 5.0]))}
    machine = {"cpu": "a processor", "cores": 2, "system": "Linux"}
    text = page({"machine": machine, "cases": found})
    assert "### aigc-images 0.8" in text
    assert "| `a` | 1.5 ± 6 | 4 ± 1" in text


def test_the_scenarios_are_as_many_as_their_names() -> None:
    found = list(cases())
    assert len({c.name for c in found}) == len(found) >= 25
    loads = {c.scenario.workload.load for c in found if c.group == "loads"}
    assert loads == {0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1}


def test_the_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))
