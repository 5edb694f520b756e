"""Gangs: pods that are bound together or not at all. Their least number is annotated or their PodGroup's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from trimtab.clusters.kube.api import KubeApi, follow
from trimtab.clusters.kube.objects import Pod

# (group, version) of an API that may serve PodGroups, and where the least number stands in one
APIS: Final = (
    ("scheduling.k8s.io", "v1beta1", ("schedulingPolicy", "gang", "minCount")),
    ("scheduling.k8s.io", "v1alpha3", ("schedulingPolicy", "gang", "minCount")),
    ("scheduling.x-k8s.io", "v1alpha1", ("minMember",)),
)


class GangKey(NamedTuple):
    """Names a gang."""

    namespace: str
    name: str
    is_group: bool  # it is a PodGroup's


class PodGroups:
    """The PodGroups of a cluster whose API has them."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._least: dict[tuple[str, str], int] = {}
        self.changed: Callable[[], None] = lambda: None
        self.served = ""  # the API that is followed, as group/version

    async def run(self) -> None:
        """Follow the PodGroups of the first API that has them, for ever; ends where none has."""
        for group, version, at in APIS:
            if await self._api.serves(group, version, "podgroups"):
                self.served = f"{group}/{version}"

                def note(kind: str, given: dict[str, Any], at: tuple[str, ...] = at) -> None:
                    self._note(at, kind, given)

                def listed(objects: list[dict[str, Any]], at: tuple[str, ...] = at) -> None:
                    self._least.clear()
                    for each in objects:
                        self._note(at, "ADDED", each)

                path = f"/apis/{group}/{version}/podgroups"
                await follow(self._api, path, listed, note, lambda _: None)

    def least(self, namespace: str, name: str) -> int | None:
        """Least number of pods of a PodGroup; None = there is no such group."""
        return self._least.get((namespace, name))

    def _note(self, at: tuple[str, ...], kind: str, given: dict[str, Any]) -> None:
        key = given["metadata"]["namespace"], given["metadata"]["name"]
        if kind == "DELETED":
            self._least.pop(key, None)
        else:
            found: Any = given.get("spec") or {}
            for name in at:
                found = (found or {}).get(name)
            self._least[key] = int(found or 1)
        self.changed()


def gang_of(pod: Pod) -> GangKey | None:
    """The gang of a pod; None = it is alone."""
    if pod.gang:
        return GangKey(pod.namespace, pod.gang, False)
    return GangKey(pod.namespace, pod.group, True) if pod.group else None


def least_of(key: GangKey, members: Iterable[Pod], groups: PodGroups) -> int | None:
    """How many pods of a gang are bound together at least; None = its PodGroup is not there."""
    if key.is_group:
        return groups.least(key.namespace, key.name)
    return max((pod.gang_min for pod in members), default=0)
