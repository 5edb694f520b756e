"""What a cluster lacks for trimtab to work on it: rights, GPUs, APIs, clock, Lease. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from trimtab.clusters.findings import Finding
from trimtab.clusters.kube.api import Json, KubeApi
from trimtab.clusters.kube.gangs import APIS
from trimtab.clusters.kube.lease import Lease
from trimtab.clusters.kube.mirror import NODES
from trimtab.clusters.kube.objects import GPUS, SHARE, Node, node_of
from trimtab.errors import ApiRefused, ClusterLost
from trimtab.words import counted

Mode = Literal["scheduler", "extender", "record"]


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource."""

    verb: str
    resource: str  # of the core API, or group/resource; resource:subresource
    why: str
    namespace: str = ""  # "" = all
    name: str = ""  # "" = all

    @property
    def attributes(self) -> Json:
        """As the API wants it."""
        group, _, name = self.resource.rpartition("/")
        resource, _, subresource = name.partition(":")
        return {
            "verb": self.verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }


_READS: Final = tuple(
    Right(verb, resource, why)
    for resource, why in (("nodes", "what they offer"), ("pods", "what they hold"))
    for verb in ("list", "watch")
)
_SCHEDULES: Final = (
    Right("create", "pods:binding", "binds pods"),
    Right("get", "pods", "asks whether one is bound"),
    Right("patch", "pods:status", "says why a pod waits"),
    Right("create", "events", "says what was done"),
)
_PREEMPTS: Final = Right("create", "pods:eviction", "makes room for pods of higher priority")
MODES: Final = get_args(Mode)
_SKEW_S: Final = 5.0  # the server tells whole seconds


def rights_of(mode: Mode, lease: Lease | None = None, *, preempts: bool = False) -> tuple[Right, ...]:
    """The rights that a mode needs."""
    if mode != "scheduler":
        return _READS
    found = (*_READS, *_SCHEDULES, *((_PREEMPTS,) if preempts else ()))
    if lease is None:
        return found
    resource, why, where = "coordination.k8s.io/leases", "one copy is active", lease.namespace
    named = (Right(verb, resource, why, where, lease.name) for verb in ("get", "update"))
    return (*found, Right("create", resource, why, where), *named)


async def check(api: KubeApi, rights: tuple[Right, ...], lease: Lease | None) -> list[Finding]:
    """Everything that can be said before something starts; a server that is gone is one finding."""
    try:
        return [found async for found in _found(api, rights, lease)]
    except ClusterLost as error:
        return [Finding(True, str(error), True)]
    except ApiRefused as error:
        return [Finding(True, f"{error} (HTTP {error.status})", True)]


async def _found(api: KubeApi, rights: tuple[Right, ...], lease: Lease | None):  # type: ignore[no-untyped-def]
    version = await api.get("/version")
    yield Finding(False, f"server {api.host}: version {version['gitVersion']}")
    skew_s = api.clock_skew_s
    is_off = abs(skew_s) > _SKEW_S
    yield Finding(is_off, f"clock of the server: {skew_s:+.0f} s from this machine's" + (
        f"; expected less than {_SKEW_S:.0f} s" if is_off else ""
    ))  # fmt: skip
    lacking = await _lacking(api, rights)
    for right in lacking:
        yield Finding(True, f"no right to {right.verb} {right.resource.replace(':', '/')}: {right.why}", True)
    if not lacking:
        yield Finding(False, f"rights: all {len(rights)} that are needed")
    if not any(right.resource == "nodes" for right in lacking):
        objects, _ = await api.list(NODES)
        for finding in _of_nodes([node_of(each) for each in objects]):
            yield finding
    for finding in await _of_apis(api):
        yield finding
    if lease is not None and not any("leases" in right.resource for right in lacking):
        holder = await lease.holder()
        yield Finding(bool(holder), f"Lease {lease.name}: " + (f"held by {holder}" if holder else "free"))


async def _lacking(api: KubeApi, rights: tuple[Right, ...]) -> list[Right]:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    async def is_allowed(right: Right) -> bool:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": right.attributes},
        }
        return bool((await api.post(path, body))["status"]["allowed"])

    allowed = await asyncio.gather(*(is_allowed(right) for right in rights))
    return [right for right, is_one in zip(rights, allowed, strict=True) if not is_one]


def _of_nodes(nodes: list[Node]) -> Iterator[Finding]:
    gpus = sum(node.gpus for node in nodes)
    shares = sum(node.n_devices for node in nodes)
    able = sum(node.takes_pods for node in nodes)
    text = f"{counted(len(nodes), 'node')}, {able} ready: {counted(gpus, 'GPU')}, {shares} given in shares"
    names = ", ".join((*GPUS, SHARE))
    yield Finding(not gpus + shares, text if gpus + shares else f"{text}; expected nodes that offer {names}")
    for node in nodes:
        if node.problem:
            yield Finding(True, f"node {node.name}: {node.problem}")


async def _of_apis(api: KubeApi) -> list[Finding]:
    served = [
        f"{group}/{version}" for group, version, _ in APIS if await api.serves(group, version, "podgroups")
    ]
    groups = (
        f"PodGroup: {served[0]}" if served else "PodGroup: not served; gangs are annotated (trimtab.io/gang)"
    )
    claims = [v for v in ("v1", "v1beta1") if await api.serves("resource.k8s.io", v, "resourceclaims")]
    told = f"device claims: resource.k8s.io/{claims[0]}; only kube-scheduler takes them" if claims else (
        "device claims: not served"
    )  # fmt: skip
    return [Finding(False, groups), Finding(False, told)]
