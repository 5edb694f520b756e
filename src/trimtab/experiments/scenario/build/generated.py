"""Synthetic requests: arrivals, classes, sizes, models and adapters, each from its own stream of the seed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from trimtab.experiments.scenario.build.request_columns import Members, RequestColumns
from trimtab.experiments.scenario.build.streams import Stream, generator
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray, choose, fractions
from trimtab.experiments.scenario.spec.workload import GenerateSpec, MixEntry


def generated(spec: GenerateSpec, served: Served, seed: int) -> RequestColumns:
    """Draw the requests of one seed."""
    n, names = spec.requests, list(served.classes)
    class_idx = _classes(spec, names, seed)
    units, model, adapter = np.empty(n), np.full(n, -1), np.full(n, -1)
    for c, name in enumerate(names):
        if name not in spec.mix:
            continue
        rows, service = np.flatnonzero(class_idx == c), served.classes[name]
        units[rows] = _sizes(spec, spec.mix[name], seed, c, len(rows))
        if service.model is not None:
            family = served.models[service.model]
            model[rows] = drawn_members(family, seed, Stream.MODEL, c, len(rows))
        if service.adapter is not None:
            family = served.adapters[service.adapter]
            adapter[rows] = _adapters(family, spec.mix[name].adapter_frac, seed, c, len(rows))
    arrival_s = _arrivals_s(spec, seed)
    members = (members_of(served.models), members_of(served.adapters))
    return RequestColumns(arrival_s, class_idx, units, model, adapter, *members)


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


def _sizes(spec: GenerateSpec, entry: MixEntry, seed: int, c: int, n: int) -> FloatArray:
    amount = entry.size if entry.size is not None else spec.size
    if amount is None:  # checked with the scenario: runs of a chain, whose stages have sizes
        return np.zeros(n)
    return amount.draw(generator(seed, Stream.SIZE, c), n)


def _adapters(family: ItemFamily, frac: float, seed: int, c: int, n: int) -> IntArray:
    has_one = generator(seed, Stream.HAS_ADAPTER, c).random(n) < frac
    return np.where(has_one, drawn_members(family, seed, Stream.ADAPTER, c, n), -1)
