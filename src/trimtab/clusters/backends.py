"""Finds backends and hosts by name: the package's own, and those of other packages by entry point.

A backend runs stages of chains. A host runs programs, so it serves chains (`Processes`) and training jobs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.live.program_host import NO_SLOTS, Host
from trimtab.live.stage_backend import StageBackend, StageNode

BACKENDS: Final = "trimtab.backends"  # groups of entry points
HOSTS: Final = "trimtab.hosts"
_OWN: Final = {
    BACKENDS: {
        "in-process": "trimtab.clusters.in_process:InProcess",
        "processes": "trimtab.clusters.processes:Processes",
        "ray": "trimtab.clusters.ray.ray_backend:Ray",
    },
    HOSTS: {
        "processes": "trimtab.live.this_machine:ThisMachine",
        "dask": "trimtab.clusters.dask.dask_host:DaskHost",
        "kube": "trimtab.clusters.kube.pod_host:KubeHost",
        "ray": "trimtab.clusters.ray.ray_host:RayHost",
        "slurm": "trimtab.clusters.slurm.job_host:SlurmHost",
    },
}


def names() -> list[str]:
    """The names of all backends."""
    return sorted({*_names(BACKENDS), *_names(HOSTS)})


def backend(spec: str, **options: Any) -> StageBackend:
    """The backend of this name; NAME://REST is an address for the one of that name.

    Raises UsageError for an unknown name, MissingExtra if it needs what is not installed.
    """
    name, is_address, _ = spec.partition("://")
    made: StageBackend
    if (kind := _found(BACKENDS, name)) is not None:
        made = kind(**({"address": spec} if is_address else {}), **options)
    elif _found(HOSTS, name) is not None:
        made = _found(BACKENDS, "processes")(host=host(spec), **options)
    else:
        raise UsageError("no such backend", field="on", value=name, expected=_expected(names()))
    return made


def host(spec: str, slots: Mapping[str, int] = NO_SLOTS) -> Host:
    """The host of this name; NAME://REST is an address for the one of that name. Nothing starts yet.

    `slots`: of nodes that a run names. Raises UsageError, MissingExtra as `backend`.
    """
    name = spec.partition("://")[0]
    if (kind := _found(HOSTS, name)) is None:
        raise UsageError("no such place", field="--on", value=name, expected=_expected(_names(HOSTS)))
    made: Host = kind(spec, slots)
    return made


def _names(group: str) -> list[str]:
    return sorted({*_OWN[group], *(point.name for point in entry_points(group=group))})


def _found(group: str, name: str) -> Any:
    """A class by its name; None = there is none."""
    if name in _OWN[group]:
        module, _, attribute = _OWN[group][name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    return next((point.load() for point in entry_points(group=group, name=name)), None)


def _expected(known: Sequence[str]) -> str:
    return f"one of {', '.join(known)}, or ray://HOST:PORT"


EXPECTED: Final = "a number, or LEAST..MOST such as 1..4"


def worker_counts(text: str) -> tuple[int, int]:
    """The least and the most workers; (0, 0) = one for each core. Raises ValueError with what is expected."""
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    least = int(found[1]) if found else 0
    most = int(found[2] or least) if found else 0
    if not found or most < least or (found[2] and least == 0):
        raise ValueError(EXPECTED)
    return least, most


def pool_of(text: str) -> dict[str, list[StageNode]]:
    """One node of so many workers, as an option of backends. For one for each core: no option."""
    least, most = worker_counts(text)
    return {"nodes": [StageNode("local", slots=most, slots_min=least)]} if most else {}
