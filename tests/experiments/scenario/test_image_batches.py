"""Image generation with slots and batches of one shape: seconds by hand, loads of models and adapters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab as tt
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import load_scenario

PARTS: dict[str, Any] = {
    "name": "images",
    "cluster": {"types": {"gpu": {"memory_gib": 24}}, "nodes": [{"type": "gpu"}]},
    "models": {"sdxl": {"memory_gib": 7, "load_s": 20}},
    "adapters": {
        "lora": {"memory_gib": 0.25, "load_s": 4},
        "controlnet": {"memory_gib": 2.5, "load_s": 6},
    },
    "classes": {
        "image": {
            "model": "sdxl",
            "adapter": "lora",
            "fixed_s": 10,
            "unit_s": 0.5,
            "batch": {"marginal_frac": 1, "same": ["steps", "pixels"], "fixed_once": True},
        },
        "guided": {"model": "sdxl", "adapter": "controlnet", "fixed_s": 10, "unit_s": 0.5},
    },
    "workload": {
        "generate": {
            "requests": 40,
            "arrival": {"process": "poisson", "rate_per_s": 100},
            "mix": {"image": {"share": 1}},
            "size": {
                "product": {
                    "steps": {"distribution": "choice", "values": {20: 1, 30: 1}},
                    "pixels": {"distribution": "choice", "values": {1: 1, 2.25: 1}},
                    "images": {"distribution": "choice", "values": {1: 1, 4: 1}},
                }
            },
        }
    },
    "policies": ["split-merge"],
}


def _scenario(**classes: Any) -> Scenario:
    parts = copy.deepcopy(PARTS)
    for name, changed in classes.items():
        parts["classes"][name] |= changed
    return Scenario.model_validate(parts)


def test_a_batch_takes_fixed_seconds_and_those_of_all_its_images() -> None:
    """10 s + 0.5 s × steps × pixels × images of all; the first also waits 20 s for the model."""
    scenario = _scenario()
    built = build(scenario, 0)
    run = tt.simulate(scenario, "split-merge")
    start_s, finish_s = (run.requests[name].to_numpy() for name in ("start_s", "finish_s"))
    shape, units = built.requests.shape_idx, built.requests.truth["units"]
    assert shape is not None
    assert len(np.unique(shape)) == 4
    sizes = []
    for begun_s in np.unique(start_s):
        batch = start_s == begun_s
        assert len(np.unique(shape[batch])) == 1
        load_s = 20.0 if begun_s == start_s.min() else 0.0
        assert finish_s[batch] == pytest.approx(begun_s + load_s + 10.0 + 0.5 * units[batch].sum())
        sizes.append(batch.sum())
    assert max(sizes) > 1


def test_adapters_and_controlnets_load_beside_the_base_model() -> None:
    """20 s for the model and 4 s for the LoRA; then 6 s for the ControlNet: its class has the same model."""
    parts = copy.deepcopy(PARTS)
    generate = parts["workload"]["generate"]
    generate |= {"requests": 2, "size": 2, "arrival": {"process": "poisson", "rate_per_s": 0.001}}
    generate["mix"] = {name: {"share": 1, "adapter_frac": 1} for name in ("image", "guided")}
    parts["classes"]["image"]["batch"] = None
    for seed in range(20):
        run = tt.simulate(Scenario.model_validate(parts), "round-robin", seed=seed)
        took_s = (run.requests["finish_s"] - run.requests["arrival_s"]).to_list()
        kinds = run.requests["class"].to_list()
        if kinds == ["image", "guided"] and run.requests["arrival_s"][1] > run.requests["finish_s"][0]:
            assert took_s == pytest.approx([20 + 4 + 11, 6 + 11])
            return
    raise AssertionError("no seed has one of each, apart in time")


def test_the_example_batches_under_load() -> None:
    scenario = load_scenario(Path(__file__).parents[3] / "examples/image-batches.yaml")
    alone, together = (tt.simulate(scenario, name) for name in ("least-connections", "split-merge"))
    assert alone.metrics["finished_frac"] == together.metrics["finished_frac"] == 1.0
    assert together.metrics["completion_mean_s"] < alone.metrics["completion_mean_s"]


def test_columns_of_a_trace_are_shapes_too(tmp_path: Path) -> None:
    file = tmp_path / "images.csv"
    file.write_text("arrival_s,size,steps,images\n0,20,20,1\n1,40,20,2\n2,30,30,1\n")
    parts = copy.deepcopy(PARTS)
    parts["classes"] = {
        "image": PARTS["classes"]["image"] | {"batch": {"marginal_frac": 1, "same": ["steps"]}}
    }
    parts["workload"] = {"trace": {"file": str(file)}}
    assert build(Scenario.model_validate(parts), 0).requests.shape_idx.tolist() == [0, 0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("same", "message"),
    [
        (["pixel"], r"classes\.image\.batch\.same: no such part .*'pixel'.*steps, pixels, images"),
        (["lengths"], r"classes\.image\.batch\.same: no such part"),
    ],
)
def test_shapes_of_what_there_is_not_are_refused(same: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        build(_scenario(image={"batch": {"marginal_frac": 1, "same": same}}), 0)


def test_sizes_that_are_never_equal_are_no_shapes() -> None:
    parts = copy.deepcopy(PARTS)
    generate = parts["workload"]["generate"]
    generate["requests"] = 300
    generate["size"]["product"]["steps"] = {"distribution": "lognormal", "mean": 20, "cv": 1}
    with pytest.raises(ScenarioError, match=r"too many shapes .*300.*at most 256"):
        build(Scenario.model_validate(parts), 0)
