"""A job that a policy placed, as a trace in the form of the gateway's recordings: `compare --trace` reads it.

An item is a request that arrived when the first task began, with its expected seconds as its units; a host is
a node. What each host made of expected seconds is the estimate of its type. Decisions are the candidates.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab.clusters.placement.recording_file import (
    RecordedNode,
    head_row,
    line_of,
    new_file,
    node_row,
)
from trimtab.clusters.spark.placed_jobs import ITEM, Placed, TaskRun
from trimtab.clusters.spark.spark_driver import SparkRest
from trimtab.errors import UsageError
from trimtab.traces.gateway_format import file_name, new_recording_id


def record(placed: Placed, folder: str | Path) -> Path:
    """Write the last job over these items into a new file of the folder. Raises UsageError."""
    runs = [run for run in placed.runs() if run.status != "RUNNING"]
    if not runs:
        expected = "an action on its RDD first, such as collect"
        raise UsageError("no task has ended", field="rdd", expected=expected)
    lost_s = SparkRest(placed.rdd.context).lost_hosts_s()
    recording, folder = new_recording_id(), Path(folder)
    lines = [line_of(row) for row in _rows(placed, recording, runs, lost_s)]
    with open(new_file(folder, recording, "folder"), "wb") as file:
        file.writelines(lines)
    return folder / file_name(recording, 0, 1)


def _rows(
    placed: Placed, recording: str, runs: list[TaskRun], lost_s: dict[str, float]
) -> list[dict[str, Any]]:
    begun_s = min(run.begun_s for run in runs)
    slots = {host.name: host.slots for host in placed.hosts}
    names = [*slots, *sorted({run.host for run in runs} - slots.keys())]
    types = [f"speed {placed.speeds.get(name, 1.0):g}" for name in names]
    nodes = [node_row(j, RecordedNode(name, types[j], slots.get(name, 1))) for j, name in enumerate(names)]
    started = datetime.fromtimestamp(begun_s, UTC)
    head = head_row(recording, started, placed.policy, nodes, {"lookahead": 64})
    ends = [_item_row(placed, names, item, of_item, begun_s) for item, of_item in _by_item(runs)]
    rows = [head, *ends]
    for name in (name for name in names if name in lost_s):
        node = {"idx": names.index(name), "name": name}
        at_s = max(0.0, lost_s[name] - begun_s)
        rows.append({"record": "node", "at_s": round(at_s, 3), "what": "down", "node": node})
    rows.sort(key=lambda row: row.get("at_s", row.get("finish_s", 0.0)))
    last_s = max(row["finish_s"] for row in ends)
    return [
        *rows,
        {"record": "estimates", "at_s": last_s, "classes": [_estimates(placed, names, types, runs)]},
    ]


def _by_item(runs: list[TaskRun]) -> list[tuple[int, list[TaskRun]]]:
    found: dict[int, list[TaskRun]] = defaultdict(list)
    for run in runs:
        found[run.item].append(run)
    return sorted(found.items())


def _item_row(
    placed: Placed, names: list[str], item: int, runs: list[TaskRun], begun_s: float
) -> dict[str, Any]:
    """The end of an item: its successful attempt, or the last one."""
    run = next((each for each in runs if each.status == "SUCCESS"), runs[-1])
    started_s = run.begun_s - begun_s
    return {
        "class": ITEM,
        "arrival_s": 0.0,
        "started_s": round(started_s, 3),
        "finish_s": round(started_s + run.seconds, 3),
        "wait_s": round(started_s, 3),
        "service_s": round(run.seconds, 3),
        "units": placed.expected_s[item],
        "candidates": [names.index(placed.chosen[item])],
        "node": names.index(run.host),
        "retries": len(runs) - 1,
        "outcome": "done" if run.status == "SUCCESS" else "failed",
    }


def _estimates(placed: Placed, names: list[str], types: list[str], runs: list[TaskRun]) -> dict[str, Any]:
    """Seconds for an expected second, on each type of host; where nothing ran, by its speed."""
    took, expected = defaultdict[str, float](float), defaultdict[str, float](float)
    plain_s = plain_expected_s = 0.0
    for run in (run for run in runs if run.status == "SUCCESS"):
        kind, speed = types[names.index(run.host)], placed.speeds.get(run.host, 1.0)
        took[kind] += run.seconds
        expected[kind] += placed.expected_s[run.item]
        plain_s += run.seconds * speed
        plain_expected_s += placed.expected_s[run.item]
    usual = plain_s / plain_expected_s if plain_expected_s else 1.0
    speeds = {kind: placed.speeds.get(name, 1.0) for name, kind in zip(names, types, strict=True)}
    unit_s = {
        kind: took[kind] / expected[kind] if expected[kind] else usual / speed
        for kind, speed in speeds.items()
    }
    return {
        "name": ITEM,
        "unit": "expected second",
        "fixed_s": dict.fromkeys(unit_s, 0.0),
        "unit_s": unit_s,
        "served_by": None,
    }
