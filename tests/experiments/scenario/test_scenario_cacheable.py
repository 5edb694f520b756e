"""Prompts and equal requests of a scenario: from traces and drawn, and what becomes of them in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from trimtab.domain.policy import Decider
from trimtab.engine.simulator import run
from trimtab.errors import ScenarioError
from trimtab.experiments.bounds import bound_of
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.serving.run import Run, simulate
from trimtab.policies import find

DATA = Path(__file__).parents[3].parent / "shared" / "data"
MOONCAKE = DATA / "mooncake_fast25" / "conversation_trace.jsonl.gz"
TOKEN_UNITS = 0.05
CHAT = {"chat": {"unit_s": 0.01, "prompt_token_units": TOKEN_UNITS}}
ROWS = {
    "arrival_s": [0.0, 1.0, 2.0, 3.0],
    "size": [50.0, 50.0, 50.0, 50.0],
    "prompt_tokens": [250, 100, None, 900],
    "prefix_blocks": ["[70, 5, 9]", "[70]", None, "[70, 5, 11]"],
    "content": ["a", "b", None, "a"],
    "tenant": ["t", "u", "t", "u"],
}


def scenario(workload: dict[str, Any], classes: dict[str, Any] | None = None, **serving: Any) -> Scenario:
    cluster = {"types": {"x": {"memory_gib": 80, "slots": 2}}, "nodes": [{"type": "x", "count": 2}]}
    content = {"cluster": cluster, "classes": classes or CHAT, "workload": workload, "serving": serving}
    return Scenario.model_validate(content)


def recorded(folder: Path, trace: dict[str, Any] | None = None, **serving: Any) -> RunInputs:
    file = folder / "requests.csv"
    pl.DataFrame(ROWS).write_csv(file)
    return build(scenario({"trace": {"file": str(file), **(trace or {})}}, **serving), 0)


def drawn(n: int = 400, load: float = 0.5, **parts: Any) -> dict[str, Any]:
    arrival = {"process": "poisson", "rate_per_s": 5.0}
    generate = {"requests": n, "arrival": arrival, "mix": {"chat": {"share": 1}}, "size": 40}
    return {"generate": generate, "load": load, **parts}


PROMPTS = {"count": 5, "zipf": 1.0, "shared_tokens": 700, "own_tokens": 150, "block_tokens": 100}


def test_prompts_of_a_trace_become_blocks(tmp_path: Path) -> None:
    made = recorded(tmp_path, {"block_tokens": 100}, prefix_cache={"blocks": 10}).requests.prefixes
    assert made is not None
    assert made.first.tolist() == [0, 3, 4, 4, 7]
    a, b, c, same, first, second, other = made.block_idx.tolist()
    assert len({a, b, c, other}) == 4 == made.n_blocks
    assert (same, first, second) == (a, a, b)
    assert made.prompt_tokens.tolist() == [250, 100, 0, 300]  # as far as the blocks go


def test_without_a_prefix_cache_nothing_is_read(tmp_path: Path) -> None:
    assert recorded(tmp_path).requests.prefixes is None


def test_blocks_of_unknown_size_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"workload\.trace\.block_tokens"):
        recorded(tmp_path, prefix_cache={"blocks": 10})


def test_equal_contents_of_one_tenant_are_equal_requests(tmp_path: Path) -> None:
    numbers = recorded(tmp_path, result_cache={"entries": 5}).requests.content_idx
    assert numbers is not None
    assert (numbers >= 0).tolist() == [True, True, False, True]
    assert len(set(numbers.tolist())) == 4  # a is asked by two tenants


def test_only_tenants_that_chose_it_use_the_result_cache(tmp_path: Path) -> None:
    numbers = recorded(tmp_path, result_cache={"entries": 5, "tenants": ["u"]}).requests.content_idx
    assert numbers is not None
    assert (numbers >= 0).tolist() == [False, True, False, True]


def test_a_tenant_that_there_is_not_cannot_choose_the_result_cache(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"serving\.result_cache\.tenants.*nobody") as error:
        recorded(tmp_path, result_cache={"entries": 5, "tenants": ["u", "nobody"]})
    assert error.value.value == "nobody"


def test_drawn_prompts_share_their_beginnings_and_add_their_work() -> None:
    built = build(scenario(drawn(prompts=PROMPTS)), 3)
    made = built.requests.prefixes
    assert made is not None
    chains = np.split(made.block_idx, made.first[1:-1])
    assert {len(chain) for chain in chains} == {9}  # 850 tokens in blocks of 100
    assert len({tuple(chain[:7]) for chain in chains}) == 5
    own = np.concatenate([chain[7:] for chain in chains])
    assert len(set(own.tolist())) == len(own) == 2 * len(chains)
    assert built.requests.truth["units"] == pytest.approx(40 + TOKEN_UNITS * 850)


def test_prompts_change_nothing_else_that_is_drawn() -> None:
    with_prompts, without = build(scenario(drawn(load=1e-9, prompts=PROMPTS)), 3), build(scenario(drawn()), 3)
    gaps = [np.diff(b.requests.work["arrival_s"]) for b in (with_prompts, without)]
    ratio = gaps[0] / gaps[1]
    assert ratio == pytest.approx(ratio[0])


def test_drawn_contents_are_equal_in_all_that_costs() -> None:
    sizes = {"distribution": "exponential", "mean": 30}
    workload = drawn(contents={"count": 10, "zipf": 1.0, "repeatable_frac": 0.7})
    workload["generate"]["size"] = sizes
    built = build(scenario(workload, result_cache={"entries": 3}), 1)
    numbers, units = built.requests.content_idx, built.requests.truth["units"]
    assert numbers is not None
    assert np.mean(numbers >= 0) == pytest.approx(0.7, abs=0.07)
    for number in range(10):
        assert len(set(units[numbers == number])) == 1
    assert len(set(units[numbers < 0])) == np.count_nonzero(numbers < 0)


def test_prompts_and_contents_together_are_refused() -> None:
    with pytest.raises(ValueError, match="either prompts or contents"):
        scenario(drawn(prompts=PROMPTS, contents={"count": 10}))


def _figures(run: Run) -> tuple[float, float]:
    return run.metrics["prefix_hit_frac"], run.metrics["result_hit_frac"]


def test_hit_rates_are_metrics_and_nan_without_caches() -> None:
    plain = simulate(scenario(drawn(prompts=PROMPTS)), "round-robin", mode="interpreted")
    assert np.isnan(_figures(plain)).all()
    cached = simulate(
        scenario(drawn(prompts=PROMPTS), prefix_cache={"blocks": 200}), "round-robin", mode="interpreted"
    )
    assert 0.7 < _figures(cached)[0] < 700 / 850
    assert cached.metrics["completion_mean_s"] < plain.metrics["completion_mean_s"]
    contents = drawn(contents={"count": 10, "zipf": 1.0})
    answered = simulate(scenario(contents, result_cache={"entries": 10}), "round-robin", mode="interpreted")
    assert 0.8 < _figures(answered)[1] < 1.0
    assert answered.nodes["finished"].sum() < 400 == answered.metrics["finished_frac"] * 400


def test_no_bound_is_claimed_where_caches_take_work_off() -> None:
    for parts, serving in (
        ({"prompts": PROMPTS}, {"prefix_cache": {"blocks": 9}}),
        ({"contents": {"count": 3}}, {"result_cache": {"entries": 3}}),
    ):
        built = build(scenario(drawn(**parts), **serving), 0)
        assert bound_of(built.cluster, built.requests, built.options) is None


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the Mooncake trace, which is not committed")
def test_an_endless_cache_hits_as_many_blocks_as_the_trace_is_known_for() -> None:
    spec = {
        "cluster": {"types": {"x": {"memory_gib": 80, "slots": 200}}, "nodes": [{"type": "x"}]},
        "classes": CHAT,
        "workload": {"trace": {"file": str(MOONCAKE)}},
        "serving": {"prefix_cache": {"blocks": 200_000}},
    }
    built = build(Scenario.model_validate(spec), 0)
    made = built.requests.prefixes
    assert made is not None
    assert len(built.requests) == 12_031
    whole = replace(made, prompt_tokens=np.diff(made.first) * made.block_tokens)  # to count blocks
    requests = replace(built.requests, prefixes=whole)
    counts = run(built.cluster, requests, built.options, Decider.of(find("round-robin")[0])).state.counts
    assert counts["cached_tokens"][0] / counts["prompt_tokens"][0] == pytest.approx(0.366, abs=0.0005)
