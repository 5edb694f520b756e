"""Nodes as Slurm tells them, and the words of its JSON that nodes and jobs share.

The JSON of 22.05 (data parser v0.0.38); where later versions write {"set": …, "number": …} or lists of
states, these are read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.clusters.placement.ledger import CPU, MEMORY, Resources
from trimtab.clusters.slurm.commands import Json
from trimtab.domain.needs import Host, Need

GPU: Final = "gres/gpu"
JOBS: Final = "jobs"
RESOURCES: Final = Resources(gpus=(GPU,), each=JOBS)
SLURM: Final = Host(
    "Slurm scheduler",
    {
        Need.RESOURCES: "",
        Need.PRIORITIES: "by --nice",
        Need.HOLDING: "",
        Need.REPORTED_LOAD: "",
        Need.FULL_SPEED: "",
    },
)
MIB: Final = 1 << 20
_GRES: Final = re.compile(
    r"(?:gres[:/])?([^:/=,()]+)(?::([^:=,()]*[^\d:=,()][^:=,()]*))?(?:[:=](\d+)([KMG]?))?(?:\([^)]*\))?(?:,|$)"
)
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_UP: Final = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}
_AWAY: Final = (  # a node in one of these states takes no jobs; the first of them is told
    "DOWN", "FAIL", "DRAIN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "MAINTENANCE",
    "REBOOT_REQUESTED", "REBOOT_ISSUED", "RESERVED", "INVALID_REG", "BLOCKED",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A node. Two are equal if nothing that matters to a scheduler differs."""

    name: str
    partitions: frozenset[str]
    is_up: bool
    state: str  # as people read it
    allocatable: Mapping[str, int]
    features: frozenset[str]
    threads: int  # of a core
    address: str
    used: Mapping[str, int] = field(compare=False)  # as Slurm counts
    extra: str = field(compare=False)
    images: Mapping[str, int] = field(default_factory=dict)
    n_devices: int = 0
    zone: str = ""
    usd_per_hour: float = 0.0
    speed: float = 1.0
    gpu_gib: float = 0.0

    @property
    def type_name(self) -> str:
        """Its GPUs, else its features."""
        typed = sorted(name.rpartition(":")[2] for name in self.allocatable if name.startswith(f"{GPU}:"))
        return "/".join(typed or sorted(self.features)) or "node"


def node_of(given: Json) -> Node:
    """A node of `sinfo --json`."""
    state = {*words(given.get("state")), *words(given.get("state_flags"))}
    away = next((one for one in _AWAY if one in state), "")
    offered = {
        CPU: 1000 * (number(given.get("effective_cpus")) or number(given["cpus"])),
        MEMORY: MIB * number(given["real_memory"]),
        JOBS: number(given["cpus"]),
        **gres(str(given.get("gres") or "")),
    }
    used = {
        CPU: 1000 * number(given.get("alloc_cpus")),
        MEMORY: MIB * number(given.get("alloc_memory")),
        **gres(str(given.get("gres_used") or "")),
    }
    features = given.get("active_features") or given.get("features") or ()
    return Node(
        name=given["name"],
        partitions=frozenset(given.get("partitions") or ()),
        is_up=bool(state & _UP) and not away,
        state=(away or "+".join(sorted(state)) or "unknown").lower(),
        allocatable=offered,
        features=frozenset(features.split(",") if isinstance(features, str) else features) - {""},
        threads=max(1, number(given.get("threads"))),
        address=str(given.get("address") or given["name"]),
        used=used,
        extra=str(given.get("extra") or ""),
    )


def gres(text: str) -> dict[str, int]:
    """Resource → amount in texts such as `gpu:a100:4(S:0-1),nic:2`; of types, and of all types together."""
    found: dict[str, int] = {}
    for match in _GRES.finditer("" if text in ("(null)", "N/A") else text):
        name, kind, many, factor = match.groups()
        amount = int(many or 1) * _FACTORS[factor or ""]
        for key in (f"gres/{name}", *((f"gres/{name}:{kind}",) if kind else ())):
            found[key] = found.get(key, 0) + amount
    return found


def number(value: Any) -> int:
    """A number as any version writes it; 0 = not set, or infinite."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else 0
    return int(value or 0)


def plain(value: Any) -> str:
    """A text; "" = none."""
    return "" if value in (None, "(null)") else str(value)


def words(value: Any) -> set[str]:
    """States as any version writes them."""
    texts = [value] if isinstance(value, str) else value or ()
    return {word.strip("*$~#!%@^-").upper() for text in texts for word in str(text).split("+")} - {""}
