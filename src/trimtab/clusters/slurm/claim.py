"""Of several schedulers of a partition one acts: its claim is text in Extra of the partition's first node.

Slurm has no Lease. A claim is renewed with a new serial number; another copy takes it once the serial has not
changed for DURATION_S by its own clock. Two copies that begin at the same moment both write: the last one
stays, and the other sees so before it acts.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import time
from typing import Final

from trimtab.clusters.slurm.cluster_view import nodes_of_partition
from trimtab.clusters.slurm.commands import change
from trimtab.errors import UsageError

DURATION_S: Final = 20.0  # after the last renewal another copy may take it
ACTIVE_S: Final = 10.0  # after the last renewal its holder stops: before another can begin
RENEW_S: Final = 3.0
_SETTLE_S: Final = 1.0
_POLL_S: Final = 0.5

logger = logging.getLogger(__name__)


class Claim:
    """One copy's claim to a partition."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._holder = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(2)}"
        self._pattern = re.compile(rf" ?\[trimtab {re.escape(partition)} (\S+) (\d+)\]")
        self._serial = 0
        self._renewed_s = -ACTIVE_S

    @property
    def is_active(self) -> bool:
        """Whether this copy may act."""
        return time.monotonic() - self._renewed_s < ACTIVE_S

    def take(self) -> None:
        """Take the partition.

        Raises UsageError where another copy schedules it, or for want of the right; ClusterLost.
        """
        first, _, _ = self._read()
        if first and not _is_dead(first):
            logger.info("waiting whether %s is alive, which held partition %s", first, self._partition)
            since_s, (_, serial, _) = time.monotonic(), self._read()
            while time.monotonic() - since_s < DURATION_S:
                time.sleep(_POLL_S)
                other, now, _ = self._read()
                if not other:
                    break
                if (other, now) != (first, serial):
                    self._refuse(other)
        self._write()
        time.sleep(_SETTLE_S)
        other, _, _ = self._read()
        if other != self._holder:
            self._refuse(other)
        self._renewed_s = time.monotonic()

    def renew(self) -> str:
        """Renew it, if it is time to; returns who has taken it meanwhile, "" = nobody. Raises ClusterLost."""
        begun_s = time.monotonic()
        if begun_s - self._renewed_s < RENEW_S:
            return ""
        other, _, _ = self._read()
        if other in ("", self._holder):
            self._write()
            self._renewed_s, other = begun_s, ""
        return other

    def release(self) -> None:
        """Let another copy have it at once. Raises ClusterLost."""
        other, _, rest = self._read()
        if other == self._holder:
            self._set(rest)

    def holder(self) -> str:
        """Who holds it; "" = nobody."""
        return self._read()[0]

    def _refuse(self, other: str) -> None:
        expected = "one scheduler for each partition"
        raise UsageError(
            f"{other} schedules it", field="--partition", value=self._partition, expected=expected
        )

    def _read(self) -> tuple[str, str, str]:
        """Holder, serial, and what others wrote there."""
        node = min(nodes_of_partition(self._partition), key=lambda node: node.name)
        self._node, found = node.name, self._pattern.search(node.extra)
        rest = self._pattern.sub("", node.extra)
        return (found[1], found[2], rest) if found else ("", "", rest)

    def _write(self) -> None:
        self._serial += 1
        rest = self._read()[2]
        self._set(f"{rest} [trimtab {self._partition} {self._holder} {self._serial}]".strip())

    def _set(self, extra: str) -> None:
        if problem := change("scontrol", "update", f"NodeName={self._node}", f"Extra={extra}"):
            expected = "the right to update nodes and jobs: root, SlurmUser or an operator"
            raise UsageError(problem, field="--partition", value=self._partition, expected=expected)


def _is_dead(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    host, pid, _ = holder.rsplit("_", 2)
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
