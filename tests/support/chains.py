"""Chains small enough to work out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimtab.domain.chains import (
    HOST_RETRIES,
    Chains,
    Flow,
    OnStageFailure,
    StageSpec,
    Templates,
    new_stage_work,
    templates_of,
)
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH, Requests


@dataclass(frozen=True)
class Stage:
    """A stage of a test chain: `units` of each instance, a list for a map; `after` names its predecessors."""

    units: float | Sequence[float] = 1.0
    after: Mapping[str, Flow] | None = None
    output_gib: float = 0.0
    on_failure: OnStageFailure = OnStageFailure.FAIL
    max_retries: int = HOST_RETRIES
    failed_max_frac: float = 1.0
    error_frac: float = 0.0
    stored: bool = False
    is_skipped: bool = False
    key: int = 0
    class_idx: int = 0
    content: int = -1  # of the first run's; the same for all runs

    @property
    def is_map(self) -> bool:
        return not isinstance(self.units, float | int)

    @property
    def is_empty(self) -> bool:
        return self.is_map and not len(self.units)  # type: ignore[arg-type]


def chained(c: Cluster, r: Requests, stages: Mapping[str, Stage]) -> Requests:
    """The requests, each a run of this one chain. A second of service a unit; `key` is the node."""
    specs = {
        name: StageSpec(
            after=dict(stage.after or {}),
            on_failure=stage.on_failure,
            max_retries=stage.max_retries,
            failed_max_frac=stage.failed_max_frac,
            error_frac=stage.error_frac,
            is_stored=stage.stored,
            is_map=stage.is_map,
        )
        for name, stage in stages.items()
    }
    units = [
        np.ones(1) if stage.is_empty else np.atleast_1d(np.asarray(stage.units, np.float64))
        for stage in stages.values()
    ]
    n, per_run = len(r), sum(len(u) for u in units)
    work, truth = new_stage_work(n * per_run), np.zeros(n * per_run, TRUTH)

    def rows(name: str) -> np.ndarray[Any, Any]:
        each = [
            np.full(len(u), getattr(stage, name)) for u, stage in zip(units, stages.values(), strict=True)
        ]
        return np.tile(np.concatenate(each), n)

    work["units"] = truth["units"] = np.tile(np.concatenate(units), n)
    truth["factor"] = 1.0
    work["key"], work["class_idx"] = rows("key"), rows("class_idx")
    work["estimate_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    chains = Chains(
        templates=templates_of({"chain": specs}),
        template_idx=np.zeros(n, np.int32),
        counts=np.tile([len(u) for u in units], n).astype(np.int32),
        work=work,
        truth=truth,
        output_gib=rows("output_gib").astype(np.float64),
        is_skipped=(rows("is_skipped") | rows("is_empty")).astype(bool),
        empty_rows=np.flatnonzero(rows("is_empty")),
        content_idx=rows("content").astype(np.int32),
    )
    return replace(r, chains=chains)


def after(*names: str, flow: Flow = Flow.ALL) -> dict[str, Flow]:
    """Predecessors that are all read the same way."""
    return dict.fromkeys(names, flow)


__all__ = ["Stage", "Templates", "after", "chained"]


def first_alone(r: Requests) -> Requests:
    """Of two runs of a chain the second becomes a request without stages."""
    assert r.chains is not None
    names = ("counts", "work", "truth", "output_gib", "is_skipped")
    kept = {name: getattr(r.chains, name)[:2] for name in names}
    return replace(r, chains=replace(r.chains, template_idx=np.array([0, -1], np.int32), **kept))
