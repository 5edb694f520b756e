"""Synthetic requests: arrivals, classes, sizes, models and adapters, each from its own stream of the seed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import polars as pl

from trimtab.domain.requests import Prefixes
from trimtab.experiments.scenario.build.batch_shapes import shapes_of
from trimtab.experiments.scenario.spec.amounts import ProductAmount, SumAmount
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray, choose, fractions
from trimtab.experiments.scenario.spec.workload import GenerateSpec, MixEntry


class Stream(IntEnum):
    """Purpose of a stream. Results depend on the numbers: never reuse or reorder them."""

    ARRIVAL = 0
    CLASS = 1
    SIZE = 2
    MODEL = 3
    HAS_ADAPTER = 4
    ADAPTER = 5
    TENANT = 6
    PRIORITY = 7
    HAS_DEADLINE = 8
    DEADLINE_FACTOR = 9
    DEADLINE_SECONDS = 10
    PAYLOAD = 11
    SESSION = 12
    ORIGIN = 13
    ESTIMATE = 14
    SERVICE = 15
    FAULT = 16
    PROMPT = 17
    SHARED_TOKENS = 18
    OWN_TOKENS = 19
    CONTENT = 20
    REPEATABLE = 21
    STAGE_SIZE = 22
    STAGE_COUNT = 23
    STAGE_OUTPUT = 24
    STAGE_CONDITION = 25
    STAGE_ESTIMATE = 26
    STAGE_SERVICE = 27
    STAGE_MODEL = 28
    RUN_CONTENT = 29
    RUN_REPEATABLE = 30
    BACKGROUND = 29
    RESULT = 31


def generator(seed: int, stream: Stream, member: int = 0) -> np.random.Generator:
    """The generator of one stream of a seed; `member` distinguishes classes or list entries."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), member)))


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
    prompt_tokens: IntArray | None = None  # [requests]; 0 for work of no language model
    output_tokens: IntArray | None = None  # [requests], likewise
    shape: IntArray | None = None  # [requests]; equal = of one shape within a class; None = all are


def generated(spec: GenerateSpec, served: Served, seed: int) -> RequestColumns:
    """Draw the requests of one seed."""
    n, names = spec.requests, list(served.classes)
    class_idx = _classes(spec, names, seed)
    units, model, adapter = np.empty(n), np.full(n, -1), np.full(n, -1)
    tokens = np.zeros((2, n), np.int64)
    for c, name in enumerate(names):
        if name not in spec.mix:
            continue
        rows, service = np.flatnonzero(class_idx == c), served.classes[name]
        units[rows], tokens[:, rows] = _sizes(spec, spec.mix[name], seed, c, len(rows))
        if service.model is not None:
            family = served.models[service.model]
            model[rows] = drawn_members(family, seed, Stream.MODEL, c, len(rows))
        if service.adapter is not None:
            family = served.adapters[service.adapter]
            adapter[rows] = _adapters(family, spec.mix[name].adapter_frac, seed, c, len(rows))
    arrival_s = _arrivals_s(spec, seed)
    members = (members_of(served.models), members_of(served.adapters))
    shape = shapes_of(
        served.classes, class_idx, lambda name, rows: _parts(spec, names, name, seed, len(rows))
    )
    columns = RequestColumns(arrival_s, class_idx, units, model, adapter, *members, shape=shape)
    if not tokens.any():
        return columns
    return replace(columns, prompt_tokens=tokens[0], output_tokens=tokens[1])


def _begins(spec: GenerateSpec) -> list[int]:
    """First request of each regime, and the number of requests."""
    return [0, *(round(change.after_frac * spec.requests) for change in spec.changes), spec.requests]


def _classes(spec: GenerateSpec, names: list[str], seed: int) -> IntArray:
    """Class of each request, [requests]: the uniform numbers do not depend on the shares."""
    of_mix = {name: entry.share for name, entry in spec.mix.items()}
    regimes = [of_mix, *(change.shares or of_mix for change in spec.changes)]
    rng, begins = generator(seed, Stream.CLASS), _begins(spec)
    drawn = []
    for shares, (begin, end) in zip(regimes, itertools.pairwise(begins), strict=True):
        drawn.append(choose(rng, fractions([shares.get(name, 0.0) for name in names]), end - begin))
    return np.concatenate(drawn)


def _arrivals_s(spec: GenerateSpec, seed: int) -> FloatArray:
    """Arrival times [requests]: those of the process, with gaps divided by the factor of their regime."""
    arrival_s = spec.arrival.draw(generator(seed, Stream.ARRIVAL), spec.requests)
    if not spec.changes:
        return arrival_s
    factors = [1.0, *(change.rate_factor for change in spec.changes)]
    return np.cumsum(np.diff(arrival_s, prepend=0.0) / np.repeat(factors, np.diff(_begins(spec))))


def members_of(families: Mapping[str, ItemFamily]) -> Members:
    """Names within each family."""
    return {name: family.names(name) for name, family in families.items()}


def drawn_members(family: ItemFamily, seed: int, stream: Stream, member: int, n: int) -> IntArray:
    """Positions within a family by popularity, [n]."""
    return choose(generator(seed, stream, member), family.popularity_frac, n)


_TOKENS = ("prompt_tokens", "output_tokens")


def _sizes(
    spec: GenerateSpec, entry: MixEntry, seed: int, c: int, n: int
) -> tuple[FloatArray, IntArray | int]:
    """Work units [n]; prompt and output tokens [2, n], if the size is a sum of such parts, else 0."""
    amount = entry.size if entry.size is not None else spec.size
    if amount is None:  # checked with the scenario: runs of a chain, whose stages have sizes
        return np.zeros(n), 0
    rng = generator(seed, Stream.SIZE, c)
    if not isinstance(amount, SumAmount) or not set(_TOKENS) <= set(amount.sum):
        return amount.draw(rng, n), 0
    parts = amount.draw_parts(rng, n)
    whole = np.stack([np.maximum(1, np.rint(parts[name])).astype(np.int64) for name in _TOKENS])
    return amount.of_parts(parts, n), whole


def _parts(spec: GenerateSpec, names: list[str], name: str, seed: int, n: int) -> Mapping[str, FloatArray]:
    """Part → values [n] of the sizes of a class that are products, as `_sizes` draws them."""
    amount = spec.mix[name].size or spec.size
    if not isinstance(amount, ProductAmount):
        return {}
    return amount.draw_parts(generator(seed, Stream.SIZE, names.index(name)), n)


def _adapters(family: ItemFamily, frac: float, seed: int, c: int, n: int) -> IntArray:
    has_one = generator(seed, Stream.HAS_ADAPTER, c).random(n) < frac
    return np.where(has_one, drawn_members(family, seed, Stream.ADAPTER, c, n), -1)
