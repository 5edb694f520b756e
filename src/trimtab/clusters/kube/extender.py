"""trimtab as an extender of kube-scheduler, which keeps its own filters and, unless asked, its binding.

Filter: a node whose GPUs each have too little left for a share is left out, with the reason. Prioritize: 10
for the node that the policy ranks first, then 9, 8, 7; 0 for all others. Bind (optional): writes which GPUs
a share is of.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import numpy as np
import orjson
from aiohttp import web

from trimtab.clusters.kube.api import CONFLICT, Json, KubeApi
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.objects import KUBERNETES, SHARE, Pod, binding, pod_of
from trimtab.clusters.placement.policy_choice import PolicyChoice
from trimtab.domain.policy import Decider
from trimtab.errors import ApiRefused, TrimtabError

BEST: Final = 10
_KEPT: Final = 1000  # decisions that can be explained
_MOST_BYTES: Final = 64 << 20  # of a call: with nodeCacheCapable=false all nodes come with it


class Extender(Listener):
    """Answers kube-scheduler's calls over a mirror."""

    def __init__(self, api: KubeApi, decider: Decider, *, seed: int = 0) -> None:
        self._api = api
        self.mirror = Mirror(api)
        self.ledger = self.mirror.ledger
        self._choice = PolicyChoice(decider, self.ledger, KUBERNETES, seed=seed)
        self.degraded, self._label = self._choice.degraded, decider.label
        self._explained: OrderedDict[str, Json] = OrderedDict()  # namespace/name → the last decision
        self.mirror.listeners.append(self)

    def app(self) -> web.Application:
        """Its HTTP interface."""
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        app.router.add_post("/bind", self._bind)
        app.router.add_get("/explain/{namespace}/{name}", self._explain)
        app.router.add_get("/healthz", self._health)
        return app

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """A pod that is bound takes its place in the policy's view."""
        if pod.node_name:
            self._choice.placed(pod, pod.node_name)

    def pod_gone(self, pod: Pod) -> None:
        """And leaves it."""
        self._choice.ended(pod.uid)

    def filtered(self, pod: Pod, names: list[str]) -> tuple[list[str], dict[str, str]]:
        """(nodes that stay, node → why it does not)."""
        room, refused = self.ledger.device_room(pod), {}
        for name in names:
            j = self.ledger.index.get(name)
            if j is not None and not room[j]:
                left = max(self.ledger.devices_left(name), default=0)
                asked = pod.needs.get(SHARE, 0)
                refused[name] = f"no single GPU has {asked} of {SHARE} left; the emptiest has {left}"
        kept = [name for name in names if name not in refused]
        self._note(pod, refused=refused)
        return kept, refused

    def scored(self, pod: Pod, names: list[str]) -> dict[str, int]:
        """Node → 0 to 10."""
        able = np.zeros(len(self.ledger.nodes), np.bool_)
        able[[self.ledger.index[name] for name in names if name in self.ledger.index]] = True
        ranked = [self.ledger.nodes[j].name for j in self._choice.rank(pod, able)] if able.any() else []
        scores = {name: BEST - place for place, name in enumerate(ranked)}
        self._note(pod, policy=self._label, ranked=ranked, able=int(able.sum()))
        return scores

    async def bind(self, given: Json) -> None:
        """Bind a pod, with the GPUs of its share. Raises ApiRefused and ClusterLost."""
        node, path = given["Node"], f"/api/v1/namespaces/{given['PodNamespace']}/pods/{given['PodName']}"
        pod = self.mirror.pods.get(given["PodUID"])
        if pod is None:  # the mirror has not heard of it yet
            pod = pod_of(await self._api.get(path))
        devices = self.ledger.choose_devices(pod, node)
        if pod.share_milli and not devices and self.ledger.devices_left(node):  # taken since the filter
            raise ApiRefused(CONFLICT, "Conflict", f"no GPU of {node} has {pod.share_milli} of {SHARE} left")
        self.ledger.hold(pod, node, devices, is_assumed=True)
        self._choice.placed(pod, node)
        try:
            await self._api.post(path + "/binding", binding(pod.name, given["PodUID"], node, devices))
        except TrimtabError:
            if (held := self.ledger.held.get(pod.uid)) is not None and held.is_assumed:
                self.ledger.release(pod.uid)
                self._choice.ended(pod.uid)
            raise

    def _note(self, pod: Pod, **said: Any) -> None:
        told = self._explained.pop(pod.full_name, {}) if "refused" not in said else {}
        self._explained[pod.full_name] = told | said
        if len(self._explained) > _KEPT:
            self._explained.popitem(last=False)

    async def _filter(self, request: web.Request) -> web.Response:
        given = orjson.loads(await request.read())
        names, nodes = _names(given)
        try:
            kept, refused = self.filtered(_pod(given), names)
        except TrimtabError as error:
            return _json({"Error": str(error)})
        answer: Json = {"FailedNodes": refused, "Error": ""}
        if nodes is None:
            return _json(answer | {"NodeNames": kept})
        items = [node for node in nodes["items"] if node["metadata"]["name"] not in refused]
        return _json(answer | {"Nodes": nodes | {"items": items}})

    async def _prioritize(self, request: web.Request) -> web.Response:
        given = orjson.loads(await request.read())
        names, _ = _names(given)
        scores = self.scored(_pod(given), names)
        return _json([{"Host": name, "Score": scores.get(name, 0)} for name in names])

    async def _bind(self, request: web.Request) -> web.Response:
        try:
            await self.bind(orjson.loads(await request.read()))
        except TrimtabError as error:
            return _json({"Error": str(error)})
        return _json({"Error": ""})

    async def _explain(self, request: web.Request) -> web.Response:
        name = f"{request.match_info['namespace']}/{request.match_info['name']}"
        if name not in self._explained:
            return _json({"error": f"no decision about {name} is kept"}, 404)
        return _json({"pod": name} | self._explained[name])

    async def _health(self, request: web.Request) -> web.Response:
        """503 while the copy of the cluster does not follow the server: decisions rest on it."""
        return _json({"current": self.mirror.is_current}, 200 if self.mirror.is_current else 503)


def _pod(given: Json) -> Pod:
    return pod_of(given["Pod"])


def _names(given: Json) -> tuple[list[str], Json | None]:
    """Names of the nodes in a call, and the nodes where they came in full (nodeCacheCapable: false)."""
    nodes = given.get("Nodes")
    if nodes is None:
        return list(given.get("NodeNames") or ()), None
    return [node["metadata"]["name"] for node in nodes.get("items") or ()], nodes


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
