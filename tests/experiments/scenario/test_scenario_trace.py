"""Scenarios on recorded traces: classes, models and adapters from columns, and the real files end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from trimtab.errors import ScenarioError, TraceError
from trimtab.experiments.scenario import Scenario, resolve_scenario
from trimtab.experiments.scenario.build import RunInputs, build

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
CLUSTER = {"types": {"x": {"memory_gib": 80, "slots": 2}}, "nodes": [{"type": "x", "count": 2}]}

ROWS = {
    "arrival_s": [0.0, 1.0, 1.0, 4.0],
    "size": [2.0, 4.0, 6.0, 8.0],
    "class": ["a", "b", "a", None],
    "model": ["p", "q", "r", "p"],
    "adapter": ["u", None, None, "v"],
    "tenant": ["t", "t", None, "s"],
    "priority": [0, 1, 2, 0],
    "deadline_s": [5.0, None, 7.0, 9.0],
    "payload_gib": [0.5, None, 0.0, 1.0],
    "session": ["k", "k", None, "l"],
}


def built_from(folder: Path, rows: dict[str, Any], seed: int = 0, **content: Any) -> RunInputs:
    file = folder / "requests.csv"
    pl.DataFrame(rows).write_csv(file)
    trace = {"file": str(file), **content.pop("trace", {})}
    workload = {"trace": trace, **content.pop("workload", {})}
    return build(Scenario.model_validate({"cluster": CLUSTER, "workload": workload, **content}), seed)


SERVED = {
    "models": {"base": {"memory_gib": 4, "load_s": 1}},
    "adapters": {"lora": {"memory_gib": 0.1}},
    "classes": {"a": {"model": "base", "adapter": "lora", "unit_s": 1}, "b": {"unit_s": 2}},
}


def test_columns_of_a_trace_become_requests(tmp_path: Path) -> None:
    built = built_from(tmp_path, ROWS, **SERVED, trace={"default_class": "a"})
    work = built.requests.work
    assert work["arrival_s"].tolist() == [0, 1, 1, 4]
    assert work["class_idx"].tolist() == [0, 1, 0, 0]
    assert built.requests.truth["units"].tolist() == [2, 4, 6, 8]
    assert built.cluster.item_names == ("p", "r", "u", "v")
    assert work["model_idx"].tolist() == [0, -1, 1, 0]
    assert work["adapter_idx"].tolist() == [2, -1, -1, 3]
    assert built.requests.tenant_names == ("t", "unknown", "s")
    assert work["tenant_idx"].tolist() == [0, 0, 1, 2]
    assert work["priority"].tolist() == [0, 1, 2, 0]
    assert work["deadline_s"].tolist() == [5, np.inf, 8, 13]
    assert work["payload_gib"].tolist() == [0.5, 0, 0, 1]
    assert work["key"][0] == work["key"][1]
    assert len(set(work["key"])) == 3
    assert built.offered_load == pytest.approx((3 / 4) / built.capacity_per_s)


def test_drawn_adapters_vary_with_the_seed_and_the_trace_does_not(tmp_path: Path) -> None:
    rows = {"arrival_s": np.arange(200.0), "size": np.ones(200), "adapter": ["yes", None] * 100}
    served = {
        **SERVED,
        "adapters": {"lora": {"memory_gib": 0.1, "count": 9}},
        "classes": {"a": SERVED["classes"]["a"]},
    }
    first = built_from(tmp_path, rows, 0, **served, trace={"adapters": "drawn"}).requests.work
    other = built_from(tmp_path, rows, 1, **served, trace={"adapters": "drawn"}).requests.work
    assert (first["adapter_idx"][1::2] == -1).all()
    assert len(set(first["adapter_idx"][::2])) > 5
    assert (first["adapter_idx"] != other["adapter_idx"]).any()
    assert (first["arrival_s"] == other["arrival_s"]).all()


def test_each_seed_has_its_own_sample(tmp_path: Path) -> None:
    rows = {"arrival_s": np.arange(500.0), "size": np.arange(1.0, 501.0)}
    options = {"options": {"sample_frac": 0.2}}
    samples = [built_from(tmp_path, rows, seed, trace=options).requests.truth["units"] for seed in (0, 1, 0)]
    assert 60 < len(samples[0]) < 140
    assert set(samples[0]) != set(samples[1])
    assert (samples[0] == samples[2]).all()


def test_a_plain_trace_needs_no_classes_and_counts_seconds(tmp_path: Path) -> None:
    built = built_from(tmp_path, {"arrival_s": [0.0, 2.0], "size": [3.0, 5.0]})
    assert built.cluster.class_names == ("request",)
    assert built.requests.work["estimate_s"].tolist() == [3, 5]


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    assert len(built_from(tmp_path, {"arrival_s": [0.0, 2.0], "size": [3.0, 5.0]}).requests) == 2
    assert len(built_from(tmp_path, {"arrival_s": [0.0, 2.0, 3.0], "size": [3.0, 5.0, 1.0]}).requests) == 3


@pytest.mark.parametrize(
    ("rows", "trace", "field", "expected"),
    [
        ({"class": ["a", "z"]}, {}, "class_of", "'z'"),
        ({"class": ["a", None]}, {}, "class_of", "default_class"),
        ({}, {}, "default_class", "class_column"),
        ({"class": ["a", "b"]}, {"size_column": "sise"}, "size_column", "'size'"),
        ({"class": ["a", "b"], "priority": [1, 0]}, {"size_column": "priority"}, "size_column", "row 2"),
    ],
)  # fmt: skip
def test_a_trace_that_does_not_fit_the_scenario(
    tmp_path: Path, rows: dict[str, Any], trace: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        built_from(tmp_path, {"arrival_s": [0.0, 1.0], "size": [1.0, 2.0], **rows}, trace=trace, **SERVED)
    assert caught.value.field == f"workload.trace.{field}"
    assert "requests.csv" in str(caught.value)
    assert expected in str(caught.value.expected)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    spec = {"cluster": CLUSTER, "workload": {"trace": {"file": str(tmp_path / "gone.csv")}}}
    with pytest.raises(TraceError, match=r"gone\.csv"):
        build(Scenario.model_validate(spec), 0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "cluster", "rows", "classes", "n_models"),
    [
        ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz", "azure-chat.yaml", 19_366, ("chat",), 1),
        ("mooncake_fast25/conversation_trace.jsonl.gz", "azure-chat.yaml", 12_031, ("chat",), 1),
        ("alibaba_genai_2026/lora_request_trace.csv.gz", "genai.yaml", 14_033, ("image",), 71),
    ],
)  # fmt: skip
def test_real_traces_with_the_example_clusters(
    trace: str, cluster: str, rows: int, classes: tuple[str, ...], n_models: int
) -> None:
    file = DATA / trace
    if not file.exists():
        pytest.skip(f"{file} is not there")
    chosen = resolve_scenario(trace=file, cluster=ROOT / "examples" / "clusters" / cluster, load=0.7)
    built = build(chosen, 0)
    assert chosen.n_requests() == len(built.requests) == rows
    assert built.cluster.class_names == classes
    assert (built.cluster.item_is_adapter == 0).sum() == n_models
    assert built.offered_load == pytest.approx(0.7)
    assert built.n_fits_no_node == 0


@pytest.mark.data
def test_a_recognised_trace_needs_only_a_bare_cluster(tmp_path: Path) -> None:
    file = DATA / "alibaba_genai_2026" / "lora_request_trace.csv.gz"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    (tmp_path / "bare.yaml").write_text("types: {x: {memory_gib: 80}}\nnodes: [{type: x, count: 20}]\n")
    built = build(resolve_scenario(trace=file, cluster=tmp_path / "bare.yaml"), 0)
    assert built.cluster.class_names == ("image",)
    has_one = built.requests.work["adapter_idx"] >= 0
    assert has_one.mean() == pytest.approx(0.1513, abs=0.0005)
    assert built.trace is not None
    assert built.trace.dropped == {"FAILED": 233, "PENDING": 13}
