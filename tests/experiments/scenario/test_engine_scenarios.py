"""Scenarios whose nodes serve a batch: what is built, measured and refused."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab as tt
from trimtab.domain.engines import LANGUAGE_MODEL, SHARED
from trimtab.domain.requests import Reason
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.serving.objectives import objectives_of

PROFILE = "rtx4090-llama-3.1-8b"
TOKENS = {
    "sum": {
        "prompt_tokens": {"distribution": "lognormal", "mean": 800, "cv": 1.0},
        "output_tokens": {"distribution": "lognormal", "mean": 150, "cv": 0.8},
    },
    "weights": {"prompt_tokens": 0.05},
}


def _parts(**node_type: Any) -> dict[str, Any]:
    service = {"service": {"kind": "llm", "profile": PROFILE}}
    return {
        "name": "replicas",
        "cluster": {
            "types": {"gpu": {"memory_gib": 24, **service, **node_type}},
            "nodes": [{"type": "gpu", "count": 3}],
        },
        "classes": {"chat": {"unit": "output token", "prompt_token_units": 0.05}},
        "workload": {
            "generate": {
                "requests": 400,
                "arrival": {"process": "poisson", "rate_per_s": 5},
                "mix": {"chat": {"share": 1, "size": copy.deepcopy(TOKENS)}},
            },
            "load": 0.7,
        },
        "policies": ["least-connections"],
    }


def _scenario(parts: dict[str, Any]) -> Scenario:
    return Scenario.model_validate(parts)


def test_slots_and_load_follow_from_the_profile() -> None:
    built = build(_scenario(_parts()), 0)
    assert built.cluster.engines is not None
    kind = built.cluster.engines.types[0]
    assert (kind["service"], kind["kv_tokens"]) == (LANGUAGE_MODEL, 41_408)
    work, truth = built.requests.work, built.requests.truth
    held = work["input_tokens"].mean() + 0.5 * truth["output_tokens"].mean()
    assert built.cluster.slots.tolist() == [int(41_408 / held)] * 3
    rate_per_s = (len(work) - 1) / np.ptp(work["arrival_s"])
    assert rate_per_s == pytest.approx(0.7 * built.capacity_per_s)


def test_engines_sustain_what_load_1_says() -> None:
    """Below it queues stay short, above it they grow with the trace."""
    parts = _parts()
    parts["workload"]["generate"]["requests"] = 3_000
    waits_s = {}
    for load in (0.8, 1.3):
        parts["workload"]["load"] = load
        waits_s[load] = tt.simulate(_scenario(parts), "least-connections").metrics["ttft_p99_s"]
    assert waits_s[0.8] < 3.0
    assert waits_s[1.3] > 10.0


def test_a_run_tells_tokens() -> None:
    parts = _parts()
    parts["classes"]["chat"] |= {"slo_ttft_s": 0.2, "slo_tpot_s": 1.0}
    run = tt.simulate(_scenario(parts), "least-connections")
    table, metrics = run.requests, run.metrics
    ttft_s = (table["first_token_s"] - table["arrival_s"]).to_numpy()
    assert metrics["ttft_mean_s"] == pytest.approx(ttft_s.mean())
    further = (table["output_tokens"] - 1).to_numpy()
    tpot_s = (table["finish_s"] - table["first_token_s"]).to_numpy()[further > 0] / further[further > 0]
    assert metrics["tpot_p99_s"] == pytest.approx(np.percentile(tpot_s, 99))
    assert metrics["slo_attained_frac"] == pytest.approx((ttft_s <= 0.2).mean())
    counts = run.records.tokens.itl_count  # type: ignore[union-attr]
    assert counts.sum() == further.sum()  # every token after the first, none preempted here
    assert 0.5 < metrics["itl_p50_s"] / np.median(tpot_s) < 1.5
    assert run.bound is None
    assert 0.0 < metrics["utilisation_mean_frac"] <= 1.0


def test_prompts_with_shared_beginnings_are_read_less() -> None:
    parts = _parts()
    parts["workload"]["prompts"] = {"count": 5, "shared_tokens": 1_024, "own_tokens": 64, "block_tokens": 16}
    run = tt.simulate(_scenario(parts), "prefix-affinity")
    assert run.metrics["prefix_hit_frac"] > 0.8
    assert (
        run.metrics["ttft_p50_s"]
        < tt.simulate(_scenario(_parts()), "least-connections").metrics["ttft_p50_s"]
    )


def test_a_measured_slowdown_and_a_shared_processor() -> None:
    parts = _parts(service={"kind": "table", "slowdown": {1: 1.0, 8: 2.0}}, slots=4)
    parts["classes"]["chat"]["unit_s"] = 0.01
    built = build(_scenario(parts), 0)
    assert built.cluster.engines is not None
    assert built.cluster.engines.types["service"][0] == SHARED
    assert built.cluster.engines.slowdown[0] == pytest.approx([1.0, *np.linspace(1.0, 2.0, 8)])
    assert tt.simulate(_scenario(parts), "least-expected-completion").metrics["finished_frac"] == 1.0


def test_prompts_that_no_memory_holds_are_rejected() -> None:
    parts = _parts(service={"kind": "llm", "profile": PROFILE, "kv_tokens": 900})
    run = tt.simulate(_scenario(parts), "least-connections")
    tokens = run.requests["prompt_tokens"] + run.requests["output_tokens"]
    too_long = (tokens > 900).to_numpy()
    assert 0 < too_long.sum() < len(too_long)
    assert (run.records.requests.reason[too_long] == Reason.FITS_NO_NODE).all()
    assert run.records.requests.finished[~too_long].all()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda p: p["classes"]["chat"].update(batch={"marginal_frac": 0.5}), "classes.chat.batch"),
        (lambda p: p["classes"]["chat"].update(split={"part_units": 10}), "classes.chat.split"),
        (
            lambda p: p["workload"]["generate"]["mix"]["chat"].update(size=100),
            "cluster.types.gpu.service",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(change: Any, field: str) -> None:
    parts = _parts()
    change(parts)
    with pytest.raises(ScenarioError, match=field):
        build(_scenario(parts), 0)


def test_targets_of_tokens_need_engines() -> None:
    parts = _parts()
    parts["cluster"]["types"]["gpu"] = {"memory_gib": 24, "slots": 8}
    parts["classes"]["chat"] |= {"unit_s": 0.02, "slo_ttft_s": 1.0}
    with pytest.raises(ScenarioError, match=r"classes\.chat\.slo_ttft_s"):
        build(_scenario(parts), 0)


def test_a_profile_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=rf"cluster\.types\.gpu\.service\.profile.*{PROFILE}"):
        build(_scenario(_parts(service={"kind": "llm", "profile": "rtx4090-llama-3.1-8"})), 0)


def test_objectives_of_tokens() -> None:
    ttft, tpot, share = objectives_of("ttft_p99<2s, tpot_p99<80ms, goodput>0.95")
    assert (ttft.metric, tpot.value, share.metric) == ("ttft_p99_s", 0.08, "slo_attained_frac")


@pytest.mark.parametrize("policy", ["auto", "what-if"])
def test_policies_that_simulate_ahead_do_so_on_engines(policy: str) -> None:
    parts = _parts()
    parts["workload"]["generate"]["requests"] = 200
    run = tt.simulate(_scenario(parts), policy)
    assert run.metrics["finished_frac"] == 1.0
    assert run.planning.made > 0
    assert run.planning.raised == run.planning.invalid == 0


DATA = Path(__file__).parents[4] / "shared" / "data" / "azure_llm_2023"


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data/azure_llm_2023")
def test_the_example_cluster_serves_the_trace_of_its_comment() -> None:
    trace = DATA / "AzureLLMInferenceTrace_conv.csv.gz"
    cluster = Path(__file__).parents[3] / "examples" / "clusters" / "llm-rtx4090.yaml"
    run = tt.simulate(trace=trace, cluster=cluster, policy="least-connections")
    assert run.metrics["finished_frac"] == 1.0
    assert run.inputs.offered_load == pytest.approx(0.78, abs=0.02)


def test_each_turn_begins_with_the_one_before_and_its_answer() -> None:
    parts = _parts()
    parts["workload"]["sessions"] = {"count": 40, "zipf": 0.0}
    parts["workload"]["prompts"] = {
        "count": 3,
        "shared_tokens": 100,
        "own_tokens": {"distribution": "exponential", "mean": 50},
        "block_tokens": 16,
        "turns_max": 4,
    }
    built = build(_scenario(parts), 0).requests
    assert built.prefixes is not None
    first, blocks = built.prefixes.first, built.prefixes.block_idx
    prompts = [blocks[first[i] : first[i + 1]] for i in range(len(built))]
    tokens, output = built.work["input_tokens"], built.truth["output_tokens"]
    continued = 0
    for key in np.unique(built.work["key"]):
        rows = np.flatnonzero(built.work["key"] == key)
        for k, (before, after) in enumerate(itertools.pairwise(rows)):
            whole = int(tokens[before] // 16)
            if (k + 1) % 4:
                assert tokens[after] >= tokens[before] + output[before]
                assert prompts[after][:whole].tolist() == prompts[before][:whole].tolist()
                continued += 1
            else:
                shared = np.intersect1d(prompts[after], prompts[before])
                assert len(shared) <= 100 // 16
    assert continued > 100


def test_turns_need_sessions() -> None:
    parts = _parts()
    parts["workload"]["prompts"] = {"count": 3, "shared_tokens": 100, "own_tokens": 50, "turns_max": 4}
    with pytest.raises(ScenarioError, match=r"workload\.prompts\.turns_max"):
        build(_scenario(parts), 0)


def test_expected_answers_are_the_mean_of_earlier_ones_to_prompts_as_long() -> None:
    parts = _parts()
    parts["workload"]["output_estimate"] = "online-mean"
    built = build(_scenario(parts), 0).requests
    prompt, output = built.work["input_tokens"], built.truth["output_tokens"]
    part, exponent = np.frexp(prompt.astype(float))
    octave = 4 * exponent + np.floor(8 * (part - 0.5))
    for i in (50, 200, 399):
        same = output[:i][octave[:i] == octave[i]]
        assert built.work["output_tokens"][i] == round((same if len(same) else output[:i]).mean())
        known = built.truth["units"][i] - output[i] + built.work["output_tokens"][i]
        assert built.work["units"][i] == pytest.approx(known, abs=0.51)
    assert built.work["output_tokens"][0] == 200
