"""What Slurm lacks for trimtab to work on it: programs, munge, slurmctld, GPUs, clock, rights."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

from trimtab.clusters.findings import Finding
from trimtab.clusters.slurm.claim import Claim
from trimtab.clusters.slurm.cluster_view import nodes_of_partition, rules_of
from trimtab.clusters.slurm.commands import call, change, output
from trimtab.clusters.slurm.slurm_nodes import GPU, Node
from trimtab.errors import ClusterLost, UsageError
from trimtab.words import counted

_SKEW_S: Final = 5.0  # slurmctld tells whole seconds


def check(partition: str, *, schedules: bool) -> list[Finding]:
    """Everything that can be said before something starts. `schedules`: what a scheduler needs, too."""
    found: list[Finding] = []
    try:
        found.extend(_found(partition, schedules))
    except (ClusterLost, UsageError) as error:
        found.append(Finding(True, str(error), True))
    return found


def _found(partition: str, schedules: bool) -> Iterator[Finding]:
    yield from _of_munge()
    config = output("scontrol", "show", "config")
    told = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config, re.M))
    yield Finding(False, f"slurmctld of cluster {told.get('ClusterName')}: {told.get('SLURM_VERSION')}")
    yield from _of_clock()
    nodes = nodes_of_partition(partition)
    yield from _of_nodes(partition, nodes)
    select = told.get("SelectType", "")
    if rules_of(config).whole_nodes:
        yield Finding(False, f"{select}: jobs take whole nodes; select/cons_tres shares them")
    if schedules:
        yield _of_rights(min(nodes, key=lambda node: node.name))
        holder = Claim(partition).holder()
        yield Finding(bool(holder), f"scheduler of partition {partition}: {holder or 'none'}")


def _of_munge() -> Iterator[Finding]:
    """Whether munge makes credentials. Where Slurm uses it by another socket, slurmctld's answer tells."""
    code, _, problem = call("munge", "--no-input")
    if not code:
        yield Finding(False, "munge makes credentials")
    elif "socket" not in problem.lower():
        yield Finding(True, f"munge: {problem}")


def _of_clock() -> Iterator[Finding]:
    before_s = time.time()
    found = re.search(r"sdiag output at .*\((\d+)\)", output("sdiag"))
    if found:
        skew_s = float(found[1]) - before_s
        is_off = abs(skew_s) > _SKEW_S
        expected = f"; expected less than {_SKEW_S:.0f} s" if is_off else ""
        yield Finding(is_off, f"clock of slurmctld: {skew_s:+.0f} s from this machine's{expected}")


def _of_nodes(partition: str, nodes: list[Node]) -> Iterator[Finding]:
    up = [node for node in nodes if node.is_up]
    gpus = sum(node.allocatable.get(GPU, 0) for node in nodes)
    text = f"partition {partition}: {counted(len(nodes), 'node')}, {len(up)} up: {counted(gpus, 'GPU')}"
    expected = "" if gpus else "; GPUs need GresTypes=gpu, Gres=gpu:N of nodes, and gres.conf"
    yield Finding(not up, f"{text}{expected}")
    for node in nodes:
        if not node.is_up:
            yield Finding(False, f"node {node.name} takes no jobs: {node.state}")


def _of_rights(node: Node) -> Finding:
    """Whether this user may update nodes, tried by writing what is there."""
    problem = change("scontrol", "update", f"NodeName={node.name}", f"Extra={node.extra}")
    if not problem:
        return Finding(False, "rights: this user may update nodes and jobs")
    return Finding(True, f"rights: {problem}; expected root, SlurmUser or an operator", True)
