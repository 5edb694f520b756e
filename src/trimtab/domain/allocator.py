"""The contract of an allocator: from the state of all training jobs to the GPUs of each.

An allocator is a frozen dataclass of parameters. What it learns during a run is its memory, made by `init`.
It reads no clock, no file and no global generator. It sees estimates only: what jobs really do is known to
the loop alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self

from trimtab.domain.parameters import check_parameters
from trimtab.domain.training_jobs import Floats, Ints, Records


class JobNeed(StrEnum):
    """Something that an allocator reads beyond ages and requests; a model may lack it."""

    meaning: str

    def __new__(cls, title: str, meaning: str) -> Self:
        """A member."""
        need = str.__new__(cls, title)
        need._value_, need.meaning = title, meaning
        return need

    ORACLE = "oracle", "true work of each job, which no real scheduler knows"
    WORK_LEFT = "work left", "an estimate of the work that each job has left"
    DEADLINES = "deadlines", "jobs with deadlines"
    SCALING = "scaling", "estimated speed of each job with other numbers of GPUs"
    GOODPUT = "goodput", "gradient noise, so that speeds count statistical efficiency"
    SHARING = "sharing", "estimated speeds of two jobs on the same GPUs"
    EPOCHS = "epochs", "epochs of each job, how long they take, and those done"
    LOSSES = "losses", "the loss of each job at the ends of its epochs, as it reports it"
    TYPES = "types", "estimated speed of each job on several types of GPU"


class Speed(Protocol):
    """Estimated speed of jobs. It holds nothing of the truth; it learns from what jobs report."""

    @property
    def levels(self) -> Ints:
        """Numbers of GPUs for which there are estimates, ascending; empty = any number."""

    @property
    def provides(self) -> frozenset[JobNeed]:
        """The needs of allocators that it meets."""

    def goodput(self, jobs: Records, configs: Records) -> Floats:
        """Work per second of job i with configuration i; 0 = it can't run so. Shapes broadcast."""

    def batch(self, jobs: Records, configs: Records) -> tuple[Floats, Ints]:
        """Local batch and accumulation in each configuration; the agent chooses for AGENT_BATCH."""

    def shared(self, jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
        """Work per second of job i and of its partner i on the same GPUs; nan = never measured."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """The known epochs of a job. A regime is a batch with which it may train."""

    total: int
    done: int  # whole epochs
    seen: Ints  # [epochs] regime of each epoch so far, the present one included
    regime_s: Floats  # [regimes] seconds of an epoch with the GPUs asked for
    samples: float  # of an epoch
    batch: float  # of a step now


class EpochSpeed(Speed, Protocol):
    """Speed of jobs that report epochs."""

    def epochs(self, jobs: Records) -> list[Epochs]:
        """Of each job."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What a job has reported of its learning."""

    work: Floats  # [epochs] done at the end of each epoch so far, in the unit of work_left; ascending
    loss: Floats  # [epochs] above 0; 1 = nothing is learned. It falls in the long run
    done: float  # work done so far


class LossSpeed(Speed, Protocol):
    """Speed of jobs that report losses."""

    def losses(self, jobs: Records) -> list[Losses]:
        """Of each job."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The decision of an allocator. Rows are those of the JOBS records.

    Either `gpus` says how many GPUs of each node every job has, or `counts` how many of each type; then the
    run's placement rule finds nodes. A row of zeros means that the job waits.
    """

    gpus: Ints | None = None  # [jobs, nodes]
    counts: Ints | None = None  # [jobs, types]
    local_batch: Floats | None = None  # [jobs] 0 = as the job asked; AGENT_BATCH = its agent chooses
    accumulation: Ints | None = None  # [jobs]
    partner_row: Ints | None = None  # [jobs] job that shares its GPUs; -1 = none. It has the same GPUs
    share_frac: Floats | None = None  # [jobs] of its GPUs' time, where they are shared in turns; beside a
    # service, which has 1, the most of a GPU that a job may use
    rejected: Mapping[int, str] = field(default_factory=dict)  # row → reason; the job ends here
    stopped: Mapping[int, str] = field(
        default_factory=dict
    )  # row → reason; what it has learned is enough, and
    # the job ends here as finished
    admitted: Ints | None = None  # rows promised to finish in time
    reasons: Mapping[int, str] = field(default_factory=dict)  # row → why, for those who ask
    planned_end_s: Floats | None = None  # [jobs] when it plans each to end, restarts not counted
    planned_finish_s: Floats | None = None  # [jobs] when the least share that it promised finishes each
    wake_s: float = float("inf")  # when it wants to decide again; the clock may decide before


class Allocator:
    """Base of all allocators. A subclass writes `allocate`.

    Attributes:
        name: its name in the catalogue and in tables.
        needs: what it reads beyond ages and requests. A run whose model lacks one of them is refused.
        places: whether it returns `gpus`; otherwise the run's placement rule places its `counts`.
        shares: whether two jobs may hold the same GPUs.
        hosts_services: whether it knows online services; a workload with some is refused otherwise.
        keeps_quotas: whether it knows the quotas of tenants; the loop takes back what others give over them.
        keeps_fixed: whether it leaves their GPUs to jobs that are pinned or may not be preempted; if not, the
            loop keeps these jobs from it.
        whole_nodes: whether it needs nodes that are alike: then it gets nothing of a node with such a job.
        keeps_gangs: whether a job gets the GPUs that it asked for or none; False = it may scale.
        clock: name and parameters of the clock that the source uses, such as "rounds(period_s=60)".
        placement: name of the placement rule that the source uses.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[JobNeed]] = frozenset()
    places: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    hosts_services: ClassVar[bool] = False
    keeps_quotas: ClassVar[bool] = False
    keeps_fixed: ClassVar[bool] = False
    whole_nodes: ClassVar[bool] = False
    keeps_gangs: ClassVar[bool] = True
    clock: ClassVar[str] = "events"
    placement: ClassVar[str] = "consolidated"

    def __post_init__(self) -> None:
        """Check the parameters. A subclass with a `__post_init__` of its own calls this one first."""
        check_parameters(self, self.label)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.name or type(self).__name__

    def init(self, cluster: Any, n_jobs: int) -> Any:
        """Make this allocator's memory for one run."""
        return None

    def allocate(self, jobs: Records, cluster: Any, now_s: float, speed: Speed, memory: Any) -> Allocation:
        """Decide. `jobs` are JOBS records, by submission; `cluster` is a `GpuCluster`."""
        raise NotImplementedError

    def in_rounds_of(self, round_s: float) -> Self:
        """The same allocator for rounds of this length; itself if it counts in none."""
        return self

    @classmethod
    def idea(cls) -> str:
        """First line of its documentation."""
        return (inspect.getdoc(cls) or cls.__name__).splitlines()[0]
