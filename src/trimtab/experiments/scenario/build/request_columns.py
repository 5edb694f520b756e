"""Requests as columns from a generator or a trace, independent of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from trimtab.domain.requests import Prefixes
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray

Members = Mapping[str, tuple[str, ...]]
"""Family → names of the models or adapters in it."""


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Requests in order of arrival. A column that is None is drawn later, or absent."""

    arrival_s: FloatArray  # [requests]
    class_idx: IntArray  # [requests]
    units: FloatArray  # [requests], true work units
    model: IntArray  # [requests], position within the model family of the class; -1 = none
    adapter: IntArray  # [requests], likewise
    models: Members
    adapters: Members
    tenant_idx: IntArray | None = None  # [requests]
    tenant_names: tuple[str, ...] = ()
    priority: IntArray | None = None  # [requests]
    deadline_after_s: FloatArray | None = None  # [requests], from arrival; inf = none
    payload_gib: FloatArray | None = None  # [requests]
    session: IntArray | None = None  # [requests]; -1 = none
    factor: FloatArray | None = None  # [requests], hidden factor on the service time, as recorded
    prefixes: Prefixes | None = None
    content: IntArray | None = None  # [requests]; equal = the same for every tenant; -1 = never
    leave_after_s: FloatArray | None = None  # [requests], from arrival; its client goes away
    stages: pl.DataFrame | None = None  # of recorded runs (see `trimtab.traces.run_tables`)
    run_idx: IntArray | None = None  # [requests], their runs among those of `stages`
