"""A Lease of Kubernetes: of several copies of a program one is active."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from trimtab.clusters.kube.api import CONFLICT, NOT_FOUND, KubeApi
from trimtab.errors import ApiRefused, ClusterLost

DURATION_S: Final = 15.0  # after the last renewal another copy may take it
ACTIVE_S: Final = 10.0  # after the last renewal its holder stops: before another can begin
PERIOD_S: Final = 2.0

logger = logging.getLogger(__name__)


class Lease:
    """One copy's claim to a Lease. `run` renews it for ever, or waits for it."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api, self.namespace, self.name, self._holder = api, namespace, name, this_process()
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._renewed_s = -DURATION_S
        self._seen: tuple[str, float] = (
            "",
            0.0,
        )  # version of another's lease, and since when it has not changed
        self.held = asyncio.Event()  # set once it is held
        self.other = ""  # that holds it now

    def is_active(self) -> bool:
        """Whether this copy may act."""
        return time.monotonic() - self._renewed_s < ACTIVE_S

    async def run(self) -> None:
        """Take the Lease as soon as it is free, and renew it. Raises ApiRefused for want of a right."""
        has_answered = False
        while True:
            try:
                await self.renew()
                has_answered = True
            except ClusterLost as error:
                logger.warning("%s", error)
            except ApiRefused as error:
                if not has_answered and error.status != CONFLICT and error.status < 500:
                    raise
                logger.warning("%s", error)
            await asyncio.sleep(PERIOD_S)

    async def holder(self) -> str:
        """Another that holds it now and has renewed it while this copy watched; "" = it is free."""
        for _ in range(2):
            try:
                lease = await self._api.get(f"{self._folder}/{self.name}")
            except ApiRefused as error:
                if error.status == NOT_FOUND:
                    return ""
                raise
            spec, version = lease.get("spec", {}), lease["metadata"]["resourceVersion"]
            other = str(spec.get("holderIdentity") or "")
            if other in ("", self._holder) or self._seen[0] not in ("", version):
                return other if other != self._holder else ""
            self._seen = version, time.monotonic()
            await asyncio.sleep(2.0 * PERIOD_S)
        return ""

    async def renew(self) -> None:
        """Take or renew the Lease, unless another holds it."""
        begun_s = time.monotonic()
        try:
            lease = await self._api.get(f"{self._folder}/{self.name}")
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
            await self._api.post(self._folder, self._body({"name": self.name}, 0))
        else:
            spec = lease.get("spec", {})
            self.other = spec.get("holderIdentity") or ""
            if self.other not in ("", self._holder) and not self._is_expired(lease):
                self.held.clear()
                return
            changes = int(spec.get("leaseTransitions") or 0) + int(self.other != self._holder)
            await self._api.put(f"{self._folder}/{self.name}", self._body(lease["metadata"], changes))
        self._renewed_s, self.other = begun_s, ""
        self.held.set()

    async def release(self) -> None:
        """Let another copy have it at once."""
        if self.is_active():
            self._renewed_s = -DURATION_S
            lease = await self._api.get(f"{self._folder}/{self.name}")
            if lease["spec"].get("holderIdentity") == self._holder:
                lease["spec"]["holderIdentity"] = ""
                await self._api.put(f"{self._folder}/{self.name}", lease)

    def _is_expired(self, lease: dict[str, Any]) -> bool:
        """Whether its holder has not renewed it for its duration, by this copy's own clock."""
        version, now_s = lease["metadata"]["resourceVersion"], time.monotonic()
        if version != self._seen[0]:
            self._seen = version, now_s
        return now_s - self._seen[1] > float(lease["spec"].get("leaseDurationSeconds") or DURATION_S)

    def _body(self, metadata: dict[str, Any], changes: int) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": int(DURATION_S),
                "leaseTransitions": changes,
                "renewTime": time_text(),
            },
        }


def this_process() -> str:
    """Names this process as the holder of a Lease."""
    return f"{socket.gethostname()}_{os.getpid()}"


def time_text(ahead_s: float = 0.0) -> str:
    """The time as the API writes it, by a clock that is so far ahead of this machine's."""
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
