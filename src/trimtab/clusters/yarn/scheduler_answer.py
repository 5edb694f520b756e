"""The queues of a ResourceManager's answer about its scheduler: Capacity or Fair.

The answer is written as the configuration that would give it, and read as such. What the answer does not
tell: times of preemption, and the weights of the Fair Scheduler, which its steady shares stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trimtab.clusters.yarn.capacity_queues import MONITOR, PREFIX, capacity_queues
from trimtab.clusters.yarn.fair_queues import fair_queues
from trimtab.clusters.yarn.hadoop_xml import Element, Value
from trimtab.clusters.yarn.imported_queues import ImportedQueues, NotCarried
from trimtab.clusters.yarn.rest_answers import Answer, each, number
from trimtab.clusters.yarn.yarn_amounts import Amounts, absolute
from trimtab.errors import UsageError

_CAPACITY, _FAIR = "capacityScheduler", "fairScheduler"
_MOST: Final = 2**31 - 1
_LEAST_SHARE: Final = 1e-6


def answered_queues(
    answer: Answer,
    file: str,
    total: Amounts | None = None,
    tenants: Mapping[str, Sequence[str]] | None = None,
) -> ImportedQueues:
    """The queues of an answer, below its key `scheduler`. Raises UsageError: another scheduler.

    Args:
        answer: the answer.
        file: for messages.
        total: what the cluster has; None = what the answer says, where it does.
        tenants: path of a leaf → who submits to it; None = as answered.
    """
    info = _info(answer, file)
    if info["type"] == _CAPACITY:
        properties = {value.name: value for value in _properties(info, file)}
        queues = capacity_queues(properties, file, total, tenants)
        preempts = MONITOR in properties and properties[MONITOR].is_true()
        return _with_times(queues) if preempts else queues
    return _fair(info, file, total, tenants)


def _info(answer: Answer, file: str) -> Answer:
    """What an answer says of the scheduler. Raises UsageError: one without queues."""
    info = answer.get("schedulerInfo")
    kind = info.get("type") if isinstance(info, Mapping) else None
    if not isinstance(info, Mapping) or kind not in (_CAPACITY, _FAIR):
        place, expected = "schedulerInfo.type", f"{_CAPACITY} or {_FAIR}"
        raise UsageError("no queues in it", file=file, field=place, value=kind, expected=expected)
    return info


def _with_times(queues: ImportedQueues) -> ImportedQueues:
    why = "times of preemption are not in the answer: 18 s, the default"
    return replace(queues, not_carried=(NotCarried(MONITOR, "true", why), *queues.not_carried))


def leaf_paths(answer: Answer, file: str) -> list[str]:
    """Paths of all leaves, without `root`. Raises UsageError."""
    info = _info(answer, file)
    root = info.get("rootQueue", info)

    def below(queue: Answer, path: str) -> Iterator[str]:
        children = _children(queue)
        if not children and path:
            yield path
        for child in children:
            yield from below(child, f"{path}.{_name(child)}".lstrip("."))

    return list(below(root, ""))


def _name(queue: Answer) -> str:
    return str(queue.get("queueName", "")).rpartition(".")[2]


def _children(queue: Answer) -> list[Answer]:
    """The queues below one, of either scheduler."""
    found = queue.get("queues", queue.get("childQueues"))
    return each(found.get("queue")) if isinstance(found, Mapping) else each(found)


def _properties(info: Answer, file: str) -> Iterator[Value]:
    """The properties of capacity-scheduler.xml that an answer is of."""

    def put(path: str, key: str, value: object) -> Value:
        return Value(str(value), file, f"{PREFIX}{path}.{key}")

    def below(queue: Answer, path: str) -> Iterator[Value]:
        children = _children(queue)
        if children:
            yield put(path, "queues", ",".join(map(_name, children)))
        for child in children:
            own = f"{path}.{_name(child)}"
            yield from (put(own, key, value) for key, value in _own(child, file, own))
            yield from below(child, own)

    yield from below(info, "root")
    disabled = {
        str(leaf["preemptionDisabled"]).lower() for _, leaf in _paths(info) if "preemptionDisabled" in leaf
    }
    if disabled:
        yield Value(str("false" in disabled).lower(), file, MONITOR)
    users = (f"u:{user['username']}:{path}" for path, leaf in _paths(info) for user in each(_users(leaf)))
    named = ",".join(users)
    if named:
        yield Value(named, file, f"{PREFIX}queue-mappings")


def _users(leaf: Answer) -> Any:
    users = leaf.get("users")
    return users.get("user") if isinstance(users, Mapping) else None


def _paths(info: Answer, above: str = "root") -> Iterator[tuple[str, Answer]]:
    """Path and leaf."""
    for child in _children(info):
        path = f"{above}.{_name(child)}"
        if _children(child):
            yield from _paths(child, path)
        else:
            yield path, child


def _own(queue: Answer, file: str, path: str) -> Iterator[tuple[str, object]]:
    """Keys and values of one queue."""
    partition = next(
        (
            part
            for part in each((queue.get("capacities") or {}).get("queueCapacitiesByPartition"))
            if not part.get("partitionName")
        ),
        {},
    )
    weight = number(queue, "weight", file, path)
    if str(queue.get("isAbsoluteResource", "false")).lower() == "true":
        yield "capacity", _resources(partition.get("configuredMinResource"))
        yield "maximum-capacity", _resources(partition.get("configuredMaxResource"))
    else:
        yield "capacity", f"{weight:g}w" if weight > 0 else _percent(queue, "capacity", file, path)
        if "maxCapacity" in queue:
            yield "maximum-capacity", _percent(queue, "maxCapacity", file, path)
    for ours, theirs in (("state", "state"), ("user-limit-factor", "userLimitFactor")):
        if queue.get(theirs) is not None:
            yield ours, queue[theirs]
    if queue.get("userLimit") is not None:
        yield "minimum-user-limit-percent", f"{number(queue, 'userLimit', file, path):.0f}"
    most = number(queue, "maxParallelApps", file, path)
    if 0 < most < _MOST:
        yield "max-parallel-apps", f"{most:.0f}"
    policy = str(queue.get("orderingPolicyInfo") or "fifo")
    if not policy.lower().startswith("fifo"):
        yield "ordering-policy", "fair" if policy.lower().startswith("fair") else policy
    if "preemptionDisabled" in queue:
        yield "disable_preemption", queue["preemptionDisabled"]


def _percent(queue: Answer, key: str, file: str, path: str) -> float:
    """A percentage without the noise of single precision: 30.000002."""
    return round(number(queue, key, file, path), 4)


def _resources(resource: Any) -> str:
    """A resource as `[memory-mb=1024Mi,vcores=5]`."""
    return f"[{','.join(_named(resource))}]"


def _named(resource: Any) -> Iterator[str]:
    if not isinstance(resource, Mapping):
        return
    listed = each((resource.get("resourceInformations") or {}).get("resourceInformation"))
    if listed:
        yield from (f"{one.get('name')}={one.get('value')}{one.get('units') or ''}" for one in listed)
    else:
        yield from (f"memory-mb={resource.get('memory', 0)}", f"vcores={resource.get('vCores', 0)}")


def amounts_of(resource: Any, file: str, place: str) -> dict[str, float]:
    """A resource of an answer, in trimtab's names and units; resources that it has not are left out."""
    return absolute(Value(_resources(resource), file, place)).amounts


def _fair(
    info: Answer, file: str, total: Amounts | None, tenants: Mapping[str, Sequence[str]] | None
) -> ImportedQueues:
    root = info.get("rootQueue")
    if not isinstance(root, Mapping):
        raise UsageError("missing", file=file, field="schedulerInfo.rootQueue", expected="the root queue")
    total = total or amounts_of(root.get("clusterResources"), file, "clusterResources")
    has_shares = any("steadyFairResources" in queue for queue in _children(root))
    made = _elements(root, file, total)
    queues = fair_queues(Element("allocations", children=made.children), {}, file, total, tenants)
    weights = "from steady fair shares of memory" if has_shares else "all 1: no steady fair shares in it"
    known = (
        NotCarried("weights", "not in the answer", weights),
        NotCarried("preemption timeouts", "not in the answer", "queues do not preempt"),
    )
    return replace(queues, not_carried=(*known, *queues.not_carried))


def _elements(queue: Answer, file: str, total: Amounts) -> Element:
    """A queue as an element of fair-scheduler.xml."""
    path = str(queue.get("queueName"))

    def child(tag: str, text: str) -> Element:
        return Element(tag, content=text)

    has = {
        key: amounts_of(queue.get(key), file, f"{path}, {key}") for key in ("minResources", "maxResources")
    }
    least = {name: min(amount, total.get(name, 0.0)) for name, amount in has["minResources"].items()}
    children = [child("schedulingPolicy", str(queue.get("schedulingPolicy", "fair")))]
    if any(least.values()):
        children.append(child("minResources", _text(least)))
    bound = {n: most for n, most in has["maxResources"].items() if most < total.get(n, 0.0)}
    if bound:
        children.append(child("maxResources", _text(bound)))
    most = number(queue, "maxApps", file, path)
    if 0 <= most < _MOST and "maxApps" in queue:
        children.append(child("maxRunningApps", f"{most:.0f}"))
    steady = amounts_of(queue.get("steadyFairResources"), file, f"{path}, steadyFairResources")
    if steady.get("memory_gib"):
        children.append(child("weight", f"{max(steady['memory_gib'], _LEAST_SHARE):.9g}"))
    if str(queue.get("preemptable", "true")).lower() == "false":
        children.append(child("allowPreemptionFrom", "false"))
    below = [_elements(each_child, file, total) for each_child in _children(queue)]
    return Element("queue", {"name": _name(queue)}, children=[*children, *below])


def _text(amounts: Amounts) -> str:
    ours = {"memory_gib": "memory-mb", "cpus": "vcores", "gpus": "yarn.io/gpu"}
    units = {"memory_gib": 1024.0}
    return ", ".join(f"{ours[n]}={amount * units.get(n, 1.0):.0f}" for n, amount in amounts.items())
