"""Nodes of Slurm as a host: programs are jobs that `sbatch` starts on a node, and that connect back.

--on slurm            as slurm.yaml in the current folder says; without that file, the default partition
--on slurm://FILE     as this file says (`JobSettings`)
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from trimtab.clusters.placement.host_nodes import host_node, taken_by
from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY
from trimtab.clusters.slurm.cluster_view import nodes_of_partition
from trimtab.clusters.slurm.commands import call, output, read_json
from trimtab.clusters.slurm.slurm_jobs import RUNS, Job, Rules, jobs_of
from trimtab.clusters.slurm.slurm_nodes import GPU, Node
from trimtab.errors import ClusterLost, UsageError
from trimtab.live.dialled import DialIn, DialledLink, address_towards
from trimtab.live.program_host import (
    LOCAL_ADDRESS,
    NO_SLOTS,
    PYTHON,
    HostNode,
    Link,
    Program,
    ProgramEvents,
    Told,
    Troubled,
)
from trimtab.validation.base import NonNegative, Positive, Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

FILE: Final = "slurm.yaml"
_LOOK_S: Final = 1.0  # between two looks at nodes and jobs
_MIB: Final = 1 << 20
_WAITS: Final = ("PENDING", "CONFIGURING", "REQUEUED")

logger = logging.getLogger(__name__)


class JobSettings(Spec):
    """How programs run as jobs: the file of `--on slurm://FILE`."""

    partition: str = Field("", description="partition; default: the cluster's own default")
    nodes: list[str] = Field([], description="names of the nodes that are used; none: all of the partition")
    python: str = Field("", description="on nodes, with trimtab; default: the same path as on this machine")
    address: str = Field("", description="where nodes reach this machine; default: its address towards one")
    port: int = Field(0, ge=0, le=65535, description="port that jobs connect to; 0 = any that is free")
    cpus: NonNegative = Field(0.0, description="CPUs that a slot takes")
    gpus: int = Field(0, ge=0, description="GPUs that a slot takes; default: one, or one CPU without GPUs")
    memory_gib: NonNegative = Field(0.0, description="memory that a slot takes")
    start_s: Positive = Field(300.0, description="seconds for a job to start")
    output: str = Field("trimtab-%j.out", description="where what programs print goes, in words of `sbatch`")
    options: list[str] = Field([], description="more options of `sbatch`, such as --time=1-0")

    def slot_of(self, node: Node) -> dict[str, int]:
        """Resource → amount that a slot takes, with its share of CPU and memory; empty = the default."""
        told = {CPU: int(1000 * self.cpus), MEMORY: int(GIB * self.memory_gib), GPU: self.gpus}
        asked = {name: amount for name, amount in told.items() if amount}
        free = {name: node.allocatable.get(name, 0) - node.used.get(name, 0) for name in told}
        slots = min((free[name] // amount for name, amount in asked.items()), default=0)
        rest = {name: free[name] // slots for name in (CPU, MEMORY)} if slots > 0 else {}
        return {**rest, **asked} if asked else {}


class SlurmHost:
    """The nodes of a partition.

    Args:
        address: "slurm", or slurm://FILE.
        slots: of nodes that a run names; it names those of the cluster.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, address: str = "slurm", slots: Mapping[str, int] = NO_SLOTS) -> None:
        self.settings = _read_settings(address.partition("://")[2])
        self.driver_address = self.settings.address or LOCAL_ADDRESS  # until a node's address is known
        self._partition = self.settings.partition
        self._known: dict[str, HostNode] = {}
        self._links: dict[str, DialledLink] = {}  # id of the job → …
        self._reasons: dict[str, str] = {}  # id → why it waits
        self._told: tuple[Told, Told, Troubled] | None = None
        self._dial_in: DialIn | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    def nodes(self) -> Sequence[HostNode]:
        """The nodes that are up, with what others do not hold. Raises UsageError."""
        try:
            self._partition = self._partition or _default_partition()
            found = self._found()
        except ClusterLost as error:
            raise UsageError(str(error), field="on", value="slurm") from error
        self._known = {node.name: node for node in found}
        if found and not self.settings.address:
            self.driver_address = address_towards(found[0].address, 1)
        return found

    def _found(self) -> list[HostNode]:
        wanted = set(self.settings.nodes)
        nodes = [n for n in nodes_of_partition(self._partition) if n.name in wanted or not wanted]
        if lacking := wanted - {node.name for node in nodes}:
            expected = f"nodes of partition {self._partition}"
            raise UsageError("no such node", field="nodes", value=sorted(lacking)[0], expected=expected)
        made = [self._host_node(node) for node in nodes if node.is_up]
        return [node for node in made if node.slots or node.name in self._known]

    def _host_node(self, node: Node) -> HostNode:
        if node.name in self._known:  # what runs there is in its accounts already
            return self._known[node.name]
        gpu = GPU if node.allocatable.get(GPU) else ""
        labels = dict.fromkeys(node.features, "")
        return host_node(node, node.address, labels, node.used, self.settings.slot_of(node), gpu)

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Look at the nodes every second."""
        self._told = added, removed, troubled
        self._begin()

    def _begin(self) -> DialIn:
        if self._dial_in is None:
            self._dial_in = DialIn(port=self.settings.port)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._dial_in

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        """Start a program as a job, and wait until it has connected. Raises OSError."""
        if node.name not in self._known:
            raise ConnectionError(f"node {node.name} is gone, or takes no jobs")
        dial_in = self._begin()
        taken = taken_by(program, node, GPU if node.capacity.get("gpu") else "")
        link = dial_in.expect(f"job on {node.name}", events)
        there = link.on_node(program, f"{self.driver_address}:{dial_in.port}")
        job_id = ""
        try:
            job_id = await asyncio.to_thread(self._submit, node.name, there, taken)
            link.name = f"job {job_id} on {node.name}"
            self._links[job_id] = link
            await link.begun(
                self.settings.start_s, lambda: self._reasons.get(job_id) or "it has not connected"
            )
        except BaseException:
            await link.stop()
            raise
        finally:
            if job_id:
                link.over.add_done_callback(lambda _: self._spawn(self._cancel(job_id)))
        return link

    def _submit(self, node_name: str, program: Program, taken: Mapping[str, int]) -> str:
        """Submit the job of a program; returns its id. Raises ConnectionError."""
        gpus = taken.get(GPU, 0)
        options = [
            *("--parsable", "--nodes=1", "--ntasks=1", "--no-requeue", "--export=ALL"),
            *(
                f"--partition={self._partition}",
                f"--nodelist={node_name}",
                f"--output={self.settings.output}",
            ),
            "--job-name=trimtab",
            f"--cpus-per-task={max(1, taken.get(CPU, 0) // 1000)}",
            *([f"--mem={taken[MEMORY] // _MIB}M"] if taken.get(MEMORY) else []),
            *([f"--gres=gpu:{gpus}"] if gpus else []),
            *self.settings.options,
        ]
        first, *words = program.argv
        python = self.settings.python or sys.executable
        script = f"#!/bin/sh\nexec {shlex.join([python if first == PYTHON else first, *words])}\n"
        own = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith("SLURM_")}
        try:
            code, out, problem = call("sbatch", *options, data=script, env={**own, **program.env})
        except UsageError as error:
            raise ConnectionError(str(error)) from error
        if code:
            raise ConnectionError(f"no job starts on {node_name}: {problem}")
        return out.strip().partition(";")[0]

    async def _look(self) -> None:
        """Tell links what became of their jobs, and the run what became of nodes, for ever."""
        trouble = ""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = ""
            try:
                jobs, nodes = await asyncio.to_thread(self._read)
            except (ClusterLost, UsageError) as error:
                now = str(error)
            else:
                self._note_jobs(jobs)
                self._note_nodes(nodes)
            if now != trouble and self._told is not None:
                self._told[2](now)
            trouble = now

    def _read(self) -> tuple[dict[str, Job], list[HostNode]]:
        given = read_json("squeue", "--all")["jobs"]
        return {job.id: job for each in given for job in jobs_of(each, Rules())}, self._found()

    def _note_jobs(self, jobs: Mapping[str, Job]) -> None:
        for job_id, link in list(self._links.items()):
            job = jobs.get(job_id)
            if job is None:
                link.lost("as its job is gone")
            elif job.state in _WAITS:
                self._reasons[job_id] = job.reason
            elif job.state not in RUNS:
                link.lost(f"as its job ended: {job.state}")

    def _note_nodes(self, nodes: Sequence[HostNode]) -> None:
        if self._told is None:
            return
        added, removed, _ = self._told
        now = {node.name: node for node in nodes}
        before, self._known = self._known, now
        for name in before.keys() - now.keys():
            removed(before[name])
        for name in now.keys() - before.keys():
            added(now[name])

    async def _cancel(self, job_id: str) -> None:
        """End the job of a program that has ended."""
        self._links.pop(job_id, None)
        self._reasons.pop(job_id, None)
        code, _, problem = await asyncio.to_thread(call, "scancel", "--quiet", job_id)
        if code:
            logger.warning("job %s is left: %s", job_id, problem)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """All programs have ended: look no more."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
        await asyncio.gather(*([looking] if looking else ()), *self._ending, return_exceptions=True)
        if self._dial_in is not None:
            await self._dial_in.close()
            self._dial_in = None


def _read_settings(file: str) -> JobSettings:
    path = Path(file or FILE)
    if not file and not path.exists():
        return JobSettings()
    data = parsed_yaml(
        read_yaml(path, UsageError), str(path), UsageError, "no settings of jobs", "a table with partition: …"
    )
    return checked(lambda: JobSettings.model_validate(data), JobSettings, str(path), UsageError)


def _default_partition() -> str:
    """Raises UsageError where the cluster has none, ClusterLost."""
    found = re.search(r"^(\S+)\*$", output("sinfo", "--noheader", "--format", "%P"), re.M)
    if found is None:
        raise UsageError("no default partition", field="partition", expected=f"partition: NAME in {FILE}")
    return found[1]
