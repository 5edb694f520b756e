"""A cluster and its jobs from a ResourceManager's answers: a scenario of training, and a list of jobs.

What jobs share out is a whole number of *slots*: GPUs, or vcores where a cluster has no GPUs. YARN tells
what an application took altogether, in resource-seconds; its slots are the mean over its run, rounded, at
least one. It ran from its launch to its end; where no launch is told, from its submission.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from trimtab.clusters.yarn.imported_queues import ImportedQueues
from trimtab.clusters.yarn.rest_answers import Answer, each, number
from trimtab.clusters.yarn.scheduler_answer import amounts_of, answered_queues, leaf_paths
from trimtab.clusters.yarn.yarn_amounts import CPUS, GPUS, MEMORY, gib
from trimtab.errors import UsageError
from trimtab.words import counted

Slots = Literal["gpus", "cpus"]
JOBS_FILE: Final = "jobs.csv"
_GPU: Final = "yarn.io/gpu"
_ENDED: Final = ("FINISHED", "FAILED", "KILLED")
_COLUMNS: Final = (
    "job_id",
    "submit_s",
    "gpus",
    "duration_s",
    "tenant",
    "priority",
    "cpus_per_gpu",
    "memory_gib_per_gpu",
)


class _Node(NamedTuple):
    kind: tuple[float, ...]  # gpus, cpus, memory_gib
    labels: tuple[str, ...]


class _App(NamedTuple):
    job_id: str
    submit_ms: float
    duration_s: float
    queue: str  # path of a leaf, without root
    user: str
    priority: int
    mean: Mapping[str, float]  # by resource, over its run


@dataclass(frozen=True)
class ImportedCluster:
    """A scenario, its jobs, and what was left out."""

    scenario: Mapping[str, Any]
    jobs: str  # CSV
    queues: ImportedQueues
    n_jobs: int
    n_nodes: int
    slots: Slots
    left_out: tuple[str, ...]


def imported_cluster(
    answers: Mapping[str, Answer], files: Mapping[str, str], slots: Slots | None = None
) -> ImportedCluster:
    """What the answers tell. Raises UsageError: no node that runs, no application that ended.

    Args:
        answers: name → what is below the key of this name.
        files: name → file of it, for messages.
        slots: what jobs share out; None = GPUs where a node has some, else vcores.
    """
    left: list[str] = []
    nodes = list(_nodes(answers["nodes"], files["nodes"], left))
    if slots is None:
        slots = "gpus" if any(node.kind[0] for node in nodes) else "cpus"
    used = [node for node in nodes if node.kind[0 if slots == "gpus" else 1] >= 1]
    if not used:
        raise UsageError(
            f"no node that runs has {slots}", file=files["nodes"], field="nodes", expected="at least one"
        )
    if len(used) < len(nodes):
        left.append(f"{counted(len(nodes) - len(used), 'node')} without {slots}")
    total = {name: sum(node.kind[k] for node in used) for k, name in enumerate((GPUS, CPUS, MEMORY))}
    leaves = leaf_paths(answers["scheduler"], files["scheduler"])
    apps = _apps(answers["apps"], files["apps"], leaves, slots, left)
    if not apps:
        expected = f"at least one application that ended and took {slots}"
        raise UsageError("no jobs", file=files["apps"], field="apps", expected=expected)
    tenants = _tenants(apps)
    by_leaf: dict[str, list[str]] = defaultdict(list)
    for app, tenant in zip(apps, tenants, strict=True):
        if tenant not in by_leaf[app.queue]:
            by_leaf[app.queue].append(tenant)
    queues = answered_queues(answers["scheduler"], files["scheduler"], total, by_leaf)
    scenario = {
        "kind": "training",
        "name": "yarn",
        "description": f"Jobs and queues of a YARN cluster; a slot is one of its {slots}.",
        "cluster": _cluster(used, slots),
        "queues": queues.section,
        **({"queue_scheme": "h-drf"} if queues.is_dominant else {}),
        "jobs": {"trace": {"file": JOBS_FILE}, "too_wide": "leave-out"},
    }
    return ImportedCluster(
        scenario, _table(apps, tenants, slots), queues, len(apps), len(used), slots, tuple(left)
    )


def _nodes(answer: Answer, file: str, left: list[str]) -> Iterator[_Node]:
    """Nodes that run, with what they have: what is used and what is not."""
    states: Counter[str] = Counter()
    for k, node in enumerate(each(answer.get("node"))):
        place = f"nodes.node[{k}]"
        state = str(node.get("state"))
        if state != "RUNNING":
            states[state] += 1
            continue
        memory_mb = number(node, "usedMemoryMB", file, place) + number(node, "availMemoryMB", file, place)
        cpus = number(node, "usedVirtualCores", file, place) + number(
            node, "availableVirtualCores", file, place
        )
        parts = (
            [node["totalResource"]]
            if node.get("totalResource")
            else [node.get("usedResource"), node.get("availableResource")]
        )
        gpus = sum(amounts_of(part, file, place).get(GPUS, 0.0) for part in parts)
        labels = node.get("nodeLabels") or []
        named = [labels] if isinstance(labels, str) else [label for label in labels if label]
        yield _Node((gpus, cpus, gib(memory_mb)), tuple(sorted(map(str, named))))
    left += [f"{counted(n, 'node')} in state {state}" for state, n in states.items()]


def _cluster(nodes: Sequence[_Node], slots: Slots) -> dict[str, Any]:
    """The section `cluster`: a type for each size of node, a group for each of its sets of labels."""
    sizes = dict.fromkeys(node.kind for node in nodes)
    names = {size: f"node-{k + 1}" for k, size in enumerate(sizes)}
    types = {
        names[size]: {
            "accelerator": "gpu" if slots == "gpus" else "cpu",
            "accelerators": float(size[0] if slots == "gpus" else int(size[1])),
            "memory_gib": round(max(size[2], 1.0), 6),  # of a GPU nothing is told
            "resources": {"cpu_cores": size[1], "ram_gib": round(size[2], 6)},
        }
        for size in sizes
    }
    groups = [
        {"type": names[node.kind], "count": n, **({"labels": list(node.labels)} if node.labels else {})}
        for node, n in Counter(nodes).items()
    ]
    return {"types": types, "nodes": groups}


def _apps(answer: Answer, file: str, leaves: Sequence[str], slots: Slots, left: list[str]) -> list[_App]:
    """Applications that ended, by submission."""
    reasons: Counter[str] = Counter()
    apps = []
    for k, table in enumerate(each(answer.get("app"))):
        place = f"apps.app[{k}]"
        state, queue = str(table.get("state")), _leaf(str(table.get("queue")), leaves)
        if state not in _ENDED:
            reasons["that have not ended"] += 1
            continue
        if queue is None:
            reasons[f"of {table.get('queue')}, which is no leaf of the scheduler's answer"] += 1
            continue
        app = _app(table, file, place, queue)
        if app.duration_s <= 0 or not app.mean.get(slots):
            reasons[f"that took no {slots}"] += 1
            continue
        apps.append(app)
    left += [f"{counted(n, 'application')} {reason}" for reason, n in reasons.items()]
    return sorted(apps, key=lambda app: (app.submit_ms, app.job_id))


def _leaf(queue: str, leaves: Sequence[str]) -> str | None:
    """The path of a queue given by path or by name; None = there is none."""
    path = queue.removeprefix("root.")
    named = [leaf for leaf in leaves if leaf.rpartition(".")[2] == path]
    return path if path in leaves else named[0] if len(named) == 1 else None


def _app(table: Answer, file: str, place: str, queue: str) -> _App:
    started_ms, finished_ms = (number(table, key, file, place) for key in ("startedTime", "finishedTime"))
    launched_ms = number(table, "launchTime", file, place) or started_ms
    run_s = (finished_ms - launched_ms) / 1000.0
    if run_s < 0:
        expected = f"after its start, {launched_ms:.0f}"
        raise UsageError(
            "ended before it began",
            file=file,
            field=f"{place}, finishedTime",
            value=finished_ms,
            expected=expected,
        )
    entries = each((table.get("resourceSecondsMap") or {}).get("entry"))
    gpu_s = sum(number(one, "value", file, place) for one in entries if one.get("key") == _GPU)
    seconds = {
        GPUS: gpu_s,
        CPUS: number(table, "vcoreSeconds", file, place),
        MEMORY: gib(number(table, "memorySeconds", file, place)),
    }
    key = "applicationPriority" if table.get("applicationPriority") is not None else "priority"
    return _App(
        str(table.get("id")),
        started_ms,
        run_s,
        queue,
        str(table.get("user")),
        int(number(table, key, file, place)),
        {name: amount / run_s for name, amount in seconds.items()} if run_s else {},
    )


def _tenants(apps: Sequence[_App]) -> list[str]:
    """The user of each job; QUEUE/USER for users of several queues, since a tenant has one queue."""
    queues: dict[str, set[str]] = defaultdict(set)
    for app in apps:
        queues[app.user].add(app.queue)
    return [app.user if len(queues[app.user]) == 1 else f"{app.queue}/{app.user}" for app in apps]


def _table(apps: Sequence[_App], tenants: Sequence[str], slots: Slots) -> str:
    """The jobs in trimtab's columns."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    first_ms = apps[0].submit_ms
    for app, tenant in zip(apps, tenants, strict=True):
        count = max(1, round(app.mean[slots]))
        cpus = app.mean[CPUS] / count if slots == "gpus" else 1.0
        row = ((app.submit_ms - first_ms) / 1000.0, count, app.duration_s)
        asks = (f"{cpus:.6g}", f"{app.mean[MEMORY] / count:.6g}")
        table.writerow((app.job_id, *row, tenant, app.priority, *asks))
    return text.getvalue()
