"""Scenarios whose nodes serve a batch: what is built, measured and refused."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import trimtab as tt
from trimtab.domain.engines import LANGUAGE_MODEL, SHARED
from trimtab.domain.requests import Reason
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import load_cluster
from trimtab.experiments.scenario.spec.node_services import TableService
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
    assert run.bound is not None
    assert run.bound.mean_s < metrics["completion_mean_s"]
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


SECONDS = {1: {100: 1.0, 300: 2.0}, 4: {100: 1.6, 300: 5.0}}
CSV = "batch,size,seconds\n1,100,0.9\n1,100,1.1\n1,300,2\n4,300,5\n4,100,1.6\n"


def _measured(tmp_path: Path, size: Any = 200, text: str = CSV, **service: Any) -> dict[str, Any]:
    (tmp_path / "measured.csv").write_text(text)
    parts = _parts(
        service={"kind": "table", **(service or {"file": str(tmp_path / "measured.csv")})}, slots=2
    )
    parts["workload"]["generate"]["mix"]["chat"]["size"] = size
    return parts


def test_seconds_by_number_and_size_from_a_file_and_from_the_scenario(tmp_path: Path) -> None:
    """Among two 100 takes 1.2 s and 300 takes 3 s: a line from 0.3 s on, by 9 ms a unit."""
    sizes = {"distribution": "choice", "values": {100: 1, 300: 1}}
    from_file, given = (
        build(_scenario(_measured(tmp_path, sizes, **service)), 0) for service in ({}, {"seconds": SECONDS})
    )
    for built in (from_file, given):
        engines = built.cluster.engines
        assert engines is not None
        assert engines.types[["service", "batch_max", "sizes"]][0].tolist() == (SHARED, 4, 2)
        assert engines.measured_s[0, 1:] == pytest.approx(np.array([[1, 2], [1.2, 3], [1.4, 4], [1.6, 5]]))
        assert (built.cluster.fixed_s[0, 0], built.cluster.unit_s[0, 0]) == pytest.approx((0.3, 0.009))
        assert engines.slowdown[0, 2] == 1.0
    assert from_file.requests.work.tobytes() == given.requests.work.tobytes()
    assert tt.simulate(_scenario(_measured(tmp_path)), "round-robin").metrics["finished_frac"] == 1.0


def test_paths_of_a_cluster_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(
        "types: {gpu: {memory_gib: 24, service: {kind: table, file: measured.csv}}}\n"
        "nodes: [{type: gpu}]\nclasses: {chat: {}}\n"
    )
    service = load_cluster(tmp_path / "gpus.yaml").cluster.types["gpu"].service
    assert isinstance(service, TableService)
    assert service.file == tmp_path / "measured.csv"


def test_sizes_beyond_the_largest_measured_one_are_rejected(tmp_path: Path) -> None:
    sizes = {"distribution": "choice", "values": {300: 1, 301: 1}}
    run = tt.simulate(_scenario(_measured(tmp_path, sizes)), "least-connections")
    reasons, units = run.records.requests.reason, run.requests["units"].to_numpy()
    assert (reasons[units > 300] == Reason.FITS_NO_NODE).all()
    assert run.records.requests.finished[units == 300].all()
    assert 0.0 < run.metrics["finished_frac"] < 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,size\n1,100\n", r"measured\.csv: unknown columns .*also the columns seconds"),
        ("batch,size,seconds\n", r"measured\.csv: no rows"),
        ("batch,size,seconds\n1.5,100,1\n", r"row 1: batch: .*'1\.5'.*a whole number from 1 on"),
        ("batch,size,seconds\n1,100,1\n2,100,0\n", r"row 2: seconds: .*'0'.*a number above 0"),
        ("batch,size,seconds\n1,100,-1\n", r"line 2: seconds: .*'-1'.*a number from 0 on"),
        ("batch,size,seconds\n1,100,1\n2,300,1\n", r"size: .*got 300\.0.*a row with batch 1"),
    ],
)
def test_measurements_that_make_no_table_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(_scenario(_measured(tmp_path, text=text)), 0)


@pytest.mark.parametrize(
    ("service", "message"),
    [
        (
            {"seconds": {1: {100: 1}, 2: {200: 1}}},
            "every size at every number .*, also size 200 at 1",
        ),
        ({"seconds": {0: {100: 1}}}, "greater than or equal to 1"),
        ({"seconds": SECONDS, "slowdown": {1: 1}}, "one of slowdown, seconds and file"),
        ({"slowdown": None}, "one of slowdown, seconds and file"),
    ],
)
def test_a_table_is_given_once_and_whole(tmp_path: Path, service: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _scenario(_measured(tmp_path, **service))


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
