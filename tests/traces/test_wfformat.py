"""Workflows of WfCommons: a small one by hand, its way back, what is refused, and the recorded ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.domain.stage_graph import critical_paths_s
from trimtab.errors import TraceError
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import resolve_scenario
from trimtab.traces import read_trace
from trimtab.traces.wfformat import LEAST_RUNTIME_S, tool_of, workflow_of

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "wfinstances"
GIB = 1 << 30
CLUSTER = Path(__file__).parents[2] / "examples" / "clusters" / "workflows-4.yaml"

SMALL: dict[str, Any] = {
    "name": "small",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "cut_ID1",
                    "id": "cut_ID1",
                    "parents": [],
                    "outputFiles": ["a", "b"],
                    "inputFiles": ["x"],
                },
                {
                    "name": "map_ID2",
                    "id": "map_ID2",
                    "parents": ["cut_ID1"],
                    "inputFiles": ["a"],
                    "outputFiles": ["c"],
                },
                {
                    "name": "map_ID3",
                    "id": "map_ID3",
                    "parents": ["cut_ID1"],
                    "inputFiles": ["b"],
                    "outputFiles": ["d"],
                },
                {
                    "name": "join_ID4",
                    "id": "join_ID4",
                    "parents": ["map_ID2", "map_ID3"],
                    "inputFiles": ["c", "d"],
                },
            ],
            "files": [
                {"id": "x", "sizeInBytes": 7 * GIB},
                {"id": "a", "sizeInBytes": 1 * GIB},
                {"id": "b", "sizeInBytes": 3 * GIB},
                {"id": "c", "sizeInBytes": 0},
                {"id": "d", "sizeInBytes": 2 * GIB},
            ],
        },
        "execution": {
            "tasks": [
                {"id": "cut_ID1", "runtimeInSeconds": 5},
                {"id": "map_ID2", "runtimeInSeconds": 2},
                {"id": "map_ID3", "runtimeInSeconds": 4},
                {"id": "join_ID4", "runtimeInSeconds": 0},
            ]
        },
    },
}


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(content, indent=1))
    return file


def test_a_workflow_is_one_run(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SMALL))
    assert trace.format == "wfformat"
    assert trace.table["arrival_s"].to_list() == [0.0]
    assert trace.stages is not None
    rows = trace.stages.drop("run_idx").to_dicts()
    assert [row["class"] for row in rows] == ["cut", "map", "map", "join"]
    assert [row["size"] for row in rows] == [5.0, 2.0, 4.0, LEAST_RUNTIME_S]
    assert [row["output_gib"] for row in rows] == [4.0, 0.0, 2.0, 0.0]
    assert [row["after_frac"] for row in rows] == [[], [0.25], [0.75], [0.0, 1.0]]


def test_an_edge_that_only_the_parent_names_is_one(tmp_path: Path) -> None:
    content = _changed((*TASKS, 0, "children"), ["map_ID2", "map_ID3"])
    del content["workflow"]["specification"]["tasks"][1]["parents"]
    first, again = (read_trace(written(tmp_path, given)).stages for given in (SMALL, content))
    assert first is not None
    assert again is not None
    assert again.equals(first)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("bowtie2_ID0000003", "bowtie2"),
        ("NFCORE:SAREK:FASTQC (test-1)", "FASTQC"),
        ("mProject_00001", "mProject"),
        ("merge", "merge"),
        ("NF_X:PREP:TABIX__regions__ID0000001", "TABIX"),
        ("NF_X:CALL:GATK__chr1:9__S_2__ID0000002", "GATK"),
        ("GATK_APPLY__ID0000002", "GATK_APPLY"),
        ("NFCORE_MAG.MAG.BINNING.MEGAHIT", "MEGAHIT"),
        ("index.sh", "index.sh"),
    ],
)
def test_the_tool_of_a_task(name: str, tool: str) -> None:
    assert tool_of(name) == tool


def test_older_versions_name_their_parents_and_hold_their_files(tmp_path: Path) -> None:
    def task(name: str, seconds: str, size: str, parents: list[str], **own: str) -> dict[str, Any]:
        files = [{"link": "output", "name": f"{name}.out", size: GIB}]
        files += [{"link": "input", "name": f"{parent}.out", size: GIB} for parent in parents]
        return {"name": name, seconds: 1.5, "parents": parents, "files": files, **own}

    versions = {
        "1.0": {
            "jobs": [task("split_1", "runtime", "size", []), task("join_2", "runtime", "size", ["split_1"])]
        },
        "1.4": {
            "tasks": [
                task("split", "runtimeInSeconds", "sizeInBytes", [], id="ID1"),
                task("join", "runtimeInSeconds", "sizeInBytes", ["split"], id="ID2"),
            ]
        },
    }
    for version, workflow in versions.items():
        trace = read_trace(written(tmp_path, {"name": "w", "schemaVersion": version, "workflow": workflow}))
        assert trace.stages is not None
        rows = trace.stages.select("class", "size", "output_gib", "after_frac").rows()
        assert rows == [("split", 1.5, 1.0, []), ("join", 1.5, 1.0, [1.0])]
        first, second = trace.stages["stage"].to_list()
        assert trace.stages["after"].to_list() == [[], [first]]
        assert (first, second) == (("split_1", "join_2") if version == "1.0" else ("ID1", "ID2"))


def test_the_way_back_keeps_all(tmp_path: Path) -> None:
    first = read_trace(written(tmp_path, SMALL)).stages
    assert first is not None
    again = read_trace(written(tmp_path, workflow_of(first, "again"))).stages
    assert again is not None
    assert again.equals(first)


def _changed(path: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(SMALL)
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return content


TASKS = ("workflow", "specification", "tasks")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("workflow", "execution"), [1], r"workflow.execution: .*\[1\].*an object"),
        (TASKS, [], "workflow.specification.tasks"),
        ((*TASKS, 1), "map", r"tasks\[1\].*'map'.*an object"),
        ((*TASKS, 1, "parents"), "cut_ID1", r"task map_ID2, parents.*a list of names"),
        ((*TASKS, 1, "children"), ["nowhere"], r"task map_ID2, children.*nowhere"),
        ((*TASKS, 1, "parents"), ["nowhere"], r"task map_ID2, parents.*nowhere"),
        ((*TASKS, 1, "id"), "cut_ID1", r"a task twice.*cut_ID1"),
        ((*TASKS, 0, "parents"), ["join_ID4"], r"a cycle"),
        ((*TASKS, 2, "inputFiles"), ["gone"], r"task map_ID3, inputFiles.*gone"),
        (("workflow", "specification", "files", 1, "sizeInBytes"), -1, r"file a, sizeInBytes.*-1"),
        (
            ("workflow", "execution", "tasks", 2, "runtimeInSeconds"),
            -4,
            r"task map_ID3, runtimeInSeconds.*-4",
        ),
        (("workflow", "execution", "tasks", 2, "runtimeInSeconds"), float("nan"), r"runtimeInSeconds.*nan"),
        (("workflow", "execution", "tasks", 2, "id"), "other", r"no such task.*other"),
    ],
)
def test_refusals_name_task_field_and_value(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, _changed(path, value)))


def instances() -> list[Path]:
    return sorted(DATA.rglob("*.json.gz")) if DATA.exists() else []


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason=f"no workflows in {DATA}")
@pytest.mark.parametrize("file", instances(), ids=lambda f: f.name.removesuffix(".json.gz"))
def test_recorded_workflows_become_runs(file: Path) -> None:
    inputs = build(resolve_scenario(trace=file, cluster=CLUSTER), 0)
    chains = inputs.requests.chains
    assert chains is not None
    assert np.isfinite(inputs.requests.work["estimate_s"]).all()
    assert chains.work["rank_s"].max() <= chains.truth["units"].sum() + 1e-9


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason=f"no workflows in {DATA}")
def test_work_and_critical_path_of_a_recorded_workflow() -> None:
    """rnaseq: 197 tasks, 2,580 s of work, a critical path of 760 s, as its publishers' graph has them."""
    file = DATA / "nextflow" / "rnaseq-dirt02-001.json.gz"
    inputs = build(resolve_scenario(trace=file, cluster=CLUSTER), 0)
    chains = inputs.requests.chains
    assert chains is not None
    assert len(chains.work) == 197
    assert chains.truth["units"].sum() == pytest.approx(2580, abs=1)
    assert critical_paths_s(inputs.cluster, chains)[0] == pytest.approx(760, abs=1)
