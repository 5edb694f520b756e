"""Loading, hashing, overriding and exporting scenarios."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.experiments.scenario import (
    ClusterPart,
    Scenario,
    builtin_names,
    builtin_text,
    load_cluster,
    load_scenario,
    parse_scenario,
    resolve_scenario,
    scenario_schema,
)

CLUSTERS = Path(__file__).parents[3] / "examples" / "clusters"


def test_the_built_ins_are_there() -> None:
    expected = "aigc-images edge-cloud llm-agents llm-chat multimodal network regime-change tiny workflows"
    assert builtin_names() == tuple(expected.split())


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_survives_the_round_trip(name: str) -> None:
    scenario = load_scenario(name)
    again = parse_scenario(scenario.model_dump_json(exclude_defaults=True), "elsewhere.yaml")
    assert again == scenario
    assert again.hash() == scenario.hash()
    assert parse_scenario(builtin_text(name), "elsewhere.yaml") == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    assert hash(copy.deepcopy(scenario)) == hash(scenario)


def test_the_hash_ignores_form_and_sees_content() -> None:
    text = builtin_text("tiny")
    scenario = parse_scenario(text)
    bare = "\n".join(line.split(" #")[0] for line in text.splitlines() if not line.startswith("#"))
    assert parse_scenario(bare).hash() == scenario.hash()
    assert parse_scenario(text.replace("load: 0.7", "load: 7.0e-1")).hash() == scenario.hash()
    assert parse_scenario(text + "serving: {lookahead: 1}\n").hash() == scenario.hash()
    assert parse_scenario(text.replace("load: 0.7", "load: 0.71")).hash() != scenario.hash()
    assert scenario.with_overrides(seeds=4).hash() != scenario.hash()


def test_a_trace_counts_by_name_not_by_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    text = "cluster: {types: {x: {memory_gib: 1}}, nodes: [{type: x}]}\nworkload: {trace: {file: t.csv}}\n"
    here = tmp_path / "a" / "s.yaml"
    here.write_text(text)
    loaded = load_scenario(here)
    assert loaded.workload.trace is not None
    assert loaded.workload.trace.file == tmp_path / "a" / "t.csv"
    assert loaded.hash() == parse_scenario(text, "s.yaml").hash()
    assert loaded.name == "s"


def test_overrides_replace_only_what_is_given() -> None:
    tiny = load_scenario("tiny")
    changed = tiny.with_overrides(load=0.9, policies=["random"], seeds=[4, 7])
    assert changed.workload.load == 0.9
    assert changed.policies == ("random",)
    assert changed.seed_list() == (4, 7)
    assert changed.cluster == tiny.cluster
    assert changed.workload.generate == tiny.workload.generate
    assert tiny.with_overrides() == tiny
    assert tiny.with_overrides(seeds=2).seed_list() == (0, 1)


def test_a_policy_may_be_two_keys() -> None:
    text = builtin_text("tiny").replace(
        "[round-robin, ", "[{policy: random, order: edf}, {policy: round-robin}, "
    )
    assert parse_scenario(text).policies[:2] == ("random+edf", "round-robin")


def test_a_cluster_comes_bare_under_its_key_or_in_a_scenario(tmp_path: Path) -> None:
    bare, keyed = tmp_path / "bare.yaml", tmp_path / "keyed.yaml"
    bare.write_text("types: {x: {memory_gib: 80}}\nnodes: [{type: x, count: 3}]\n")
    keyed.write_text("cluster:\n  types: {x: {memory_gib: 80}}\n  nodes: [{type: x, count: 3}]\n")
    (tmp_path / "whole.yaml").write_text(builtin_text("tiny"))
    assert load_cluster(bare) == load_cluster(keyed)
    assert load_cluster(tmp_path / "whole.yaml").cluster == load_scenario("tiny").cluster
    swapped = resolve_scenario("tiny", cluster=bare)
    assert len(list(swapped.cluster.each_node())) == 3
    assert swapped.classes == load_scenario("tiny").classes


def test_a_cluster_file_brings_its_classes_and_a_scenario_only_its_cluster(tmp_path: Path) -> None:
    tiny = load_scenario("tiny")
    part = ClusterPart.model_validate(
        {
            "cluster": {"types": {"x": {"memory_gib": 80}}, "nodes": [{"type": "x"}]},
            "classes": {"short": {"unit_s": 1}, "long": {"unit_s": 2}},
        }
    )
    assert tiny.with_overrides(cluster=part).classes == part.classes
    other = Scenario.model_validate({**dict(tiny), "classes": part.classes})
    assert tiny.with_overrides(cluster=other).classes == tiny.classes


@pytest.mark.parametrize("name", ["azure-chat.yaml", "genai.yaml"])
def test_the_example_clusters_load(name: str) -> None:
    part = load_cluster(CLUSTERS / name)
    assert part.classes
    assert part.cluster.nodes


def _own_fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for title, definition in [("Scenario", schema), *schema["$defs"].items()]:
        for name, field in definition.get("properties", {}).items():
            yield f"{title}.{name}", field


def test_the_schema_describes_every_field_of_a_scenario() -> None:
    schema = scenario_schema()
    json.dumps(schema)
    others = ("Arrivals.", "TraceMapping.", "MappedColumn.", "LognormalSizes.", "ParetoSizes.")
    others += (
        "ExponentialSizes.",
        "ConstantSizes.",
        "EmpiricalSizes.",
    )  # of `traces`, described by docstrings
    own = [(name, field) for name, field in _own_fields(schema) if not any(o in name for o in others)]
    assert len(own) > 80
    assert [name for name, field in own if not field.get("description")] == []
    assert schema["required"] == ["cluster", "workload"]
