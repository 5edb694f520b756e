"""Noisy statistics of a trace under a promise of (ε, δ): everything that a shared trace is made of.

Each row counts once in every statistic, a unit of privacy with at most `bound` rows; the noise covers the
change of all rows of a unit. What is asked later depends on answers only, never on the data behind them, so
costs add up (zero-concentrated differential privacy, adaptive composition).

Public: the columns that a trace has, time 0 of its clock, the cells of `grids`, names that were declared so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trimtab.privacy.accounting import epsilon_of, rho_of_sigma, sigma_of, threshold_of
from trimtab.privacy.mechanisms import Counts, Noise, consistent
from trimtab.traces.sharing import bursts
from trimtab.traces.sharing.grids import SPAN_BITS, cells_of, edges_of, span_cells
from trimtab.traces.sharing.promise import (
    BINS_MIN,
    RATE_CLEAR,
    ROW,
    Promise,
    budget,
    columns_of,
    cost,
    parent_of,
)

CLEAR: Final = 3.5  # standard deviations above noise at which a count is taken for one
BINS_MAX: Final = 512
GROUPS: Final = 6  # of each number, for what goes with what
SEGMENTS_MAX: Final = 32  # of the time, for how classes and sizes change
SEGMENT_CLEAR: Final = 8.0  # standard deviations of noise, of the mean count of a group in a segment
OTHER_NAMES_MAX: Final = 10_000


@dataclass(frozen=True)
class Answer:
    """A noisy statistic: its counts, and what it cost. `sensitivity` is that of one unit, in L2."""

    name: str
    counts: Counts
    sensitivity: float
    sigma: float
    delta: float = 0.0  # of names that only one unit has

    @property
    def rho(self) -> float:
        """Its cost in zero-concentrated differential privacy."""
        return rho_of_sigma(self.sigma, sensitivity=self.sensitivity)


@dataclass(frozen=True)
class Names:
    """A named column: shares of its names, None for rows without one, then of all others together."""

    names: tuple[str | None, ...]
    share: NDArray[np.float64]  # [names + 1], sums to 1
    others: int  # further names, equally likely
    lift: NDArray[np.float64] | None = None  # [segments, names + 1], how much likelier than in all


@dataclass(frozen=True)
class Numbers:
    """A column of numbers by group of rows (class): shares of its cells, and how they go with its parent."""

    share: NDArray[np.float64]  # [groups, cells]
    lift: NDArray[np.float64]  # [segments, groups, GROUPS], how much likelier than in all
    parent: str | None = None
    pairs: NDArray[np.float64] | None = None  # [groups, GROUPS of the parent, GROUPS]


@dataclass(frozen=True)
class Released:
    """All that leaves: answers, and what was read off them. `rate` is requests in each bin of `width_s`."""

    promise: Promise
    answers: tuple[Answer, ...]
    width_s: float
    rate: NDArray[np.float64]  # [bins]
    burst_variance: NDArray[np.float64]  # [levels]
    names: Mapping[str, Names]
    numbers: Mapping[str, Numbers]
    volumes: NDArray[np.float64] | None  # units with 2^k to 2^(k + 1) rows, [k], where the unit is a tenant
    size_rule: str | None
    not_shared: tuple[str, ...]  # columns
    rho: float
    delta_of_names: float

    def costs(self) -> list[dict[str, Any]]:
        """What each statistic cost, in the order asked; `epsilon_alone` is its ε if it were all."""
        delta = self.promise.delta - self.delta_of_names
        return [
            {
                "statistic": answer.name,
                "cells": int(answer.counts.size),
                "sensitivity": answer.sensitivity,
                "sigma": answer.sigma,
                "rho": answer.rho,
                "share_frac": answer.rho / self.rho,
                "epsilon_alone": epsilon_of(answer.rho, delta),
            }
            for answer in self.answers
        ]

    def to_dict(self) -> dict[str, Any]:
        """Promise, costs, what is public, and every noisy count: what may be told beside the trace."""
        promise = self.promise
        return {
            "promise": {
                "epsilon": promise.epsilon,
                "delta": promise.delta,
                "unit": promise.unit,
                "bound": promise.bound,
                "neighbours": f"with and without one {promise.unit}",
                "rho": self.rho,
                "delta_of_names": self.delta_of_names,
            },
            "costs": self.costs(),
            "public": {
                "columns": [*self.names, *self.numbers],
                "names": {column: list(names) for column, names in promise.public.items()},
                "size_rule": self.size_rule,
                "time_0": "the start of the recording",
            },
            "not_shared": list(self.not_shared),
            "noisy_counts": {answer.name: answer.counts.tolist() for answer in self.answers},
        }


class _Curator:
    """Answers with noise what is counted, each from its share of the budget; keeps what it answered."""

    def __init__(self, rho: Mapping[str, float], noise: Noise) -> None:
        self._rho, self._noise = rho, noise
        self.answers: list[Answer] = []

    def sigma(self, name: str, sensitivity: float) -> float:
        return sigma_of(self._rho[name], sensitivity=sensitivity)

    def ask(self, name: str, counts: Counts, sensitivity: float) -> Answer:
        sigma = self.sigma(name, sensitivity)
        answer = Answer(name, self._noise(counts, sigma), sensitivity, sigma)
        self.answers.append(answer)
        return answer

    def ask_names(self, name: str, counts: Counts, bound: int, delta: float) -> tuple[Answer, list[int]]:
        """The first count, and those above the threshold, by falling noisy count; and their positions."""
        sigma = self.sigma(name, bound)
        threshold = threshold_of(sigma, delta, contribution=bound)
        noisy = self._noise(counts, sigma)
        kept = [0, *(int(i) for i in np.argsort(-noisy, kind="stable") if i > 0 and noisy[i] > threshold)]
        answer = Answer(name, noisy[kept], float(bound), sigma, delta)
        self.answers.append(answer)
        return answer, kept


def release(
    table: pl.DataFrame,
    promise: Promise,
    size_rule: str | None,
    noise: Noise,
    rng: np.random.Generator,
) -> Released:
    """Everything that is told of a request table. `rng` only chooses which rows of a unit count.

    `check` tells beforehand whether the promise can be kept.
    """
    named, numbers = columns_of(table, size_rule, promise.unit)
    parts = budget(named, numbers, promise)
    hidden = [name for name in named if name not in promise.public]
    rho, delta_of_names = cost(promise)
    curator = _Curator({name: share * rho for name, share in parts.items()}, noise)
    rows = bounded(table, promise, rng)
    arrival_s = rows["arrival_s"].to_numpy()
    width_s, rate = _rate(curator, arrival_s, promise.bound)
    levels = bursts.levels_of(width_s)
    sums = bursts.split_sums(arrival_s, width_s, levels)
    uneven = curator.ask("bursts", sums, promise.bound * bursts.SENSITIVITY * math.sqrt(max(levels, 1)))
    total, total_sigma = float(rate.sum()), curator.sigma("rate", promise.bound) * math.sqrt(len(rate))
    names, group = {}, np.zeros(rows.height, np.int64)
    clock = _Clock(arrival_s, width_s * len(rate), total)
    for column in named:
        delta = delta_of_names / len(hidden) if column in hidden else 0.0
        names[column], code = _names(curator, rows[column], promise, delta, total, total_sigma)
        if column == "class":
            group, share = code, names[column].share
            lift = _lift(curator, "times class", clock, code, share[None, :], promise.bound)
            names[column] = replace(names[column], lift=lift[:, 0, :])
    groups = len(names["class"].share) if "class" in names else 1
    found: dict[str, Numbers] = {}
    cells = {column: cells_of(rows[column]) for column in numbers}
    for column in numbers:
        found[column] = _numbers(curator, column, cells, group, groups, clock, promise.bound, found)
    shared = {"arrival_s", "size", *named, *numbers}
    volumes = _volumes(curator, table, promise) if "volumes" in parts else None
    return Released(
        promise=promise,
        answers=tuple(curator.answers),
        width_s=width_s,
        rate=rate,
        burst_variance=bursts.variances(uneven.counts, uneven.sigma),
        names=names,
        numbers=found,
        volumes=volumes,
        size_rule=size_rule if "size" in table.columns and "size" not in numbers else None,
        not_shared=tuple(c for c in table.columns if c not in shared and c != promise.unit),
        rho=rho,
        delta_of_names=delta_of_names,
    )


def bounded(table: pl.DataFrame, promise: Promise, rng: np.random.Generator) -> pl.DataFrame:
    """The rows that count: of each unit at most `bound`, chosen at random."""
    if promise.unit == ROW:
        return table
    order = pl.Series("order of rows", rng.permutation(table.height))
    place = pl.col(order.name).rank("ordinal").over(promise.unit)
    return table.with_columns(order).filter(place <= promise.bound).drop(order.name)


def _rate(curator: _Curator, arrival_s: NDArray[np.float64], bound: int) -> tuple[float, NDArray[np.float64]]:
    """Seconds of a bin, and requests in each from time 0 to the last bin that is no noise."""
    counts = np.bincount(span_cells(arrival_s), minlength=SPAN_BITS)
    span = curator.ask("span", counts, bound)
    clear = np.flatnonzero(span.counts > CLEAR * span.sigma)
    last = int(clear[-1]) if len(clear) else int(span.counts.argmax())
    about = max(float(span.counts[: last + 1].sum()), 1.0)
    bins = BINS_MIN
    sigma = curator.sigma("rate", bound)
    while 2 * bins <= BINS_MAX and about / (2 * bins) >= RATE_CLEAR * sigma:
        bins *= 2
    width_s = 2.0**last / bins
    at = np.minimum(arrival_s / width_s, bins - 1).astype(np.int64)
    noisy = curator.ask("rate", np.bincount(at, minlength=bins), bound).counts
    clear = np.flatnonzero(noisy > CLEAR * sigma)
    kept = noisy[: int(clear[-1]) + 1] if len(clear) else noisy
    return width_s, consistent(kept, max(float(kept.sum()), 1.0))


def _names(
    curator: _Curator,
    values: pl.Series,
    promise: Promise,
    delta: float,
    total: float,
    total_sigma: float,
) -> tuple[Names, NDArray[np.int64]]:
    """What is told of a named column; and the position of each row's name, the last for all others [rows]."""
    column, public = values.name, promise.public.get(values.name)
    if public is not None:
        cells: list[str | None] = [None, *public]
        code = _codes(values, cells)
        answer = curator.ask(f"names {column}", np.bincount(code, minlength=len(cells) + 1), promise.bound)
        surely = np.flatnonzero(_clear(answer))  # none and others may not be there at all
        kept = np.union1d(np.arange(1, len(cells)), surely)
        share = np.zeros(len(cells) + 1)
        share[kept] = consistent(answer.counts[kept], total) / total
        return Names(tuple(cells), share, int(share[-1] > 0.0)), code
    present = [None, *values.drop_nulls().unique().sort().to_list()]
    counts = np.bincount(_codes(values, present), minlength=len(present))[: len(present)]
    answer, told_idx = curator.ask_names(f"names {column}", counts, promise.bound, delta)
    told = _clear(answer)
    rest = total - float(told.sum())
    if told.any() and rest <= CLEAR * math.hypot(total_sigma, answer.sigma * math.sqrt(len(told_idx))):
        rest = 0.0
    least = float(told[1:].min(initial=total))
    others = 1 if column == "class" else min(math.ceil(2.0 * rest / max(least, 1.0)), OTHER_NAMES_MAX)
    share = np.array([*told, rest]) / (float(told.sum()) + rest)
    names = (None, *(f"{column}-{k}" for k in range(1, len(told_idx))))
    return Names(names, share, others if rest else 0), _codes(values, [present[i] for i in told_idx])


def _clear(answer: Answer) -> Counts:
    """Its counts, those that may be noise as 0."""
    return np.where(answer.counts > CLEAR * answer.sigma, answer.counts, 0)


def _codes(values: pl.Series, names: list[str | None]) -> NDArray[np.int64]:
    """Position of each value among the names [rows]; `len(names)` for those that are none of them."""
    positions = {name: k for k, name in enumerate(names) if name is not None}
    code = values.replace_strict(positions, default=len(names), return_dtype=pl.Int64).to_numpy()
    return np.where(values.is_null().to_numpy(), 0, code)


def _numbers(
    curator: _Curator,
    column: str,
    cells: Mapping[str, NDArray[np.int64]],
    group: NDArray[np.int64],
    groups: int,
    clock: _Clock,
    bound: int,
    found: Mapping[str, Numbers],
) -> Numbers:
    """Shares of the cells of a column by group, and how they go with those of its parent."""
    many, cell = len(edges_of(column)), cells[column]
    counts = np.bincount(group * many + cell, minlength=groups * many).reshape(groups, many)
    answer = curator.ask(f"sizes {column}", counts, bound)
    pooled = shares(answer.counts.sum(axis=0), answer.sigma * math.sqrt(groups))
    if pooled is None:  # nothing stands out
        pooled = np.zeros(many)
        pooled[1 + int(answer.counts.sum(axis=0)[1:].argmax())] = 1.0
    share = np.tile(pooled, (groups, 1))
    for g, row in enumerate(answer.counts):
        if (own := shares(row, answer.sigma)) is not None:
            share[g] = own
    parent, of_child = parent_of(column, list(cells)), group_of_cells(share)
    mass = group_shares(share)
    lift = _lift(curator, f"times {column}", clock, of_child[group, cell], mass, bound, group)
    if parent is None:
        return Numbers(share, lift)
    of_parent = group_of_cells(found[parent].share)
    key = (group * GROUPS + of_parent[group, cells[parent]]) * GROUPS + of_child[group, cell]
    size = groups * GROUPS * GROUPS
    together = curator.ask(f"pairs {column}", np.bincount(key, minlength=size), bound)
    pairs = together.counts.reshape(groups, GROUPS, GROUPS)
    return Numbers(share, lift, parent, _conditional(pairs, together.sigma, mass))


def shares(noisy: Counts, sigma: float) -> NDArray[np.float64] | None:
    """Shares of cells from noisy counts; None where all might be noise.

    Neighbouring cells are taken together until their count stands out; within such a run it is spread as its
    noisy counts are. What lies above the last run is noise. The first cell, of rows without a value, is
    alone.
    """
    found = np.zeros(len(noisy))
    found[0] = noisy[0] if noisy[0] > CLEAR * sigma else 0.0
    start = 1
    while start < len(noisy):
        sums = np.cumsum(noisy[start:]) / (sigma * np.sqrt(np.arange(1, len(noisy) - start + 1)))
        above = np.flatnonzero(sums > CLEAR)
        if not len(above):
            break
        run = slice(start, start + int(above[0]) + 1)
        found[run] = consistent(noisy[run], float(noisy[run].sum()))
        start = run.stop
    total = found.sum()
    return found / total if total > 0.0 else None


def group_of_cells(share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of `GROUPS` about equally likely runs of cells each cell is in [groups, cells]."""
    middle = np.cumsum(share, axis=1) - share / 2.0
    return np.minimum(GROUPS * middle, GROUPS - 1).astype(np.int64)


def group_shares(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of each of those runs [groups, GROUPS]."""
    runs = zip(group_of_cells(share), share, strict=True)
    return np.array([np.bincount(of_cell, row, GROUPS) for of_cell, row in runs])


class _Clock:
    """The segments of the time from 0 to the end that are told apart; arrivals after it are in the last."""

    def __init__(self, arrival_s: NDArray[np.float64], end_s: float, total: float) -> None:
        self._arrival_s, self._end_s, self._total = arrival_s, end_s, total

    def segments(self, groups: int, sigma: float) -> int:
        """As many as have counts above the noise, if so many groups are about equally large."""
        most = min(SEGMENTS_MAX, int(self._total / (groups * SEGMENT_CLEAR * sigma)))
        return max(1, most)

    def at(self, segments: int) -> NDArray[np.int64]:
        """The segment of each row."""
        return np.minimum(self._arrival_s * (segments / self._end_s), segments - 1).astype(np.int64)


def _lift(
    curator: _Curator,
    name: str,
    clock: _Clock,
    code: NDArray[np.int64],
    share: NDArray[np.float64],
    bound: int,
    group: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """How much likelier each code is in a segment of the time than in all [segments, groups, codes].

    `share` is that of each code in all [groups, codes]. 1 where only noise was counted.
    """
    groups, codes = share.shape
    segments = clock.segments(codes, curator.sigma(name, bound))
    key = clock.at(segments) if group is None else clock.at(segments) * groups + group
    counts = np.bincount(key * codes + code, minlength=segments * groups * codes)
    answer = curator.ask(name, counts.reshape(segments, groups, codes), bound)
    found = np.ones(answer.counts.shape)
    for at in np.ndindex(segments, groups):
        total = float(answer.counts[at].sum())
        if total > CLEAR * answer.sigma * math.sqrt(codes):
            of_all = share[at[1]]
            np.divide(consistent(answer.counts[at], total) / total, of_all, out=found[at], where=of_all > 0.0)
    return found


def _conditional(pairs: Counts, sigma: float, mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of each group of a number given that of its parent; its own share where noise is all."""
    found = np.repeat(mass[:, None, :], GROUPS, axis=1)
    for at in np.ndindex(pairs.shape[:2]):
        total = float(pairs[at].sum())
        if total > CLEAR * sigma * math.sqrt(GROUPS):
            own = np.where(mass[at[0]] > 0.0, consistent(pairs[at], total), 0.0)
            found[at] = own / own.sum() if own.any() else mass[at[0]]
    return found


def _volumes(curator: _Curator, table: pl.DataFrame, promise: Promise) -> NDArray[np.float64]:
    """Units with 2^k to 2^(k + 1) rows, [k]; each counts once, however many rows it has."""
    rows = table[promise.unit].value_counts()["count"].to_list()
    counts = np.bincount([int(n).bit_length() - 1 for n in rows], minlength=SPAN_BITS)
    answer = curator.ask("volumes", counts[:SPAN_BITS], 1.0)
    return _clear(answer).astype(np.float64)
