"""The page on chains says what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bench.ages import without_age
from bench.chains import PAGE, RESULTS
from bench.chains_page import LIST_SCHEDULERS, OURS, page

SAVED = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_results() -> None:
    assert without_age(PAGE) == page(SAVED)


def test_no_policy_ends_runs_sooner_than_the_bound() -> None:
    bound_s = np.array(SAVED["multimodal"]["bound_s"])
    for name, of_seeds in SAVED["multimodal"]["policies"].items():
        assert (np.array(of_seeds)[:, 0] >= bound_s).all(), name


def test_a_family_that_is_lost_is_marked_and_names_the_better_policy() -> None:
    """Two workflows of a family: 10 + 20 s against 12 + 14 s of peft, whose sum is the least."""
    takes_s = dict.fromkeys(LIST_SCHEDULERS, (30.0, 30.0)) | {OURS: (10.0, 20.0), "peft": (12.0, 14.0)}
    cases = {
        name: {
            "family": "f",
            "bound_s": [8.0],
            "policies": {policy: [taken_s[k]] for policy, taken_s in takes_s.items()},
        }
        for k, name in enumerate(("f-1", "f-2"))
    }
    text = page({"workflows": {"4 equal": cases}, "multimodal": {}})
    assert f"| f | **{30 / 26:.3f}** (`peft`), {30 / 16:.2f} |" in text
    assert f"| f-2 | 4 equal | {20 / 14:.3f} | `peft` | 2.50 |" in text
    assert "| f-1 |" not in text


@pytest.mark.parametrize("mean", [0, 1])
def test_ratios_pair_the_same_seeds(mean: int) -> None:
    """Twice as long in each seed is a ratio of a half without an interval, whatever the seeds."""
    ours = [[3.0, 9.0], [5.0, 20.0]]
    found = {"bound_s": [1.0, 1.0], "policies": {OURS: ours, "heft": [[6.0, 18.0], [10.0, 40.0]]}}
    row = next(
        line for line in page({"workflows": {}, "multimodal": found}).splitlines() if "| `heft` |" in line
    )
    assert row.split("|")[4 + mean].strip() == "0.500 ± 0.000"
