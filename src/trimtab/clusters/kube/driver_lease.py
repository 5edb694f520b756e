"""The Lease that owns the pods of a process: with it they are deleted, also when the process was killed.

The process renews it. Kubernetes itself deletes no Lease that has expired: the next process that runs
programs in the namespace does, and so all pods of the one that died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from datetime import datetime, timedelta
from typing import Final

from trimtab.clusters.kube.api import MERGE, NOT_FOUND, Json, KubeApi
from trimtab.clusters.kube.lease import this_process, time_text
from trimtab.clusters.kube.worker_pods import DRIVER
from trimtab.errors import ApiRefused, ClusterLost

PERIOD_S: Final = 20.0
EXPIRED_S: Final = 300.0  # after the last renewal its process is dead
_GROUP: Final = "coordination.k8s.io/v1"

logger = logging.getLogger(__name__)


class DriverLease:
    """One process's Lease. `make` it, keep it with `run`, `delete` it at the end."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._folder = f"/apis/{_GROUP}/namespaces/{namespace}/leases"
        self.name = f"trimtab-{secrets.token_hex(4)}"
        self.owner: Json = {}  # reference of pods to it

    async def make(self) -> None:
        """Create it, and delete those of processes that died. Raises ApiRefused, ClusterLost."""
        await self._sweep()
        metadata: Json = {"name": self.name, "labels": {DRIVER: self.name}}
        if (pod := os.environ.get("POD_NAME")) and (uid := os.environ.get("POD_UID")):  # of this process
            metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}]
        spec = {
            "holderIdentity": this_process(),
            "leaseDurationSeconds": int(EXPIRED_S),
            "renewTime": self._now(),
        }
        body = {"apiVersion": _GROUP, "kind": "Lease", "metadata": metadata, "spec": spec}
        made = await self._api.post(self._folder, body)
        uid = made["metadata"]["uid"]
        self.owner = {"apiVersion": _GROUP, "kind": "Lease", "name": self.name, "uid": uid}

    async def run(self) -> None:
        """Renew it for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                path = f"{self._folder}/{self.name}"
                await self._api.patch(path, {"spec": {"renewTime": self._now()}}, MERGE)
            except (ApiRefused, ClusterLost) as error:
                logger.warning("the Lease %s is not renewed: %s", self.name, error)

    async def delete(self) -> None:
        """Delete it; Kubernetes then deletes the pods. Raises ApiRefused, ClusterLost."""
        await self._delete(self.name)

    async def _delete(self, name: str) -> None:
        try:
            await self._api.delete(f"{self._folder}/{name}", {"propagationPolicy": "Background"})
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise

    async def _sweep(self) -> None:
        found, _ = await self._api.list(self._folder, labelSelector=DRIVER)
        dead_before = datetime.fromisoformat(self._now()) - timedelta(seconds=EXPIRED_S)
        for lease in found:
            renewed = lease["spec"].get("renewTime")
            if renewed is None or datetime.fromisoformat(renewed) < dead_before:
                logger.info("deleting %s and its pods: its process has died", lease["metadata"]["name"])
                await self._delete(lease["metadata"]["name"])

    def _now(self) -> str:
        """The time by the server's clock."""
        return time_text(self._api.clock_skew_s)
