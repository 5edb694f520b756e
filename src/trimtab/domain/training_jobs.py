"""Training jobs and the accelerators that they share: records, one row per job or node. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.domain.job_places import JobAsk, JobPlaces
from trimtab.domain.queue_tree import QueueScheme, QueueTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

JOBS = np.dtype(
    [
        ("job_idx", "i8"),  # position among all jobs of the run; the key of an allocator's own memory
        ("submit_s", "f8"),
        ("deadline_s", "f8"),  # absolute; inf = none
        ("model_idx", "i4"),
        ("gpus_requested", "i4"),  # what the user asked for
        ("gpus_min", "i4"),  # fewest with which it runs: a gang of at least so many starts together
        ("gpus_max", "i4"),  # most that it may get
        ("batch", "f8"),  # global batch that the user asked for; 0 = the model's own
        ("work_left", "f8"),  # estimate, in the model's unit of work; nan = not known
        ("work_total", "f8"),  # estimate, in the same unit; nan = not known
        ("attained_gpu_s", "f8"),  # service received: GPUs held times seconds, restarts included
        ("run_s", "f8"),  # seconds with GPUs, restarts included
        ("progress_s", "f8"),  # of them without restarts
        ("age_s", "f8"),  # since its submission
        ("restarts", "i4"),  # changes of its allocation after its first start
        ("restart_s", "f8"),  # what the next restart costs it, without progress
        ("restart_left_s", "f8"),  # what is left of a restart under way
        ("profiled_gpus_max", "i4"),  # most GPUs with which it has run; 0 = it never ran
        ("priority", "i4"),  # higher is more urgent
        ("tenant_idx", "i4"),
        ("preemptible", "?"),  # whether it may lose GPUs once it has started
        ("pinned", "?"),  # whether the GPUs that it holds must stay as they are
        ("scales", "?"),  # whether it runs with other numbers of GPUs than it asked for
        ("admitted", "?"),  # whether an allocator has promised to finish it
        ("service", "?"),  # an online service: it holds its GPUs all the time
        ("load", "f8"),  # of a service now, as it reports, from 0 to 1
        ("slowdown", "f8"),  # of a service since the last decision: its latency over that alone
    ],
    align=True,
)
"""The state of an active job for an allocator: submitted, neither finished nor rejected."""

NODES = np.dtype(
    [
        ("type_idx", "i4"),
        ("gpus", "i4"),
        ("up", "?"),  # False: failed or drained; it gets no GPUs
        ("rack", "i4"),
    ],
    align=True,
)
"""The state of a node for an allocator."""

CONFIGS = np.dtype(
    [
        ("type_idx", "i4"),
        ("nodes", "i4"),  # over which its GPUs are spread
        ("gpus", "i4"),
        ("local_batch", "f8"),  # samples of a GPU in one pass; 0 = equal parts of what the job asked for
        ("accumulation", "i4"),  # further passes before each step
    ],
    align=True,
)
"""A way to run a job, for `Speed.goodput`."""

AGENT_BATCH = (
    -1.0
)  # as local batch: the job's agent chooses batch and accumulation, and adapts them as it runs


@dataclass(frozen=True)
class Held:
    """The GPUs that jobs hold. Jobs without GPUs have no row."""

    rows: Ints  # [holders] rows of the JOBS records, ascending
    gpus: NDArray[Any]  # [holders, nodes]

    @classmethod
    def of(cls, gpus: NDArray[Any]) -> Held:
        """From a matrix [jobs, nodes]."""
        rows = np.flatnonzero(gpus.any(axis=1))
        return cls(rows, gpus[rows])

    @cached_property
    def _sums(self) -> tuple[Ints, Ints, Ints]:
        found: tuple[Ints, Ints, Ints] = held_sums(np.ascontiguousarray(self.gpus, np.int32))
        return found

    @property
    def n_gpus(self) -> Ints:
        """GPUs of each holder, [holders]."""
        return self._sums[0]

    @property
    def n_nodes(self) -> Ints:
        """Nodes over which they are spread, [holders]."""
        return self._sums[1]

    @property
    def per_node(self) -> Ints:
        """GPUs held on each node, [nodes]."""
        return self._sums[2]

    def counts(self, n_jobs: int) -> Ints:
        """GPUs of each job, [jobs]."""
        counts = np.zeros(n_jobs, np.int64)
        counts[self.rows] = self.n_gpus
        return counts

    def on_down(self, nodes: Records) -> Flags:
        """Whether each holder has GPUs on a node that is down, [holders]."""
        lost: Flags = np.any(self.gpus[:, ~nodes["up"]] > 0, axis=1)
        return lost


@kernel
def held_sums(gpus: Any) -> Any:
    """GPUs and nodes of each holder, and GPUs on each node, from GPUs [holders, nodes]."""
    n_holders, n_all = gpus.shape
    n_gpus, n_nodes = np.zeros(n_holders, np.int64), np.zeros(n_holders, np.int64)
    per_node = np.zeros(n_all, np.int64)
    for i in range(n_holders):
        total, count = 0, 0
        for j in range(n_all):  # without branches, so that it vectorises
            total += gpus[i, j]
            count += gpus[i, j] > 0
            per_node[j] += gpus[i, j]
        n_gpus[i], n_nodes[i] = total, count
    return n_gpus, n_nodes, per_node


@dataclass(frozen=True)
class JobQueues:
    """Queues over the jobs of a run. Its resources are GPUs, then those of `room`."""

    tree: QueueTree
    leaf_of: Ints  # [tenants]
    room: Floats  # [nodes, resources − 1] CPUs and GiB of memory, where every node states them
    short_since_s: Floats  # [queues] since when each is below its guarantee while jobs wait; nan = it is not
    fleet: Floats | None = None  # [resources] of which amounts are parts; None = the nodes that are up

    @property
    def resources(self) -> tuple[str, ...]:
        """Their names."""
        return self.tree.resources

    def under(self, scheme: QueueScheme) -> JobQueues | None:
        """What holds of them under a scheme; None = no queues."""
        tree = self.tree.under(scheme)
        return (
            None
            if tree is None
            else JobQueues(tree, self.leaf_of, self.room, np.full(len(tree.paths), np.nan))
        )


@dataclass(frozen=True)
class GpuCluster:
    """Nodes with accelerators, and what the active jobs hold of them."""

    nodes: Records  # [nodes] NODES
    type_names: tuple[str, ...]  # [types]
    now_held: Held
    n_jobs: int  # active jobs
    quota_gpus: Floats = field(default_factory=lambda: np.zeros(0))  # [tenants] most GPUs; empty = no quotas
    can_run: Flags | None = None  # [active jobs, types] with the GPUs asked for; None = on every type
    places: JobPlaces | None = None  # of the active jobs; None = each may run on every node
    later: Ints | None = None  # [nodes] GPUs held by jobs that are decided about later: better not taken
    queues: JobQueues | None = None  # of which allocators see nothing: the loop asks them queue by queue

    @cached_property
    def is_all_up(self) -> bool:
        """Whether no node is down."""
        return bool(self.nodes["up"].all())

    @cached_property
    def runs_on(self) -> Flags:
        """Whether each active job runs on each type at all, [active jobs, types]."""
        return (
            np.ones((self.n_jobs, len(self.type_names)), np.bool_) if self.can_run is None else self.can_run
        )

    @cached_property
    def gpus(self) -> NDArray[Any]:
        """GPUs held now, [active jobs, nodes], in the order of the JOBS records."""
        gpus = np.zeros((self.n_jobs, len(self.nodes)), np.int64)
        gpus[self.now_held.rows] = self.now_held.gpus
        return gpus

    @cached_property
    def held(self) -> Ints:
        """GPUs of each type that each active job holds, [active jobs, types]."""
        held = np.zeros((self.n_jobs, len(self.type_names)), np.int64)
        held[self.now_held.rows] = self.types_held(self.now_held)
        return held

    @cached_property
    def runs(self) -> Flags:
        """Whether each active job holds GPUs now, [active jobs]."""
        runs: Flags = np.zeros(self.n_jobs, np.bool_)
        runs[self.now_held.rows] = self.now_held.n_gpus > 0
        return runs

    @cached_property
    def capacity(self) -> Ints:
        """GPUs of each node that may be given, [nodes]."""
        gpus = self.nodes["gpus"].astype(np.int64)
        return gpus if self.is_all_up else np.where(self.nodes["up"], gpus, 0)

    @cached_property
    def type_gpus(self) -> Ints:
        """GPUs of each type that may be given, [types]."""
        if len(self.type_names) == 1:
            return self.capacity.sum(keepdims=True)
        return np.bincount(self.nodes["type_idx"], self.capacity, len(self.type_names)).astype(np.int64)

    @cached_property
    def n_gpus(self) -> int:
        """GPUs that may be given."""
        return int(self.capacity.sum())

    @cached_property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return int(self.nodes["gpus"].max(initial=0))

    def types_held(self, held: Held) -> Ints:
        """GPUs of each type, [holders, types]."""
        return held.n_gpus[:, None] if len(self.type_names) == 1 else self.by_type(held.gpus)

    def by_type(self, gpus: NDArray[Any]) -> Ints:
        """GPUs of each type, [rows, types], from GPUs on each node, [rows, nodes]."""
        if len(self.type_names) == 1:
            return gpus.sum(axis=1, dtype=np.int64)[:, None]
        types = range(len(self.type_names))
        columns = [gpus[:, self.nodes["type_idx"] == t].sum(axis=1, dtype=np.int64) for t in types]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class ServiceLoads:
    """Online services among the jobs, with a load that rises and falls once a period.

    Attributes:
        is_service: [jobs] a service never ends, and holds the GPUs that it asked for all the time.
        phase_s: [jobs] seconds since the least load when it starts.
        least: least load, from 0 to 1.
        most: largest load.
        step_s: the load is constant for so long.
        period_s: after which the load is the same again.
        series: [steps, jobs] the load of each step instead, from `phase_s` on; filled as a run goes.
    """

    is_service: Flags
    phase_s: Floats
    least: float = 0.2
    most: float = 0.9
    step_s: float = 300.0
    period_s: float = 86_400.0
    series: Floats | None = None


@dataclass(frozen=True)
class Workload:
    """All jobs of a run, sorted by submission. `work` is hidden from allocators: they see `declared_work`."""

    name: str
    job_ids: tuple[str, ...]  # [jobs]
    model_names: tuple[str, ...]  # [models]
    submit_s: Floats  # [jobs]
    deadline_s: Floats  # [jobs] absolute; inf = none
    model_idx: Ints  # [jobs]
    gpus_requested: Ints  # [jobs]
    gpus_min: Ints  # [jobs]
    gpus_max: Ints  # [jobs]
    batch: Floats  # [jobs]
    work: Floats  # [jobs] true work, in the model's unit; nan = the truth of the model knows
    declared_work: Floats  # [jobs] what the user or a predictor says
    duration_s: Floats  # [jobs] with the requested GPUs, as recorded; nan = not recorded
    priority: Ints  # [jobs]
    tenant_idx: Ints  # [jobs]
    tenant_names: tuple[str, ...]  # [tenants]
    preemptible: Flags  # [jobs]
    scales: Flags  # [jobs]
    pinned: Flags | None = None  # [jobs]; None = no job is
    services: ServiceLoads | None = None  # online services among the jobs
    asks: tuple[JobAsk, ...] = ()  # [jobs] what each asks of its nodes; empty = GPUs only
    columns: dict[str, Any] = field(default_factory=dict)  # of one format or model only: [jobs] arrays

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.job_ids)


def gpu_nodes(type_idx: Any, gpus: Any, rack: Any = 0) -> Records:
    """NODES records of nodes that are up."""
    type_idx, gpus, rack = np.broadcast_arrays(type_idx, gpus, rack)
    nodes = np.zeros(len(np.atleast_1d(gpus)), NODES)
    nodes["type_idx"], nodes["gpus"], nodes["up"], nodes["rack"] = type_idx, gpus, True, rack
    return nodes


def configs(gpus: Any, *, nodes: Any = 1, type_idx: Any = 0, local_batch: Any = 0.0) -> Records:
    """CONFIGS records; the arguments are broadcast against each other."""
    columns = np.broadcast_arrays(type_idx, nodes, gpus, local_batch)
    made = np.zeros(columns[0].shape, CONFIGS)
    for name, column in zip(("type_idx", "nodes", "gpus", "local_batch"), columns, strict=True):
        made[name] = column
    return made
