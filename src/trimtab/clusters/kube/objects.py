"""Nodes and pods as a scheduler reads them: what they have and need, and what pods demand of nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, WHOLE_GPU, Holding, Ledger, Place, Resources
from trimtab.domain.needs import Host
from trimtab.domain.needs import Need as PolicyNeed
from trimtab.errors import UsageError
from trimtab.validation.quantities import whole

Json = Mapping[str, Any]

PREFIX: Final = "trimtab.io/"
SHARE: Final = "trimtab.io/gpu-milli"  # thousandths of one GPU, an extended resource of nodes
DEVICES: Final = "trimtab.io/devices"  # annotation of a bound pod: which GPUs its share is of
GANG: Final = "trimtab.io/gang"  # annotation: pods of one name and namespace are bound together
GANG_MIN: Final = "trimtab.io/gang-min"  # annotation: how many of them at least
EXPECTED_S: Final = "trimtab.io/expected-seconds"  # annotation: of a pod's run, on a node of speed 1
SPEED: Final = "trimtab.io/speed"  # label of a node: relative speed
PRICE: Final = "trimtab.io/usd-per-hour"  # label of a node
GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"  # label of a pod: its PodGroup, a CRD
GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
PODS: Final = "pods"
RESOURCES: Final = Resources(GPUS, PODS, SHARE)
KUBERNETES: Final = Host(
    "Kubernetes scheduler",
    {
        PolicyNeed.RESOURCES: "",
        PolicyNeed.RESIDENCY: "images that nodes report",
        PolicyNeed.PRICES: "labels trimtab.io/usd-per-hour",
        PolicyNeed.PRIORITIES: "",
        PolicyNeed.HOLDING: "",
        PolicyNeed.REPORTED_LOAD: "",
        PolicyNeed.FULL_SPEED: "",
    },
)
_PER: Final = {CPU: 1000}  # of a resource's unit; CPU is counted in thousandths
_OVER: Final = ("Succeeded", "Failed")
_ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_PRODUCT: Final = (
    "nvidia.com/gpu.product",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
)
_GPU_MEMORY_MIB: Final = "nvidia.com/gpu.memory"


class Taint(NamedTuple):
    """A taint of a node."""

    key: str
    value: str
    effect: str


class Need(NamedTuple):
    """One expression of a selector: the values of a key that are wanted (In, NotIn, Exists, Gt, …)."""

    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it."""
        value = labels.get(self.key)
        if self.operator in ("Exists", "DoesNotExist"):
            return (value is not None) == (self.operator == "Exists")
        if self.operator == "In":
            return value in self.values
        if self.operator == "NotIn":
            return value not in self.values
        try:
            is_more = int(value or "") > int(self.values[0])
            is_less = int(value or "") < int(self.values[0])
        except (ValueError, IndexError):
            return False
        return is_more if self.operator == "Gt" else is_less if self.operator == "Lt" else False


class Term(NamedTuple):
    """Expressions that hold together; an empty one of nodes holds nowhere."""

    labels: tuple[Need, ...]
    fields: tuple[Need, ...] = ()

    def holds(self, labels: Mapping[str, str], name: str = "") -> bool:
        """Whether labels, and the name, meet all of it."""
        return all(need.holds(labels) for need in self.labels) and all(
            need.holds({"metadata.name": name}) for need in self.fields
        )


class Spread(NamedTuple):
    """A topology spread constraint that must be kept."""

    key: str
    max_skew: int
    selector: Term


class Near(NamedTuple):
    """A required term of pod affinity or anti-affinity."""

    key: str
    selector: Term
    namespaces: tuple[str, ...]  # () = the pod's own


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a pod demands of nodes, whatever runs there. Pods of one template have one object."""

    tolerations: tuple[Mapping[str, str], ...]
    selector: tuple[tuple[str, str], ...]
    affinity: tuple[Term, ...] | None  # any of them; None = none given


@dataclass(frozen=True, slots=True)
class Node:
    """A node. Two are equal if nothing that matters to a scheduler differs."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_cordoned: bool
    is_ready: bool
    allocatable: Mapping[str, int]
    images: Mapping[str, int]  # name → bytes
    problem: str = ""  # why it takes no pods: what of it cannot be read

    @property
    def zone(self) -> str:
        """Its zone; "" = none told."""
        return next((self.labels[key] for key in _ZONE if key in self.labels), "")

    @property
    def type_name(self) -> str:
        """Its GPU, else its instance type."""
        named = [self.labels[key] for key in _PRODUCT if key in self.labels]
        return "/".join(dict.fromkeys(named)) or "node"

    @property
    def usd_per_hour(self) -> float:
        """Its price, by its label; 0 = none told."""
        return _number(self.labels, PRICE, 0.0)

    @property
    def speed(self) -> float:
        """Its speed, by its label, relative to 1."""
        return _number(self.labels, SPEED, 1.0)

    @property
    def gpu_gib(self) -> float:
        """Memory of one of its GPUs; 0 = none told."""
        return _number(self.labels, _GPU_MEMORY_MIB, 0.0) / 1024.0

    @property
    def takes_pods(self) -> bool:
        """Whether it is ready and not cordoned."""
        return self.is_ready and not self.is_cordoned

    @property
    def gpus(self) -> int:
        """Whole GPUs that it offers, beside those of which it gives shares."""
        return sum(self.allocatable.get(name, 0) for name in GPUS)

    @property
    def n_devices(self) -> int:
        """GPUs that it gives shares of."""
        return self.allocatable.get(SHARE, 0) // WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    uid: str
    namespace: str
    name: str
    scheduler: str
    node_name: str  # "" = not bound
    phase: str
    is_ending: bool
    needs: Mapping[str, int]
    priority: int
    preempts: bool  # its policy allows it to preempt others
    created_s: float
    labels: Mapping[str, str]
    terms: Terms
    spreads: tuple[Spread, ...]
    affinity: tuple[Near, ...]
    anti_affinity: tuple[Near, ...]
    ports: tuple[tuple[str, int], ...]  # (protocol, port) of the node that it takes
    image: str
    gang: str  # "" = none
    gang_min: int  # 0 = as its PodGroup says
    group: str  # name of its PodGroup; "" = none
    expected_s: float
    devices: tuple[int, ...]  # as annotated
    refusal: str  # why this scheduler cannot take it; "" = it can
    reason: str  # of the condition PodScheduled=False, as last written by anyone
    nominated: str

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_over(self) -> bool:
        """Whether it holds nothing any more."""
        return self.phase in _OVER

    @property
    def share_milli(self) -> int:
        """Thousandths of GPUs that it asks for as SHARE."""
        return self.needs.get(SHARE, 0)

    @property
    def gpus(self) -> int:
        """Whole GPUs that it asks for."""
        return sum(self.needs.get(name, 0) for name in GPUS)

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs that it asks for, as shares and whole."""
        return self.share_milli + WHOLE_GPU * self.gpus

    @property
    def demand(self) -> tuple[float, float, float]:
        """Cores, GiB of memory, thousandths of GPUs."""
        return self.needs.get(CPU, 0) / 1000.0, self.needs.get(MEMORY, 0) / GIB, float(self.gpu_milli)

    @property
    def repels(self) -> bool:
        """Whether it keeps others off, by anti-affinity."""
        return bool(self.anti_affinity)


PodLedger = Ledger[Node, Pod]
PodHolding = Holding[Pod]
PodPlace = Place[Pod]


def binding(name: str, uid: str, node_name: str, devices: Sequence[int]) -> dict[str, Any]:
    """A Binding of a pod to a node. The server writes its annotations on the pod, in the same step."""
    annotations = {DEVICES: ",".join(map(str, devices))} if devices else {}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
    }


def node_of(given: Json) -> Node:
    """A node of the API. One that cannot be read takes no pods, and says why."""
    metadata, spec, status = given["metadata"], given.get("spec", {}), given.get("status", {})
    taints = tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ())
    try:
        allocatable, problem = amounts(status.get("allocatable") or {}, "status.allocatable"), ""
    except UsageError as error:
        allocatable, problem = {}, str(error)
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    images = {
        name: int(image.get("sizeBytes", 0))
        for image in status.get("images") or ()
        for name in image["names"] or ()
    }
    return Node(
        metadata["name"],
        metadata.get("labels") or {},
        taints,
        bool(spec.get("unschedulable")),
        conditions.get("Ready") == "True",
        allocatable,
        images,
        problem,
    )


def amounts(given: Mapping[str, Any], field: str) -> dict[str, int]:
    """Resource → amount, CPU in thousandths of a core. Raises UsageError for what is no quantity."""
    return {name: whole(value, f"{field}[{name}]", per=_PER.get(name, 1)) for name, value in given.items()}


def pod_of(given: Json) -> Pod:
    """A pod of the API. What of it cannot be read is its `refusal`."""
    metadata, spec, status = given["metadata"], given["spec"], given.get("status", {})
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    problems: list[str] = []
    try:
        needs = _needs(spec)
    except UsageError as error:
        needs = {PODS: 1}
        problems.append(str(error))
    containers: Sequence[Json] = spec["containers"]
    affinity = spec.get("affinity") or {}
    scheduled = [c for c in status.get("conditions") or () if c["type"] == "PodScheduled"]
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        scheduler=spec.get("schedulerName", ""),
        node_name=spec.get("nodeName") or "",
        phase=status.get("phase", "Pending"),
        is_ending="deletionTimestamp" in metadata,
        needs=needs,
        priority=int(spec.get("priority") or 0),
        preempts=spec.get("preemptionPolicy") != "Never",
        created_s=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        labels=labels,
        terms=_terms(json.dumps([spec.get(n) for n in ("tolerations", "nodeSelector", "affinity")])),
        spreads=tuple(
            Spread(each["topologyKey"], int(each["maxSkew"]), _selector(each.get("labelSelector")))
            for each in spec.get("topologySpreadConstraints") or ()
            if each["whenUnsatisfiable"] == "DoNotSchedule"
        ),
        affinity=_near(affinity.get("podAffinity")),
        anti_affinity=_near(affinity.get("podAntiAffinity")),
        ports=tuple(
            (port.get("protocol", "TCP"), int(port["hostPort"]))
            for container in containers
            for port in container.get("ports") or ()
            if port.get("hostPort")
        ),
        image=containers[0].get("image", ""),
        gang=annotations.get(GANG, ""),
        gang_min=_count(annotations, GANG_MIN, problems),
        group=(spec.get("schedulingGroup") or {}).get("podGroupName", "") or labels.get(GROUP_LABEL, ""),
        expected_s=_number(annotations, EXPECTED_S, 1.0),
        devices=_devices(annotations.get(DEVICES, "")),
        refusal="; ".join(problems + _unsupported(spec, needs)),
        reason=scheduled[0].get("message", "") if scheduled and scheduled[0]["status"] == "False" else "",
        nominated=status.get("nominatedNodeName") or "",
    )


def _needs(spec: Json) -> dict[str, int]:
    """What a pod takes: its containers together, or the largest that runs before them; with overhead."""

    def of(container: Json) -> dict[str, int]:
        asked = (container.get("resources") or {}).get("requests") or {}
        return amounts(asked, f"container {container['name']}: resources.requests")

    total: dict[str, int] = {PODS: 1}
    for container in spec["containers"]:
        _add(total, of(container))
    beside: dict[str, int] = {}  # of sidecars begun so far
    first: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = of(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(beside, own)
            own = {}
        for name, amount in own.items():
            first[name] = max(first.get(name, 0), amount + beside.get(name, 0))
    for name, amount in first.items():
        total[name] = max(total.get(name, 0), amount)
    _add(total, amounts(spec.get("overhead") or {}, "overhead"))
    return {name: amount for name, amount in total.items() if amount}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _unsupported(spec: Json, needs: Mapping[str, int]) -> list[str]:
    """What of a pod this scheduler does not decide about: left out would be a pod on a wrong node."""
    found = []
    if spec.get("resourceClaims"):
        claims = ", ".join(claim["name"] for claim in spec["resourceClaims"])
        found.append(f"device claims ({claims}) are for kube-scheduler: use `trimtab kube extender`")
    claimed = [
        volume["name"]
        for volume in spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume or "ephemeral" in volume
    ]
    if claimed:
        found.append(
            f"volume claims ({', '.join(claimed)}) are for kube-scheduler: use `trimtab kube extender`"
        )
    share = needs.get(SHARE, 0)
    if share > WHOLE_GPU and share % WHOLE_GPU:
        found.append(
            f"{SHARE}: {share} is neither a part of one GPU nor whole GPUs; expected 1 to 1000, or 1000 × n"
        )
    return found


@lru_cache(maxsize=4096)
def _terms(text: str) -> Terms:
    """Pods of one template get one object, so that what follows from it is found again."""
    tolerations, selector, affinity = json.loads(text)
    required = ((affinity or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    wanted = None
    if required is not None:
        wanted = tuple(
            Term(_expressions(t.get("matchExpressions")), _expressions(t.get("matchFields")))
            for t in required["nodeSelectorTerms"]
            if t.get("matchExpressions") or t.get("matchFields")
        )
    return Terms(tuple(tolerations or ()), tuple((selector or {}).items()), wanted)


def _expressions(given: Sequence[Json] | None) -> tuple[Need, ...]:
    return tuple(Need(e["key"], e["operator"], tuple(e.get("values") or ())) for e in given or ())


def _selector(given: Json | None) -> Term:
    """A label selector; none at all selects nothing."""
    if given is None:
        return Term((Need("", "In", ()),))
    equal = tuple(Need(key, "In", (value,)) for key, value in (given.get("matchLabels") or {}).items())
    return Term(equal + _expressions(given.get("matchExpressions")))


def _near(given: Json | None) -> tuple[Near, ...]:
    terms = (given or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return tuple(
        Near(t["topologyKey"], _selector(t.get("labelSelector")), tuple(t.get("namespaces") or ()))
        for t in terms
    )


def _count(annotations: Mapping[str, str], key: str, problems: list[str]) -> int:
    text = annotations.get(key, "0")
    if text.isdecimal() and len(text) < 7:
        return int(text)
    problems.append(f"annotation {key}: {text!r} is no count; expected a whole number of pods")
    return 0


def _number(texts: Mapping[str, str], key: str, default: float) -> float:
    """A number above 0 in a label or annotation; `default` for anything else."""
    try:
        value = float(texts.get(key, default))
    except ValueError:
        return default
    return value if 0.0 < value < 1e12 else default


def _devices(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.isdecimal())
