"""WfFormat, the workflow format of WfCommons (version 1.5): executed workflows as runs of chains, in and out.

A workflow becomes one run that arrives at 0. Each task is a stage. Its class is its tool, its size the
seconds that it ran, so a node of speed 1 takes these seconds. Its output is the sum of its output files; an
edge reads the share of them that the child names as inputs. Files that no task makes are taken to be on
every node.

Format: R. Ferreira da Silva et al., "WfCommons", Future Generation Computer Systems 128, 2022.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.run_tables import tables_of

NAME: Final = "wfformat"
LEAST_RUNTIME_S: Final = 0.001  # size of a task whose recorded run time is zero or missing
_BYTES_PER_GIB = float(1 << 30)
_INSTANCE = re.compile(r"(_ID\d+|\s*\([^()]*\)|[._-]\d+)$")  # what tells instances of one tool apart


def is_workflow(content: Any) -> bool:
    """Whether parsed JSON is a workflow of this format."""
    return isinstance(content, Mapping) and isinstance(content.get("workflow"), Mapping)


def workflow_tables(content: Mapping[str, Any], file: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables of runs and stages of one workflow. Raises TraceError that names task, field and value."""
    workflow = content["workflow"]
    tasks = _tasks(workflow, file)
    runtime_s = _runtimes_s(workflow, tasks, file)
    sizes = _file_sizes(workflow, file)
    _refuse_unknown_files(tasks, sizes, file)
    stages = [_stage(task, tasks, runtime_s, sizes) for task in tasks.values()]
    return tables_of([{"arrival_s": 0.0, "stages": stages}], file)


def tool_of(name: str) -> str:
    """The tool of a task by its name: without number, sample or id."""
    while (shorter := _INSTANCE.sub("", name)) not in (name, ""):
        name = shorter
    return name.rpartition(":")[2] or name


def _tasks(workflow: Mapping[str, Any], file: str) -> dict[str, dict[str, Any]]:
    given = (workflow.get("specification") or {}).get("tasks")
    if not isinstance(given, list) or not given:
        raise TraceError(
            "no tasks", file=file, field="workflow.specification.tasks", expected="a list of tasks"
        )
    tasks: dict[str, dict[str, Any]] = {}
    for k, task in enumerate(given):
        if not isinstance(task, dict) or not task.get("id"):
            field = f"workflow.specification.tasks[{k}].id"
            raise TraceError("missing value", file=file, field=field, expected="the id of the task")
        if task["id"] in tasks:
            raise TraceError(
                "a task twice", file=file, field="workflow.specification.tasks", value=task["id"]
            )
        tasks[task["id"]] = task
    for task in tasks.values():
        for parent in task.get("parents") or ():
            if parent not in tasks:
                field = f"task {task['id']}, parents"
                raise TraceError(
                    "no such task", file=file, field=field, value=parent, expected="the id of a task"
                )
    return tasks


def _runtimes_s(workflow: Mapping[str, Any], tasks: Mapping[str, Any], file: str) -> dict[str, float]:
    """Seconds of each task; the least where none are recorded."""
    found = {}
    for run in (workflow.get("execution") or {}).get("tasks") or ():
        seconds = run.get("runtimeInSeconds")
        if run.get("id") not in tasks:
            raise TraceError("no such task", file=file, field="workflow.execution.tasks", value=run.get("id"))
        if seconds is not None and (not isinstance(seconds, int | float) or seconds < 0):
            field = f"task {run['id']}, runtimeInSeconds"
            raise TraceError(
                "value out of range", file=file, field=field, value=seconds, expected="at least 0"
            )
        found[run["id"]] = max(LEAST_RUNTIME_S, float(seconds or 0.0))
    return {name: found.get(name, LEAST_RUNTIME_S) for name in tasks}


def _file_sizes(workflow: Mapping[str, Any], file: str) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for entry in (workflow.get("specification") or {}).get("files") or ():
        size = entry.get("sizeInBytes")
        if not isinstance(size, int | float) or size < 0:
            field = f"file {entry.get('id')}, sizeInBytes"
            raise TraceError("value out of range", file=file, field=field, value=size, expected="at least 0")
        sizes[entry["id"]] = float(size)
    return sizes


def _refuse_unknown_files(tasks: Mapping[str, Any], sizes: Mapping[str, float], file: str) -> None:
    for task in tasks.values():
        for key in ("inputFiles", "outputFiles"):
            unknown = [name for name in task.get(key) or () if name not in sizes]
            if unknown:
                field = f"task {task['id']}, {key}"
                raise TraceError(
                    "no such file",
                    file=file,
                    field=field,
                    value=unknown[0],
                    expected="an id in workflow.specification.files",
                )


def _stage(
    task: Mapping[str, Any],
    tasks: Mapping[str, Any],
    runtime_s: Mapping[str, float],
    sizes: Mapping[str, float],
) -> dict[str, Any]:
    parents = list(dict.fromkeys(task.get("parents") or ()))
    return {
        "stage": task["id"],
        "class": tool_of(task.get("name") or task["id"]),
        "size": runtime_s[task["id"]],
        "after": parents,
        "after_frac": [_read_frac(task, tasks[parent], sizes) for parent in parents],
        "output_gib": sum(sizes[name] for name in task.get("outputFiles") or ()) / _BYTES_PER_GIB,
    }


def _read_frac(task: Mapping[str, Any], parent: Mapping[str, Any], sizes: Mapping[str, float]) -> float:
    """Share of the parent's output that the task reads."""
    made = parent.get("outputFiles") or ()
    total, wanted = sum(sizes[name] for name in made), set(task.get("inputFiles") or ())
    return sum(sizes[name] for name in made if name in wanted) / total if total > 0.0 else 0.0


def workflow_of(stages: pl.DataFrame, name: str) -> dict[str, Any]:
    """The stages of one run as a workflow of this format, with one output file for each stage."""
    rows = stages.to_dicts()
    children: dict[str, list[str]] = {row["stage"]: [] for row in rows}
    for row in rows:
        for parent in row["after"]:
            children[parent].append(row["stage"])
    tasks = [
        {
            "name": row["class"],
            "id": row["stage"],
            "parents": row["after"],
            "children": children[row["stage"]],
            "inputFiles": [f"{parent}.out" for parent in row["after"]],
            "outputFiles": [f"{row['stage']}.out"],
        }
        for row in rows
    ]
    files = [
        {"id": f"{r['stage']}.out", "sizeInBytes": round(r["output_gib"] * _BYTES_PER_GIB)} for r in rows
    ]
    execution = {"tasks": [{"id": r["stage"], "runtimeInSeconds": r["size"]} for r in rows]}
    workflow = {"specification": {"tasks": tasks, "files": files}, "execution": execution}
    return {"name": name, "schemaVersion": "1.5", "workflow": workflow}
