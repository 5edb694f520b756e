"""The page says what was measured, and all policies get the same requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bench.ages import without_age
from bench.llm_routers import (
    H100,
    L40S,
    MANY,
    OURS,
    PAGE,
    PUBLISHED,
    RESULTS,
    SEEDS,
    SEEDS_OF_MANY,
    TARGETS,
    Load,
    at_rate,
    cluster_of,
    engines,
    expected_output,
    goodput,
    highest_rate,
    requests_of,
    serve,
)
from bench.llm_routers_page import page

from trimtab.policies import find


def load(n: int = 40) -> Load:
    g = np.random.default_rng(4)
    return Load(np.ones(n), g.integers(10, 3000, n), g.integers(5, 300, n))


def test_a_roofline_decodes_at_the_bandwidth_and_reads_prompts_at_the_operations() -> None:
    assert H100.step_s == pytest.approx(0.00597, rel=1e-2)
    assert L40S.token_s == pytest.approx(8.84e-5, rel=1e-2)
    made = engines((H100, L40S), 1000.0)
    assert made.decode_s(0, 1, 1000.0) == pytest.approx(H100.step_s + 0.00202 + 1000 * H100.kv_token_s)
    assert (np.diff(made.slowdown, axis=1)[:, 1:] > 0.0).all()


def test_an_answer_is_expected_to_be_as_long_as_those_before_it() -> None:
    found = expected_output(Load(np.ones(4), np.array([100, 100, 1000, 100]), np.array([10, 30, 7, 99])))
    assert found.tolist() == [256.0, 10.0, 20.0, 20.0]


def test_the_highest_rate_is_found_by_halving() -> None:
    assert highest_rate(lambda rate: rate < 7.0) == pytest.approx(7.0, rel=0.02)


@pytest.mark.parametrize("policy", [*PUBLISHED, OURS])
def test_every_policy_serves_all_at_a_low_rate(policy: str) -> None:
    made = load()
    cluster = cluster_of(2, False, made)
    targets = TARGETS["TTFT"]
    spec = policy.format(ttft=targets.ttft_s, tpot=targets.tpot_s)
    assert find(spec)
    given = at_rate(requests_of(made, cluster), 0.2)
    assert np.diff(given.work["arrival_s"]) == pytest.approx(5.0)
    assert goodput(serve(cluster, given, spec, 1, mode="interpreted"), targets) == 1.0


def test_page_is_made_from_what_is_saved() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert without_age(PAGE) == page(saved)
    for cell in saved["cells"].values():
        seeds = SEEDS_OF_MANY if cell["replicas"] >= MANY else len(SEEDS)
        assert {len(rates) for rates in cell["rates"].values()} == {seeds}
