"""WfFormat, the workflow format of WfCommons (1.0 to 1.6): executed workflows as runs of chains, in and out.

A workflow becomes one run that arrives at 0. Each task is a stage. Its class is its tool, its size the
seconds that it ran, so a node of speed 1 takes these seconds. Its output is the sum of its output files. An
edge, which parent or child may name, reads the share of them that the child names as inputs. Files that no
task makes are taken to be on every node. Until 1.4 a task has its files, its run time and the names of its
parents in itself; sizes of files are taken as bytes there, as the publisher's own conversion does.

Format: R. Ferreira da Silva et al., "WfCommons", Future Generation Computer Systems 128, 2022.

Run traces as JSONL or Parquet are read here too.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.json_lines import amount_at, names_at, table_at, tables_at, text_at
from trimtab.traces.run_tables import STAGES, tables_of
from trimtab.traces.source import TraceSource

NAME: Final = "wfformat"
LEAST_RUNTIME_S: Final = 0.001  # size of a task whose recorded run time is zero or missing
_BYTES_PER_GIB = float(1 << 30)
_SPECIFICATION, _EXECUTION = "workflow.specification", "workflow.execution"
_TAGGED = re.compile(r"(?P<process>.+?)__(?:.*__)?ID\d+")  # since 1.6: PROCESS__sample__ID0000001
_OUTER = re.compile(r"^(?:.*:|(?:[A-Z0-9_]+\.)+(?=[A-Z0-9_]+$))")  # workflows of Nextflow around a process
_INSTANCE = re.compile(r"(_ID\d+|\s*\([^()]*\)|[._-]\d+)$")  # what tells instances of one tool apart


def is_workflow(content: Any) -> bool:
    """Whether parsed JSON is a workflow of this format."""
    return isinstance(content, Mapping) and isinstance(content.get("workflow"), Mapping)


@dataclass(frozen=True, slots=True)
class _Task:
    id: str
    name: str
    parents: list[str]
    inputs: list[str]
    outputs: list[str]


def workflow_tables(content: Mapping[str, Any], file: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables of runs and stages of one workflow. Raises TraceError that names task, field and value."""
    workflow = _of_old_version(content["workflow"], file)
    specification = table_at(workflow.get("specification"), _SPECIFICATION, file)
    execution = table_at(workflow.get("execution"), _EXECUTION, file)
    tasks = _tasks(specification, file)
    runtime_s = _runtimes_s(execution, tasks, file)
    sizes = _file_sizes(specification, file)
    _refuse_unknown_files(tasks, sizes, file)
    stages = [_stage(task, tasks, runtime_s, sizes) for task in tasks.values()]
    return tables_of([{"arrival_s": 0.0, "stages": stages}], file)


def tool_of(name: str) -> str:
    """The tool of a task by its name: without number, sample or id."""
    tagged = _TAGGED.fullmatch(name)
    name = name if tagged is None else tagged["process"]
    while (shorter := _INSTANCE.sub("", name)) not in (name, ""):
        name = shorter
    return _OUTER.sub("", name) or name


def _of_old_version(workflow: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """A workflow of version 1.0 to 1.4 as one of 1.5; one of 1.5 as it is."""
    key = next((name for name in ("tasks", "jobs") if name in workflow), None)
    if key is None or "specification" in workflow:
        return workflow
    given = tables_at(workflow[key], f"workflow.{key}", file)
    ids: dict[str, str] = {}  # tasks name each other, by names or ids
    for k, task in enumerate(given):
        name = text_at(task.get("name") or task.get("id"), f"workflow.{key}[{k}].name", file)
        own_id = text_at(task.get("id") or name, f"workflow.{key}[{k}].id", file)
        ids |= {own_id: own_id, name: own_id}
    sizes: dict[str, Any] = {}
    tasks, runs = [], []
    for task in given:
        own_id = ids[task.get("id") or task["name"]]
        files = tables_at(task.get("files"), f"task {own_id}, files", file)
        by_link: dict[str, list[str]] = {"input": [], "output": []}
        for each in files:
            name = text_at(each.get("name"), f"task {own_id}, files, name", file)
            sizes[name] = each.get("sizeInBytes", each.get("size"))
            link = text_at(each.get("link"), f"task {own_id}, files, link", file, "input or output")
            by_link.setdefault(link.lower(), []).append(name)
        edges = {
            side: [ids.get(name, name) for name in names_at(task.get(side), f"task {own_id}, {side}", file)]
            for side in ("parents", "children")
        }
        files_of = {"inputFiles": by_link["input"], "outputFiles": by_link["output"]}
        tasks.append({"id": own_id, "name": task.get("name"), **edges, **files_of})
        runs.append({"id": own_id, "runtimeInSeconds": task.get("runtimeInSeconds", task.get("runtime"))})
    listed = [{"id": name, "sizeInBytes": size} for name, size in sizes.items()]
    return {"specification": {"tasks": tasks, "files": listed}, "execution": {"tasks": runs}}


def _tasks(specification: Mapping[str, Any], file: str) -> dict[str, _Task]:
    field = f"{_SPECIFICATION}.tasks"
    given = tables_at(specification.get("tasks"), field, file)
    if not given:
        raise TraceError("no tasks", file=file, field=field, expected="a list of tasks")
    tasks: dict[str, _Task] = {}
    for k, entry in enumerate(given):
        task_id = text_at(entry.get("id"), f"{field}[{k}].id", file, "the id of the task")
        if task_id in tasks:
            raise TraceError("a task twice", file=file, field=field, value=task_id, expected="each once")
        name = text_at(entry.get("name") or task_id, f"task {task_id}, name", file)
        parents, inputs, outputs = (
            names_at(entry.get(key), f"task {task_id}, {key}", file)
            for key in ("parents", "inputFiles", "outputFiles")
        )
        tasks[task_id] = _Task(task_id, name, list(dict.fromkeys(parents)), inputs, outputs)
    _add_children(given, tasks, file)
    for task in tasks.values():
        _refuse_unknown(task.parents, tasks, f"task {task.id}, parents", file)
    return tasks


def _add_children(given: list[Mapping[str, Any]], tasks: Mapping[str, _Task], file: str) -> None:
    """An edge that only the parent names is an edge, too."""
    for entry in given:
        field = f"task {entry['id']}, children"
        children = names_at(entry.get("children"), field, file)
        _refuse_unknown(children, tasks, field, file)
        for child in children:
            if entry["id"] not in tasks[child].parents:
                tasks[child].parents.append(entry["id"])


def _refuse_unknown(names: list[str], tasks: Mapping[str, _Task], field: str, file: str) -> None:
    for name in names:
        if name not in tasks:
            raise TraceError("no such task", file=file, field=field, value=name, expected="the id of a task")


def _runtimes_s(execution: Mapping[str, Any], tasks: Mapping[str, _Task], file: str) -> dict[str, float]:
    """Seconds of each task; the least where none are recorded."""
    found, field = {}, f"{_EXECUTION}.tasks"
    for k, run in enumerate(tables_at(execution.get("tasks"), field, file)):
        task_id = text_at(run.get("id"), f"{field}[{k}].id", file, "the id of a task")
        _refuse_unknown([task_id], tasks, field, file)
        seconds = run.get("runtimeInSeconds")
        recorded_s = 0.0 if seconds is None else amount_at(seconds, f"task {task_id}, runtimeInSeconds", file)
        found[task_id] = max(LEAST_RUNTIME_S, recorded_s)
    return {name: found.get(name, LEAST_RUNTIME_S) for name in tasks}


def _file_sizes(specification: Mapping[str, Any], file: str) -> dict[str, float]:
    sizes, field = {}, f"{_SPECIFICATION}.files"
    for k, entry in enumerate(tables_at(specification.get("files"), field, file)):
        file_id = text_at(entry.get("id"), f"{field}[{k}].id", file, "the id of the file")
        sizes[file_id] = amount_at(entry.get("sizeInBytes"), f"file {file_id}, sizeInBytes", file)
    return sizes


def _refuse_unknown_files(tasks: Mapping[str, _Task], sizes: Mapping[str, float], file: str) -> None:
    for task in tasks.values():
        for key, names in (("inputFiles", task.inputs), ("outputFiles", task.outputs)):
            unknown = [name for name in names if name not in sizes]
            if unknown:
                raise TraceError(
                    "no such file",
                    file=file,
                    field=f"task {task.id}, {key}",
                    value=unknown[0],
                    expected=f"an id in {_SPECIFICATION}.files",
                )


def _stage(
    task: _Task, tasks: Mapping[str, _Task], runtime_s: Mapping[str, float], sizes: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "stage": task.id,
        "class": tool_of(task.name),
        "size": runtime_s[task.id],
        "after": task.parents,
        "after_frac": [_read_frac(task, tasks[parent], sizes) for parent in task.parents],
        "output_gib": sum(sizes[name] for name in task.outputs) / _BYTES_PER_GIB,
    }


def _read_frac(task: _Task, parent: _Task, sizes: Mapping[str, float]) -> float:
    """Share of the parent's output that the task reads."""
    total, wanted = sum(sizes[name] for name in parent.outputs), set(task.inputs)
    return sum(sizes[name] for name in parent.outputs if name in wanted) / total if total > 0.0 else 0.0


def workflow_of(stages: pl.DataFrame, name: str) -> dict[str, Any]:
    """The stages of one run as a workflow of this format.

    A stage has one output file, or more if some stages read a share of it: a share is its first files.
    """
    rows = stages.to_dicts()
    children: dict[str, list[str]] = {row["stage"]: [] for row in rows}
    shares: dict[str, set[float]] = {row["stage"]: {1.0} for row in rows}
    for row in rows:
        for parent, share in zip(row["after"], row["after_frac"], strict=True):
            children[parent].append(row["stage"])
            shares[parent].add(share)
    cuts = {stage: sorted(found - {0.0}) for stage, found in shares.items()}
    tasks = [
        {
            "name": row["class"],
            "id": row["stage"],
            "parents": row["after"],
            "children": children[row["stage"]],
            "inputFiles": [
                f"{parent}.{cut!r}.out"
                for parent, share in zip(row["after"], row["after_frac"], strict=True)
                for cut in cuts[parent]
                if cut <= share
            ],
            "outputFiles": [f"{row['stage']}.{cut!r}.out" for cut in cuts[row["stage"]]],
        }
        for row in rows
    ]
    files = [
        {"id": f"{row['stage']}.{cut!r}.out", "sizeInBytes": round((cut - before) * size)}
        for row, size in ((row, row["output_gib"] * _BYTES_PER_GIB) for row in rows)
        for before, cut in pairwise([0.0, *cuts[row["stage"]]])
    ]
    execution = {"tasks": [{"id": r["stage"], "runtimeInSeconds": r["size"]} for r in rows]}
    workflow = {"specification": {"tasks": tasks, "files": files}, "execution": execution}
    return {"name": name, "schemaVersion": "1.5", "workflow": workflow}


RUNS: Final = "trimtab-runs"
_JSON_START = 4096  # bytes in which a JSON document shows itself


class RunTrace(NamedTuple):
    """Runs of chains: a table of runs and one of stages (see `run_tables`), and the format of the file."""

    runs: pl.DataFrame
    stages: pl.DataFrame
    format: str


def read_workflow(path: Path) -> RunTrace | None:
    """The workflow in a file; None if the file is no JSON document. Raises TraceError."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            start = stream.read(_JSON_START).lstrip()
            if not start.startswith(b"{") or b'"workflow"' not in start + stream.read(_JSON_START):
                return None
            stream.seek(0)
            content = json.loads(stream.read())
    except (OSError, EOFError, ValueError):
        return None  # the readers of tables name the reason
    return RunTrace(*workflow_tables(content, str(path)), NAME) if is_workflow(content) else None


def read_runs(source: TraceSource) -> RunTrace:
    """The runs of a JSONL or Parquet file that has a column `stages`. Raises TraceError."""
    return RunTrace(*tables_of(_rows(source), str(source.path)), RUNS)


def _rows(source: TraceSource) -> list[dict[str, Any]]:
    if source.kind == "parquet":
        return pl.read_parquet(source.path).to_dicts()
    rows = []
    with gzip.open(source.path, "rt") if source.is_gzip else source.path.open() as lines:
        for k, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise TraceError(f"no JSON ({error})", file=str(source.path), field=f"line {k}") from error
    return rows


def has_stages(source: TraceSource) -> bool:
    """Whether a file has runs in place of requests."""
    return STAGES in source.columns
