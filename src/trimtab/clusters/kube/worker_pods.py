"""Pods of programs: the file that describes them, how they are made, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from trimtab.clusters.kube.api import Json
from trimtab.clusters.kube.objects import GPUS, Node, amounts
from trimtab.clusters.placement.host_nodes import taken_by
from trimtab.clusters.placement.ledger import CPU
from trimtab.errors import UsageError
from trimtab.live.program_host import HostNode, Program
from trimtab.validation.base import Positive, Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

FILE: Final = "kube.yaml"
DRIVER: Final = "trimtab.io/driver"  # label of the pods and of the Lease of one process that runs programs
_STUCK: Final = (  # reasons of a container that waits and will not begin
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
)  # fmt: skip


class PodSettings(Spec):
    """How programs run as pods: the file of `--on kube://FILE`."""

    image: str = Field(min_length=1, description="image whose `python` has trimtab, and what programs import")
    namespace: str = Field("default", min_length=1, description="namespace of the pods")
    kubeconfig: str = Field(
        "", description="file; default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    context: str = Field("", description="context of that file")
    address: str = Field(
        "", description="where pods reach this machine; default: its address towards the API server"
    )
    port: int = Field(0, ge=0, le=65535, description="port that pods connect to; 0 = any that is free")
    nodes: dict[str, str] = Field({}, description="labels of the nodes that are used; none: all nodes")
    bind: Literal["scheduler", "trimtab"] = Field(
        "scheduler", description="who binds pods: a scheduler, by affinity to the node; or trimtab itself"
    )
    scheduler: str = Field("default-scheduler", description="the `schedulerName` of pods")
    requests: dict[str, str | int | float] = Field(
        {}, description="what a slot takes of a node; default: one GPU, or one CPU where a node has no GPU"
    )
    start_s: Positive = Field(300.0, description="seconds for a pod to start")
    template: dict[str, Any] = Field(
        {}, description="pod template: metadata and spec; programs run in its first container"
    )


def read_pod_settings(path: Path) -> PodSettings:
    """The settings in a file. Raises UsageError."""
    text = read_yaml(path, UsageError)
    data = parsed_yaml(text, str(path), UsageError, "no settings of pods", "a table with image: …")
    found = checked(lambda: PodSettings.model_validate(data), PodSettings, str(path), UsageError)
    try:
        amounts(found.requests, "requests")
    except UsageError as error:
        raise UsageError(
            error.problem, file=str(path), field=error.field, value=error.value, expected=error.expected
        ) from None
    containers = found.template.get("spec", {}).get("containers", [{}])
    if not (isinstance(containers, list) and containers and all(isinstance(c, dict) for c in containers)):
        raise UsageError(
            "is no list of containers", file=str(path), field="template.spec.containers", expected="[{…}]"
        )
    return found


def gpu_of(node: Node) -> str:
    """The resource that a node's GPUs are; "" = it has none."""
    return next((name for name in GPUS if node.allocatable.get(name)), "")


def asked_by(program: Program, node: HostNode, gpu: str) -> dict[str, str]:
    """The requests of a program's pod. Raises ConnectionError for a part of a GPU."""
    taken = taken_by(program, node, gpu)
    return {name: f"{amount}m" if name == CPU else str(amount) for name, amount in taken.items()}


def worker_pod(
    settings: PodSettings, name: str, owner: Json, node: str, program: Program, asked: Mapping[str, str]
) -> Json:
    """The pod that runs a program on a node. It is deleted with its owner, and ends when its link does."""
    template = deepcopy(settings.template)
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    first, *others = spec.pop("containers", None) or [{}]
    told = first.get("resources") or {}
    limits = {resource: amount for resource, amount in asked.items() if "/" in resource}
    variables = [{"name": key, "value": value} for key, value in program.env.items()]
    container = {
        "name": "trimtab",
        **first,
        "image": settings.image,
        "command": list(program.argv),
        "env": [*(first.get("env") or ()), *variables],
        "resources": {
            "requests": {**(told.get("requests") or {}), **asked},
            "limits": {**(told.get("limits") or {}), **limits},
        },
    }
    container.pop("args", None)
    if settings.bind == "trimtab":
        spec["nodeName"] = node
    else:
        _pin(spec, node)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": name,
            "labels": {**(metadata.get("labels") or {}), DRIVER: owner["name"]},
            "ownerReferences": [owner],
        },
        "spec": {
            "terminationGracePeriodSeconds": max(1, int(program.grace_s)),
            **spec,
            "schedulerName": settings.scheduler,
            "restartPolicy": "Never",
            "containers": [container, *others],
        },
    }


def _pin(spec: Json, node: str) -> None:
    """Have a scheduler bind a pod to this node alone: it then keeps the accounts of the node."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    terms = affinity.get(required, {}).get("nodeSelectorTerms") or [{}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{**term, "matchFields": [*term.get("matchFields", ()), field]} for term in terms]
    affinity[required] = {"nodeSelectorTerms": terms}


def how_it_ended(pod: Json) -> str:
    """How a pod has ended, or that it cannot begin; follows the word "ended". Empty: it goes on."""
    status = pod.get("status") or {}
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    if status.get("phase") == "Succeeded":
        return "with code 0"
    if status.get("phase") == "Failed":
        ended = (state["terminated"] for state in states if "terminated" in state)
        codes = [f"{one.get('reason') or 'Error'} (exit code {one.get('exitCode')})" for one in ended]
        told = [status.get("reason"), status.get("message"), *codes]
        return f"as its pod failed: {': '.join(filter(None, told)) or 'no reason is told'}"
    for state in states:
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            why = ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
            return f"as its pod cannot begin: {why}"
    return ""


def why_it_waits(pod: Json) -> str:
    """Why a pod is not bound; empty: it is, or nobody has said."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
