"""Kinds of work: the interface that a comparison needs. Serving is one kind; training jobs may be another.

A comparison uses the work only through this interface. A kind reads the settings, builds the inputs of a
seed, runs a policy on them, and defines metrics, bounds, figures and notes of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.metrics import Metric

if TYPE_CHECKING:
    import polars as pl

PolicySpec: TypeAlias = Any
"""A policy as the kind takes it: its name, an object or a class."""

Notice: TypeAlias = Callable[[str], None]


Floats = NDArray[np.float64]

QUANTILES, BINS, ROWS = 400, 120, 200


@dataclass(frozen=True, slots=True)
class Curves:
    """The data of one run that figures draw, small enough to keep for every policy."""

    quantile_frac: Floats  # [quantiles]
    completion_s: Floats  # [quantiles] completion time at each quantile, of finished items
    edges_s: Floats  # [bins + 1]
    queue_length: Floats  # [bins] mean number of items waiting
    utilisation_frac: Floats  # [rows, bins] allocated; adjacent nodes share a row in large clusters
    row_names: tuple[str, ...]  # [rows]
    rows_most: float = 1.0  # what a fraction of 1 stands for, in `rows_unit`
    rows_unit: str = ""  # empty = fractions
    series: Mapping[str, Floats] = field(default_factory=dict)  # further ones of the kind: name → [bins]
    latency_s: Floats = field(default_factory=lambda: np.zeros(0))  # [bins] mean completion, by arrival
    marks: tuple[tuple[float, float, str], ...] = ()  # start, end and name of what happened meanwhile
    switches: tuple[tuple[float, str], ...] = ()  # of a composite policy: time, and its candidate since then


class Settings(Protocol):
    """The settings of a comparison, such as a scenario. They are hashable and immutable, and they pickle."""

    @property
    def name(self) -> str:
        """Short name, for tables and reports."""

    @property
    def sort_by(self) -> str:
        """Metric that tables are sorted by."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies to compare; empty = the default ones of the kind."""

    def seed_list(self) -> tuple[int, ...]:
        """Seeds to run."""

    def hash(self) -> str:
        """Equal for settings that give the same runs."""

    def content(self) -> dict[str, Any]:
        """The values that differ from defaults, as in a file."""

    def __hash__(self) -> int: ...


class Inputs(Protocol):
    """One seed of the settings, ready for any policy; `len` is the number of items."""

    @property
    def offered_load(self) -> float:
        """Offered work over capacity."""

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...


S = TypeVar("S", bound=Settings)
I = TypeVar("I", bound=Inputs)  # noqa: E741 - the inputs
R = TypeVar("R")  # what is left of a run


@dataclass(frozen=True, slots=True)
class LowerBound(Generic[R]):
    """A bound that no policy can beat on these inputs."""

    value: float  # of the kind's objective
    method: str
    assumptions: tuple[str, ...]
    distance_frac: Callable[[R, Mapping[str, float]], float]  # of a run with these metrics; nan: not defined


@dataclass(frozen=True, slots=True)
class PolicyTiming:
    """Computing time of one policy on one scenario. Plan times are nan if it made no plan."""

    policy: str
    n_nodes: int
    decision_s: float
    plans: int
    plan_mean_s: float
    plan_max_s: float


@dataclass(frozen=True, slots=True)
class SeriesText:
    """How a report names a series of the curves."""

    title: str
    axis: str
    how: str  # to read it
    is_frac: bool = False


@dataclass(frozen=True, slots=True)
class FigureChoice:
    """Which metrics a report draws; the texts say how to read each."""

    stats: tuple[str, ...]  # the best policy in each, as large numbers
    over_load: Mapping[str, str]  # metric → text; drawn where there is a sweep
    bars: Mapping[str, str]  # metric → text
    bars_title: str
    trade_off: tuple[str, str] | None  # two metrics against each other
    trade_off_text: str = ""
    rows_title: str = "Utilisation of nodes over time"  # of the chart of the curves' rows
    rows_text: str = (
        "One row per node, grouped by type: dark is idle, bright is fully used; even rows mean balanced work."
    )
    series: Mapping[str, SeriesText] = field(default_factory=dict)  # series of the curves → its texts


class Kind(Protocol[S, I, R]):
    """A kind of work. It pickles: every process of a comparison has its own copy.

    Kinds inherit from it. What has an answer here is what a kind without more to say answers.
    """

    items: ClassVar[str]  # name of the items of work, in the plural: "requests"
    metrics: ClassVar[Mapping[str, Metric]]  # of a run by name, in the order of tables
    objective: ClassVar[str]  # the metric that ranks policies by default, and that the bound is of
    objective_title: ClassVar[str]  # the objective in words
    figures: ClassVar[FigureChoice]  # of a report
    sweep_up_to: ClassVar[int] = 0  # items of a run up to which loads are swept by default

    def __hash__(self) -> int:
        return object.__hash__(self)

    def default_policies(self, settings: S) -> tuple[str, ...]:
        """The policies of a comparison by default."""

    def read(
        self,
        source: S | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> S:
        """The settings, with every value that is not None replaced. Raises UsageError."""

    def limits(self, settings: S) -> str:
        """What the model of these settings leaves out, for the foot of every table."""
        return ""

    def size(self, settings: S) -> int:
        """Number of items of a run."""

    def shortened(self, settings: S, items: int) -> S:
        """The settings with about so many items, to measure how long a run takes."""

    def own_load(self, settings: S) -> float | None:
        """The load of the settings; None = the work's own rate."""
        return None

    def sweep_loads(self, settings: S, wanted: Sequence[float] | None) -> tuple[float, ...]:
        """Loads of the figure metric against load: the given ones, else the settings'. Raises UsageError."""
        return ()

    def is_swept_by_default(self, policy: PolicySpec) -> bool:
        """Whether the default comparison sweeps the loads with this policy; False for costly ones."""
        return True

    def stamp(self, settings: S) -> object:
        """A value that changes with the files that the settings name."""
        return None

    def find(self, policy: PolicySpec) -> Sequence[object]:
        """The objects that make up a policy. Raises UsageError."""

    def canonical(self, policy: PolicySpec) -> str:
        """The canonical name of a policy."""

    def prepare(
        self, settings: S, policies: Sequence[PolicySpec], mode: str, items: int, notice: Notice | None
    ) -> str:
        """Prepare all runs, before processes start; returns the mode of the runs.

        `items` is the number of items of all runs together; `notice` gets a line for each slow step. Raises
        UsageError, before anything slow, for a policy that this work does not provide for.
        """
        return mode

    def build(self, settings: S, seed: int, load: float | None) -> I:
        """The inputs of one seed; `load` None = the settings' load."""

    def run(self, inputs: I, policy: PolicySpec, mode: str) -> R:
        """Run one policy. Raises PolicyError for one that fails."""

    def measure(self, records: R) -> dict[str, float]:
        """All metrics of a run; nan where undefined."""

    def bound(self, inputs: I) -> LowerBound[R] | None:
        """A lower bound on the objective; None if there is none."""
        return None

    def curves(self, inputs: I, records: R) -> Curves | None:
        """The curves of a run, on a time axis that all policies of the inputs share."""
        return None

    def table(self, inputs: I, records: R) -> pl.DataFrame:
        """One row per item."""

    def remarks(self, inputs: I, policy: PolicySpec, records: R) -> Mapping[str, Any]:
        """The data of a run that `notes` needs: numbers, texts, and tuples of them."""
        return {}

    def seedless(self, settings: S, policies: Sequence[Any], seed: int) -> frozenset[str]:
        """Names of the policies whose runs are the same with every seed."""
        return frozenset()

    def batch_ci95(self, records: R) -> Mapping[str, float]:
        """Half-widths of 95 % intervals from one run, for the metrics that have one."""
        return {}

    def served_frac(self, settings: S, metrics: Mapping[str, float]) -> float:
        """Fraction of the work that was done; policies below the limit have no rank."""
        return 1.0

    def notes(self, settings: S, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        """Notes on these results, `PolicyResult`s with the best first, and on curves over load if any."""

    def times(self, settings: S) -> list[PolicyTiming]:
        """Computing times of the policies; empty where the kind measures none."""
        return []


AnyKind: TypeAlias = Kind[Any, Any, Any]
