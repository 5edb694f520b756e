"""Chains in a scenario: what is built, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from trimtab.domain.chains import Flow
from trimtab.engine.layout import rows_with_runs
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import load_scenario

TEXT = """
cluster:
  types: {fast: {speed: 2, memory_gib: 8}, slow: {memory_gib: 8}}
  nodes: [{type: fast, count: 1}, {type: slow, count: 3}]
classes:
  write: {fixed_s: 1, unit_s: 1}
  draw: {fixed_s: {fast: 2}, unit_s: {fast: 1}}
chains:
  story:
    slo_s: 60
    stages:
      text: {class: write, size: 3, output_gib: 0.5}
      images:
        class: draw
        after: [text]
        count: {distribution: choice, values: {1: 1, 3: 1}}
        expected_count: 2
        size: 1
      captions: {class: write, after: {images: each}, like: images, size: 2, when_frac: 0.5}
      film: {class: write, after: [captions, text], size: 4}
workload:
  generate:
    requests: 400
    arrival: {process: poisson, rate_per_s: 1}
    mix: {story: {share: 3}, write: {share: 1, size: 2}}
  load: 0.5
  payload_gib: 0.25
"""


def scenario(tmp_path: Any, **chain: Any) -> Any:
    """The scenario above, with stages of `story` replaced."""
    content = yaml.safe_load(TEXT)
    stages = content["chains"]["story"]["stages"]
    for name, changes in chain.items():
        stages[name] = {**stages.get(name, {}), **changes}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return load_scenario(tmp_path / "case.yaml")


def test_the_rows_of_runs(tmp_path: Any) -> None:
    inputs = build(scenario(tmp_path), 0)
    chains, names = inputs.requests.chains, inputs.cluster.class_names
    assert chains is not None
    assert names == ("write", "draw", "story")
    is_run = inputs.requests.work["class_idx"] == 2
    np.testing.assert_array_equal(chains.template_idx >= 0, is_run)
    counts = chains.counts.reshape(-1, 4)
    assert len(counts) == is_run.sum()
    assert set(counts[:, 1]) == {1, 3}
    np.testing.assert_array_equal(counts[:, 1], counts[:, 2])
    assert (counts[:, [0, 3]] == 1).all()
    assert counts.sum() == len(chains.work)
    skipped = np.add.reduceat(chains.is_skipped, np.cumsum(chains.counts) - chains.counts).reshape(-1, 4)
    assert set((skipped[:, 2] / counts[:, 2]).tolist()) == {0.0, 1.0}
    assert 0.4 < (skipped[:, 2] > 0).mean() < 0.6
    text = np.repeat(np.tile([True, False, False, False], len(counts)), chains.counts)
    assert chains.output_gib[text].tolist() == [0.5] * len(counts)
    stages = rows_with_runs(inputs.requests, 1, splits=False).requests.work[len(is_run) :]
    np.testing.assert_array_equal(
        stages["run_arrival_s"], np.repeat(inputs.requests.work["arrival_s"][is_run], counts.sum(axis=1))
    )
    assert chains.templates.inputs["flow"].tolist() == [Flow.ALL, Flow.EACH, Flow.ALL, Flow.ALL]
    assert inputs.slo_s.tolist() == [np.inf, np.inf, 60.0]


def test_ranks_are_the_declared_rest_of_the_run(tmp_path: Any) -> None:
    """Means over nodes: writing 3 units takes 4 s at speed 1, 2 s at 2 on one of four nodes: 3.5 s."""
    chains = build(scenario(tmp_path), 0).requests.chains
    assert chains is not None
    first = chains.work[: chains.counts[:4].sum()]
    write_s = {units: (1.0 + units) * (3 + 0.5) / 4 for units in (2.0, 3.0, 4.0)}
    mean = {"film": write_s[4.0], "captions": 0.5 * write_s[2.0], "images": 3.0}
    assert first["rank_s"][-1] == pytest.approx(mean["film"])
    assert first["rank_s"][0] == pytest.approx(write_s[3.0] + sum(mean.values()))
    assert first["next_class_idx"][0] == 1
    assert first["next_class_idx"][-1] == -1


def test_what_is_expected_of_a_run_follows_the_declared_count(tmp_path: Any) -> None:
    """Seconds on the best type, five images and captions declared where one or three are drawn."""
    chains = build(scenario(tmp_path, images={"expected_count": 5}), 0).requests.chains
    assert chains is not None
    assert chains.expected_s is not None
    expected = [4.0 / 2, 5 * 3.0, 0.5 * 5 * 3.0 / 2, 5.0 / 2]
    np.testing.assert_allclose(
        chains.expected_s.reshape(-1, 4), np.tile(expected, (len(chains.counts) // 4, 1))
    )


def test_load_counts_the_stages(tmp_path: Any) -> None:
    """The draw class fits the fast node only, with one slot: it is what limits the rate of runs."""
    inputs = build(scenario(tmp_path), 1)
    chains = inputs.requests.chains
    assert chains is not None
    drawn_per_s = (chains.work["class_idx"] == 1).sum() / len(inputs.requests) * inputs.capacity_per_s
    assert drawn_per_s <= 1 / 3.0 + 1e-9
    assert inputs.offered_load == pytest.approx(0.5)


def test_a_map_over_no_items_is_one_skipped_row(tmp_path: Any) -> None:
    none = {"count": {"distribution": "choice", "values": {0.4: 1}}, "expected_count": 1}
    chains = build(scenario(tmp_path, images=none), 0).requests.chains
    assert chains is not None
    assert (chains.counts == 1).all()
    assert chains.is_skipped.reshape(-1, 4)[:, 1].all()


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"text": {"after": ["film"]}}, "chains.story.stages", "a graph without cycles"),
        ({"film": {"after": ["sound"]}}, "chains.story.stages.film.after", "perhaps|one of"),
        ({"film": {"class": "dance"}}, "chains.story.stages.film.class", "a known class"),
        (
            {"images": {"expected_count": None}},
            "chains.story.stages.images",
            "expected_count, as count is drawn",
        ),
        ({"captions": {"like": "sound"}}, "chains.story.stages.captions.like", "one of"),
        ({"film": {"after": ["text", "text"]}}, "chains.story.stages.film.after", "each stage once"),
        ({"captions": {"like": None}}, "chains.story.stages.captions.after", "like: images"),
        ({"captions": {"like": "captions"}}, "chains.story.stages.captions.like", "does not refer back"),
        ({"film": {"output_gib": -1}}, "chains.story.stages.film.output_gib", "greater than 0"),
        ({"film": {"max_retries": -2}}, "chains.story.stages.film.max_retries", "at least 0|greater"),
        ({"film": {"count": 2, "like": "images"}}, "chains.story.stages.film", "either count or like"),
        ({"film": {"colour": "red"}}, "chains.story.stages.film", "colour"),
    ],
)
def test_refusals(tmp_path: Any, changes: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(tmp_path, **changes)
    assert field in str(error.value)
    assert any(part in str(error.value) for part in expected.split("|")), str(error.value)


def test_a_stage_that_no_node_serves_is_refused(tmp_path: Any) -> None:
    content = yaml.safe_load(TEXT)
    content["classes"]["draw"] = {"fixed_s": {"fast": None}, "unit_s": {"fast": None}}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ScenarioError, match="a class that some node type serves"):
        load_scenario(tmp_path / "case.yaml")


def test_runs_of_equal_inputs_are_equal_and_repeatable_as_far_as_stages_are_deterministic(
    tmp_path: Any,
) -> None:
    content = yaml.safe_load(TEXT)
    story = content["chains"]["story"]
    story["contents"] = {"count": 5, "zipf": 0.5, "repeatable_frac": 0.8}
    story["stages"]["text"]["size"] = {"distribution": "exponential", "mean": 3}
    story["stages"]["captions"]["deterministic"] = False
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    chains = build(load_scenario(tmp_path / "case.yaml"), 0).requests.chains
    assert chains is not None
    assert chains.content_idx is not None
    stage = np.repeat(chains.stage_idx, chains.counts)
    known = chains.content_idx >= 0
    assert known[np.isin(stage, [0, 1])].mean() == pytest.approx(0.8, abs=0.07)
    assert not known[np.isin(stage, [2, 3])].any()
    texts = np.flatnonzero((stage == 0) & known)
    for number in np.unique(chains.content_idx[texts]):
        rows = texts[chains.content_idx[texts] == number]
        assert len(rows) > 1
        assert len(np.unique(chains.truth["units"][rows])) == 1
    assert len(np.unique(chains.truth["units"][texts])) == 5
