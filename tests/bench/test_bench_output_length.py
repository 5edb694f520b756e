"""Expected output lengths cost policies little: on the recorded hour, and on lengths drawn by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from bench.ages import without_age
from bench.output_length import METRICS, PAGE, POLICIES, RESULTS, scenario
from bench.output_length_page import AIMS, page, ratio

import trimtab as tt
from support.trace_files import recorded
from trimtab.experiments.scenario import Scenario


def test_page_is_made_from_what_is_saved_and_meets_its_aims() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert without_age(PAGE) == page(saved)
    for (policy, metric), most in AIMS.items():
        assert ratio(saved["cases"]["0.95"], policy, metric).mean <= most


def expected_over_true(true: Scenario, expected: Scenario) -> dict[tuple[str, str], float]:
    found = {}
    for policy in POLICIES:
        of_expected, of_true = (tt.simulate(of, policy).metrics for of in (expected, true))
        found |= {(policy, name): of_expected[name] / of_true[name] for name in METRICS}
    return found


@pytest.mark.data
def test_a_third_of_the_recorded_hour() -> None:
    recorded("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz")
    found = expected_over_true(scenario(0.95, "drawn", 1), scenario(0.95, "online-mean", 1))
    assert all(found[key] <= most + 0.02 for key, most in AIMS.items()), found


def test_lengths_that_prompts_explain_are_learned(tmp_path: Path) -> None:
    """Answers of 20 or 500 tokens by the length of the prompt, each with noise."""
    rng = np.random.default_rng(1)
    prompt = rng.choice([150, 3_000], 4_000)
    output = np.where(prompt < 1_000, 500, 20) * rng.lognormal(0.0, 0.3, len(prompt))
    table = {
        "arrival_s": np.cumsum(rng.exponential(1.0, len(prompt))),
        "prompt_tokens": prompt,
        "output_tokens": np.maximum(1, output).astype(int),
    }
    pl.DataFrame(table).write_csv(tmp_path / "chat.csv")
    parts = scenario(0.95, "drawn", 0).model_dump(mode="json", exclude_defaults=True)
    parts["workload"]["trace"] = {"file": str(tmp_path / "chat.csv")}
    true = Scenario.model_validate(parts)
    parts["workload"]["output_estimate"] = "online-mean"
    found = expected_over_true(true, Scenario.model_validate(parts))
    for policy in POLICIES:
        assert found[policy, "completion_mean_s"] <= AIMS[policy, "completion_mean_s"]
