"""The page about privacy, from figures made up here."""

from __future__ import annotations

import pytest
from bench.privacy_page import off, page


def entry(tau: float, mean_s: float) -> dict[str, object]:
    five = [{"policy": "a", "mean_s": [2.0, mean_s], "p99_s": [4.0, 4.0]}]
    fleet = {"usd_per_hour": [10.0, 11.0]}
    return {
        "policies": 9,
        "mean_tau": tau,
        "p99_tau": 1.0,
        "regret_frac": 0.02,
        "best_five": five,
        "fleet": fleet,
    }


def test_every_release_is_in_the_page_and_refusals_are() -> None:
    moved = {"original, other seeds": [entry(1.0, 2.0)], "0.5": [], "1": [entry(0.5, 2.2), entry(1.0, 2.4)]}
    machine = {"cpu": "C", "cores": 2, "system": "S", "load_average": 1.0}
    cases = {"t": {"title": "A trace", "slo": "completion_p99<9s", "moved": moved}}
    text = page({"machine": machine, "share": {"cases": cases}})
    assert "| 1 | 2 | 0.75 [0.50, 1.00] | 1.00 | 2.0 | 15.0 [10.0, 20.0] | 0.0 | 1.10 |" in text
    assert "| 0.5 | 0 | refused: too small a table |" in text
    assert "9 policies" in text
    assert "| 1 | 0.0" in text  # the strongest attack at ε = 1 gains less than a tenth


def test_what_is_off_is_the_mean_over_the_best_policies() -> None:
    five = [{"mean_s": [1.0, 1.1]}, {"mean_s": [2.0, 1.4]}]
    assert off({"best_five": five}, "mean_s") == pytest.approx(20.0)
