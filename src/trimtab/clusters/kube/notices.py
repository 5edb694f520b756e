"""What users of a scheduler look at: events of pods, and the condition PodScheduled with its reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from trimtab.clusters.kube.api import KubeApi
from trimtab.clusters.kube.lease import time_text
from trimtab.clusters.kube.objects import Pod
from trimtab.errors import ApiRefused, ClusterLost

_MOST: Final = 10_000  # notices that wait; older ones are dropped
_YIELDS_S, _LOOK_S = 1.0, 0.02
_FIRST_S, _LONGEST_S = 2.0, 60.0  # between two changes of one pod's reason

logger = logging.getLogger(__name__)


class Notices:
    """Sends notices one after the other, behind the bindings. Each pod's reason is told when it changes.

    Reasons hold counts of nodes, which change often: each is told at most every 2 s, later every minute.
    """

    def __init__(self, api: KubeApi, component: str, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether there is more urgent work; notices then wait, each a second at most."""
        self._api, self._component, self._is_busy = api, component, is_busy
        self._waiting: deque[tuple[float, str, str, dict[str, Any]]] = deque(maxlen=_MOST)
        self._told: dict[str, tuple[str, float, float]] = {}  # uid → reason, told when, pause until the next
        self._reasons: dict[str, tuple[Pod, str]] = {}  # to be told
        self._came = asyncio.Event()

    async def run(self) -> None:
        """Send what comes, for ever. A notice that the server refuses is dropped."""
        while True:
            self._collect()
            if not self._waiting:
                self._came.clear()
                with contextlib.suppress(TimeoutError):  # `wait_for` loses cancellations before 3.12
                    async with asyncio.timeout(_FIRST_S / 4 if self._reasons else None):
                        await self._came.wait()
                continue
            if self._is_busy() and time.monotonic() - self._waiting[0][0] < _YIELDS_S:
                await asyncio.sleep(_LOOK_S)
                continue
            _, method, path, body = self._waiting.popleft()
            try:
                await (self._api.post if method == "POST" else self._api.patch)(path, body)
            except (ApiRefused, ClusterLost) as error:
                logger.info("a notice was not taken: %s", error)

    def event(self, pod: Pod, kind: str, reason: str, message: str, action: str = "Binding") -> None:
        """Write an event of a pod. `kind`: Normal or Warning."""
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "action": action,
            "eventTime": time_text(),
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "source": {"component": self._component},
        }
        self._waiting.append((time.monotonic(), "POST", f"/api/v1/namespaces/{pod.namespace}/events", body))
        self._came.set()

    def unschedulable(self, pod: Pod, message: str) -> None:
        """A pod waits, for this reason."""
        if message != self._told.get(pod.uid, (pod.reason, 0.0, 0.0))[0]:
            self._reasons[pod.uid] = (pod, message)
            self._came.set()
        else:
            self._reasons.pop(pod.uid, None)

    def forget(self, uid: str) -> None:
        """A pod waits no more."""
        self._told.pop(uid, None)
        self._reasons.pop(uid, None)

    def _collect(self) -> None:
        now_s = time.monotonic()
        for uid, (pod, message) in list(self._reasons.items()):
            _, told_s, pause_s = self._told.get(uid, ("", -_LONGEST_S, 0.0))
            if now_s - told_s < pause_s:
                continue
            del self._reasons[uid]
            self._told[uid] = message, now_s, min(_LONGEST_S, max(_FIRST_S, 2.0 * pause_s))
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message[:1024],
            }
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
            self._waiting.append((now_s, "PATCH", path, {"status": {"conditions": [condition]}}))
            self.event(pod, "Warning", "FailedScheduling", message, "Scheduling")
