"""Prefill and decode on pools of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab as tt
from trimtab.domain.requests import Status
from trimtab.engine.driver import Driver
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.build.disaggregation import GIB
from trimtab.policies import find

EXAMPLE = Path(__file__).parents[3] / "examples" / "llm-disaggregated.yaml"
KV_BYTES = 131_072  # a token of Llama-3.1-8B in 16 bits


def _parts(requests: int = 300) -> dict[str, Any]:
    parts = load_scenario(EXAMPLE).model_dump(mode="json", exclude_defaults=True)
    parts["workload"]["generate"]["requests"] = requests
    return parts


def test_the_kv_memory_of_each_prompt_moves_once() -> None:
    run = tt.simulate(Scenario.model_validate(_parts()), "least-connections")
    table = run.requests
    assert (table["status"] == "finished").all()
    needs_decode = (table["output_tokens"] > 1).to_numpy()
    moved = table["prompt_tokens"].to_numpy()[needs_decode].sum() * KV_BYTES / GIB
    assert run.metrics["moved_gib"] == pytest.approx(moved)


def test_the_first_token_is_the_end_of_the_first_stage() -> None:
    run = tt.simulate(Scenario.model_validate(_parts()), "least-connections")
    stages = run.stages
    assert stages is not None
    ends = stages.filter(stages["stage"] == "chat.prefill")["finish_s"].to_numpy()
    first = run.requests["first_token_s"].to_numpy()
    assert np.sort(ends) == pytest.approx(np.sort(first))
    types = dict(zip(run.nodes["node"], run.nodes["type"], strict=True))
    for stage, kind in (("chat.prefill", "reader"), ("chat.decode", "maker")):
        nodes = stages.filter(stages["stage"] == stage)["node"].drop_nulls().unique()
        assert {types[node] for node in nodes} == {kind}


@pytest.mark.parametrize("faults", [(), ({"node": "maker-1", "at_s": 5, "duration_s": 10},)])
def test_one_event_for_many_iterations_changes_nothing(faults: tuple[dict[str, Any], ...]) -> None:
    built = build(Scenario.model_validate(_parts(120) | {"faults": list(faults)}), 0)
    outcomes = []
    for forward in (True, False):
        options = replace(built.options, fast_forward=forward)
        driver = Driver(built.cluster, built.requests, options, find("least-connections"), mode="interpreted")
        driver.advance()
        rows, sequences = driver.state.requests, driver.state.sequences
        outcomes.append((rows["finish_s"].tobytes(), sequences["first_token_s"].tobytes()))
        assert (rows["status"][:120] == Status.FINISHED).all()
    assert outcomes[0] == outcomes[1]


def _no_makers(parts: dict[str, Any]) -> None:
    parts["cluster"]["types"]["maker"]["service"]["role"] = "prefill"


def _beside_chains(parts: dict[str, Any]) -> None:
    parts["chains"] = {"film": {"stages": {"draw": {"class": "chat", "size": 1}}}}


@pytest.mark.parametrize(
    ("change", "expected"), [(_no_makers, "role: decode"), (_beside_chains, "no chains")]
)
def test_what_cannot_be_served_is_refused(change: Callable[[dict[str, Any]], None], expected: str) -> None:
    parts = _parts()
    change(parts)
    with pytest.raises(ScenarioError, match=expected):
        build(Scenario.model_validate(parts), 0)
