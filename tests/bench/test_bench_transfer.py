"""The choice of docs/benchmarks/transfer.md by brute force; the thresholds are those of the command."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from bench.ages import without_age
from bench.transfer import PAGE, RESULTS
from bench.transfer_choice import ANEW, PRICE, Pair, choices, fitted, pairs_of, pooled, samples_to
from bench.transfer_page import page

from trimtab.learn.transfer import ANEW_FROM, AS_IS_BELOW, way_of


def pair(total: float, *losses: float, target: str = "t", source: str = "s") -> Pair:
    return Pair(target, source, total, dict(zip(("as-is", "fine-tuned", "anew"), losses, strict=True)))  # type: ignore[arg-type]


def test_regret_counts_the_price_of_a_training() -> None:
    found = pair(1.0, -0.02, -0.02 - 2 * PRICE, -0.02 - PRICE)
    assert found.regret("fine-tuned") == 0.0
    assert found.regret("as-is") == pytest.approx(PRICE)
    assert found.regret("anew") == pytest.approx(PRICE)


def test_fitted_thresholds_cost_least() -> None:
    draw = np.random.default_rng(1)
    pairs = [pair(total, *draw.normal(size=3)) for total in draw.random(7).tolist()]

    def cost(below: float, anew: float) -> float:
        return sum(p.cost(way_of(p.total, below, anew)) for p in pairs)

    grid = np.linspace(0.0, 1.01, 400).tolist()
    best = min(cost(below, anew) for below, anew in itertools.combinations_with_replacement(grid, 2))
    assert cost(*fitted(pairs)) == pytest.approx(best)
    apart = [pair(0.1, -1.0, 0.0, 0.0), pair(0.3, 0.0, -1.0, 0.0), pair(0.7, 0.0, 0.0, -1.0)]
    assert fitted(apart) == (0.2, 0.5)


def test_a_choice_is_fitted_without_the_family_that_it_is_judged_on() -> None:
    own = [pair(0.5, 9.0, 0.0, 9.0, target="t", source=source) for source in ("t", "u")]
    others = [
        pair(0.5, 0.0, 9.0, 9.0, target="u", source="u"),
        pair(0.5, 9.0, 0.0, 9.0, target="u", source="t"),
    ]
    ways = [way for judged, way in choices([*own, *others])["by the distance"] if judged.target == "t"]
    assert ways == ["as-is", "as-is"]  # what the pair of u alone says


def test_samples_to_a_gain_by_hand() -> None:
    curve = {"0": 0.0, "2": -0.1, "10": -0.5}
    assert samples_to(curve, 0.05, 72) == pytest.approx(72.0)
    assert samples_to(curve, 0.3, 10) == pytest.approx(60.0)
    assert samples_to(curve, 0.0, 72) == 0.0
    assert math.isinf(samples_to(curve, 0.6, 72))


def test_curves_are_means_over_targets_by_where_weights_come_from() -> None:
    def of(loss: float) -> dict[str, object]:
        return {"curve": {"0": [[loss, 0.0, 0.0], [loss + 2.0, 0.0, 0.0]]}}

    targets = {
        "a": {ANEW: of(0.0), "a": of(1.0), "b": of(2.0)},
        "b": {ANEW: of(4.0), "a": of(3.0), "b": of(5.0)},
    }
    found = pooled(targets)
    assert found == {ANEW: {"0": 3.0}, "same family": {"0": 4.0}, "other families": {"0": 3.5}}
    assert pooled(targets, {"a": [0, 0], "b": [1, 1]})["same family"]["0"] == 4.0


def test_page_and_thresholds_are_those_of_the_saved_figures() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert without_age(PAGE) == page(saved)
    below, anew = fitted(pairs_of(saved["targets"], saved["setting"]["budget"]))
    assert pytest.approx((below, anew), abs=0.005) == (AS_IS_BELOW, ANEW_FROM)
