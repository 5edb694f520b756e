"""Replicas that span hosts: they start together and fail together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trimtab as tt
from trimtab.engine.simulator import run
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import parse_scenario
from trimtab.policies import find

HOSTS, LOAD_S = 4, 5.0
SCENARIO = f"""
name: spanning
cluster:
  types:
    replica:
      accelerators: 8
      memory_gib: 640
      usd_per_hour: 16.0
      paid_while_down: false
      resources: {{cpu_cores: 64}}
      service: {{kind: llm, profile: rtx4090-llama-3.1-8b, hosts: {HOSTS}}}
  nodes: [{{type: replica, name: big}}]
models: {{m: {{memory_gib: 16, load_s: {LOAD_S}}}}}
classes: {{chat: {{unit: output token, prompt_token_units: 0.05, model: m}}}}
workload:
  generate:
    requests: 30
    arrival: {{process: poisson, rate_per_s: 1.0}}
    mix:
      chat:
        share: 1
        size: {{sum: {{prompt_tokens: 100, output_tokens: 50}}, weights: {{prompt_tokens: 0.05}}}}
"""


def _scenario(faults: list[dict[str, Any]], **sections: Any) -> Scenario:
    parts = parse_scenario(SCENARIO).model_dump(exclude_unset=True) | {"faults": faults} | sections
    return Scenario.model_validate(parts)


def _hosts(count: int, at_s: float, duration_s: float) -> dict[str, Any]:
    return {"node": "big", "share_frac": count / HOSTS, "at_s": at_s, "duration_s": duration_s}


def test_a_replica_is_down_while_any_of_its_hosts_is_and_then_loads_its_model() -> None:
    """Hosts are down from 10 to 30 s and from 20 to 50 s, so the replica is from 10 to 50 s."""
    made = tt.simulate(_scenario([_hosts(1, 10.0, 20.0), _hosts(2, 20.0, 30.0)]), "round-robin")
    start_s, finish_s = (made.requests[name].to_numpy() for name in ("start_s", "finish_s"))
    waited = finish_s > 10.0
    assert 0 < waited.sum() < len(waited)
    assert start_s[waited].min() == 50.0
    assert made.requests["first_token_s"].to_numpy()[waited].min() > 50.0 + LOAD_S
    window_s = made.records.end_s - made.records.start_s
    assert made.metrics["usd"] == pytest.approx(16.0 * (window_s - 40.0) / 3600.0)
    assert made.records.nodes.accelerators.tolist() == [8.0]


def test_hosts_fail_each_by_itself() -> None:
    """A host is up for 3 of 4 parts of its time, so a replica for 0.75^4; it fails HOSTS times as often."""
    mtbf_s, mttr_s, replicas = 300.0, 100.0, 12
    parts = parse_scenario(SCENARIO).model_dump(exclude_unset=True)
    parts["cluster"]["nodes"] = [{"type": "replica", "count": replicas}]
    parts["workload"]["generate"] |= {
        "requests": 60,
        "arrival": {"process": "poisson", "rate_per_s": 0.0005},
    }
    inputs = build(Scenario.model_validate(parts | {"faults": [{"mtbf_s": mtbf_s, "mttr_s": mttr_s}]}), 0)
    state = run(inputs.cluster, inputs.requests, inputs.options, find("round-robin")).state
    down = state.nodes["up"] == 0
    end_s = state.requests["finish_s"].max()
    down_s = state.hidden["down_s"].sum() + (end_s - state.hidden["down_since_s"][down]).sum()
    up_s = replicas * end_s - down_s
    assert up_s / (replicas * end_s) == pytest.approx((mtbf_s / (mtbf_s + mttr_s)) ** HOSTS, rel=0.05)
    assert up_s / state.counts["node_failures"][0] == pytest.approx(mtbf_s / HOSTS, rel=0.05)


def test_the_slowest_host_sets_the_speed() -> None:
    usual = tt.simulate(_scenario([]), "round-robin")
    slowed = tt.simulate(_scenario([_hosts(1, 0.0, 1e4) | {"factor": 0.5}]), "round-robin")
    first = [made.requests["finish_s"][0] - made.requests["start_s"][0] - LOAD_S for made in (usual, slowed)]
    assert first[1] == pytest.approx(2.0 * first[0])


def test_background_work_is_on_hosts() -> None:
    given = {"resource": "cpu_cores", "level_frac": 0.5, "share_frac": 0.5}
    faults = build(_scenario([], background=[given]), 0).options.faults
    assert faults is not None
    assert faults["amount"].tolist() == [8.0, 8.0]  # half of 16 cores, on two of four hosts


def test_a_fraction_is_one_of_hosts() -> None:
    parts = parse_scenario(SCENARIO).model_dump(exclude_unset=True)
    parts["cluster"]["nodes"] = [{"type": "replica", "count": 5}]
    fault = {"share_frac": 0.4, "at_s": 1.0, "duration_s": 1.0}
    faults = build(Scenario.model_validate(parts | {"faults": [fault]}), 3).options.faults
    assert faults is not None
    assert len(faults) == round(0.4 * 5 * HOSTS)
    assert np.bincount(faults["node_idx"]).max() <= HOSTS


def test_accelerators_are_those_of_all_hosts() -> None:
    with pytest.raises(ScenarioError, match=r"cluster\.types\.replica\.accelerators.*6.*all 4 hosts"):
        parse_scenario(SCENARIO.replace("accelerators: 8", "accelerators: 6"))
