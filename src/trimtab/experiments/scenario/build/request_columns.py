"""Requests as columns, before they meet a cluster: what a generator or a trace says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.domain.requests import Prefixes
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray

Members = Mapping[str, tuple[str, ...]]
"""Family → names of the models or adapters in it."""


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Requests in order of arrival. What is None is drawn, or does without."""

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
    content: IntArray | None = None  # [requests]; equal = the same, whoever asks; -1 = never
    leave_after_s: FloatArray | None = None  # [requests], from arrival; its client goes away
