"""Chains: directed acyclic graphs of stages, and the rows of their runs. Pure data.

A chain is stored once, as a template. A run of a chain is a request whose stages are served one by one. A
stage may have several instances in a run: it maps over items.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Flow(IntEnum):
    """The instances of a stage that read the outputs of another stage."""

    ALL = 0  # each instance reads the outputs of all instances
    EACH = 1  # instance i reads the output of instance i; both stages have as many


class OnStageFailure(IntEnum):
    """Effect of a stage instance that is not served."""

    FAIL = 0  # the run fails
    SKIP = 1  # it has no output; an instance whose inputs are all missing is skipped too
    DEFAULT = 2  # a default value of size 0 takes the place of its output


STAGE_WORK = np.dtype(
    [
        ("units", "f8"),
        ("estimate_s", "f8"),
        ("rank_s", "f8"),
        ("key", "i8"),
        ("class_idx", "i4"),
        ("model_idx", "i4"),
        ("next_class_idx", "i4"),
    ],
    align=True,
)
"""What WORK (`trimtab.domain.view`) holds of a stage alone; all else is its run's, or comes as it runs."""

HOST_RETRIES = -1  # `max_retries` of a stage that takes the host's bound

STAGE_SPEC = np.dtype(
    [
        ("error_frac", "f8"),  # probability that an attempt ends in an error
        ("failed_max_frac", "f8"),  # of a map's instances; more fail the run
        ("successor_first", "i4"),  # positions in `successors`
        ("successor_end", "i4"),
        ("input_first", "i4"),  # positions in `inputs`
        ("input_end", "i4"),
        ("on_failure", "i4"),  # OnStageFailure
        ("max_retries", "i4"),
        ("stored", "i4"),  # 1 = its output outlives the node that made it
        ("is_map", "i4"),  # 1 = it has an instance for each item: what reads all of them reads a list
    ],
    align=True,
)

EDGE = np.dtype(
    [
        ("frac", "f8"),  # of each output that is read
        ("stage", "i4"),  # position of the other stage in its template
        ("flow", "i4"),  # Flow
    ],
    align=True,
)


def new_stage_work(n: int) -> NDArray[np.void]:
    """STAGE_WORK rows [n], all zero except `model_idx` and `next_class_idx`, which are -1 (none)."""
    work = np.zeros(n, STAGE_WORK)
    work["model_idx"] = work["next_class_idx"] = -1
    return work


@dataclass(frozen=True)
class Templates:
    """All chains of a scenario; their stages one after another."""

    stages: NDArray[np.void]  # STAGE_SPEC [stages of all templates]
    successors: NDArray[np.void]  # EDGE, sorted by stage
    inputs: NDArray[np.void]  # EDGE, sorted by stage
    first: NDArray[np.int32]  # [templates + 1] position of each template's first stage
    stage_names: tuple[str, ...]  # [stages of all templates]
    template_names: tuple[str, ...]  # [templates]


@dataclass(frozen=True)
class Chains:
    """The runs among the requests: request i is a run of template `template_idx[i]`.

    Rows are in the order of runs, then of stages in their template, then of instances. A map over no items
    has one instance, which is not served: what reads all of the map is called with the empty list.
    """

    templates: Templates
    template_idx: NDArray[np.int32]  # [requests]; -1 = a request without stages
    counts: NDArray[np.int32]  # [stages of all runs] instances
    work: NDArray[np.void]  # STAGE_WORK [rows]
    truth: NDArray[np.void]  # TRUTH [rows]
    output_gib: NDArray[np.float64]  # [rows], true size of the output
    is_skipped: NDArray[np.bool_]  # [rows] not served, hidden from policies before the row is ready
    expected_s: NDArray[np.float64] | None = None  # [stages of all runs] declared service; None = of the rows
    expected_gib: NDArray[np.float64] | None = None  # [stages of all runs] declared outputs; None = likewise
    content_idx: NDArray[np.int32] | None = None  # [rows]; equal = the same result again; -1 = none
    empty_rows: NDArray[np.int64] | None = None  # of maps over no items, among those skipped

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        """Whether a row is that of a map over no items, [rows]."""
        empty = np.zeros(len(self.work), np.bool_)
        if self.empty_rows is not None:
            empty[self.empty_rows] = True
        return empty

    @property
    def stage_idx(self) -> NDArray[np.int64]:
        """Stage of each stage of all runs, by its position in `templates.stages`."""
        runs = self.template_idx[self.template_idx >= 0]
        sizes = np.diff(self.templates.first)[runs]
        offset = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.asarray(np.repeat(self.templates.first[runs], sizes) + offset, np.int64)
