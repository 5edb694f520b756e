"""Finds where the nodes of training jobs are: on this machine, or on a Ray cluster."""

from __future__ import annotations

from trimtab.errors import UsageError
from trimtab.training.runner.node_process import ThisMachine
from trimtab.training.runner.node_programs import SlotSource
from trimtab.training.runner.run_ledger import HERE


def slot_source(on: str) -> SlotSource:
    """The source of this name; ray://… is the address of a Ray cluster.

    Raises UsageError for an unknown name, MissingExtra if it needs what is not installed.
    """
    if on == HERE:
        return ThisMachine()
    name, is_address, _ = on.partition("://")
    if name != "ray":
        raise UsageError("no such place", field="--on", value=on, expected=f"{HERE}, ray, or ray://HOST:PORT")
    from trimtab.clusters.ray.ray_slots import RaySlots

    return RaySlots(on if is_address else None)
