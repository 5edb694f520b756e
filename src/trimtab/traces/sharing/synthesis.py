"""A synthetic trace from noisy statistics: no row of the original has a part in it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trimtab.traces.formats import COLUMNS, image_size, token_size
from trimtab.traces.sharing import bursts
from trimtab.traces.sharing.grids import drawn
from trimtab.traces.sharing.release import Names, Numbers, Released, group_of_cells, group_shares


def synthetic(released: Released, rng: np.random.Generator, prompt_token_frac: float) -> pl.DataFrame:
    """A request table drawn from what was released; at least one row."""
    whole = np.floor(released.rate + rng.random(len(released.rate))).astype(np.int64)
    if not whole.sum():
        whole[int(released.rate.argmax())] = 1
    arrival_s = bursts.drawn_arrivals(whole, released.width_s, released.burst_variance, rng)
    many = len(arrival_s)
    table: dict[str, pl.Series] = {"arrival_s": pl.Series("arrival_s", arrival_s)}
    group = np.zeros(many, np.int64)
    time_frac = arrival_s / (released.width_s * len(released.rate))
    for column, names in released.names.items():
        if names.lift is None:
            code = rng.choice(len(names.share), many, p=names.share)
        else:
            group = code = _drawn(names.share * names.lift[_segment(time_frac, names.lift)], rng)
        table[column] = _named(column, names, code, rng)
    if released.volumes is not None:
        table[released.promise.unit] = _units(released.promise.unit, released.volumes, many, rng)
    cells: dict[str, NDArray[np.int64]] = {}
    for column, numbers in released.numbers.items():
        cells[column] = _cells(numbers, group, time_frac, cells, released.numbers, rng)
        table[column] = drawn(column, cells[column], rng)
    found = pl.DataFrame(list(table.values()))
    if released.size_rule is not None:
        is_tokens = released.size_rule.startswith("output tokens")
        size = _token_size(found, prompt_token_frac) if is_tokens else image_size()
        found = found.with_columns(size.fill_null(0.0).clip(1e-6).alias("size"))
    return found.select(name for name in COLUMNS if name in found.columns)


def _token_size(table: pl.DataFrame, prompt_token_frac: float) -> pl.Expr:
    return (
        token_size(prompt_token_frac)
        if "prompt_tokens" in table.columns
        else pl.col("output_tokens").cast(float)
    )


def _named(column: str, names: Names, code: NDArray[np.int64], rng: np.random.Generator) -> pl.Series:
    """The name of each row; those of the rest are `other` where there is one, else numbered."""
    many = len(names.names)
    rest = (
        [f"{column}-other"] if names.others <= 1 else [f"{column}-other-{k + 1}" for k in range(names.others)]
    )
    which = many + rng.integers(0, len(rest), len(code))
    known = pl.Series(column, [*names.names, *rest], pl.String)
    return known.gather(np.where(code < many, code, which))


def _units(column: str, volumes: NDArray[np.float64], many: int, rng: np.random.Generator) -> pl.Series:
    """The tenant of each row: as many of each volume as were released, each likely in proportion to it."""
    volume = np.repeat(1.5 * 2.0 ** np.arange(len(volumes)), volumes.astype(np.int64))
    if not len(volume):
        volume = np.ones(1)
    code = rng.choice(len(volume), many, p=volume / volume.sum())
    return pl.Series(column, [f"{column}-{k + 1}" for k in range(len(volume))]).gather(code)


def _segment(time_frac: NDArray[np.float64], lift: NDArray[np.float64]) -> NDArray[np.int64]:
    """The segment of each row [rows]."""
    return np.minimum(time_frac * len(lift), len(lift) - 1).astype(np.int64)


def _drawn(weight: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A position of each row, likely in proportion to its weights [rows, positions]."""
    below = np.cumsum(weight, axis=1)
    at = rng.random((len(weight), 1)) * below[:, -1:]
    position: NDArray[np.int64] = np.minimum((at >= below).sum(axis=1), weight.shape[1] - 1)
    return position


def _cells(
    numbers: Numbers,
    group: NDArray[np.int64],
    time_frac: NDArray[np.float64],
    cells: Mapping[str, NDArray[np.int64]],
    others: Mapping[str, Numbers],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """The cell of each row: by its group of rows, the time, and the cell of its parent."""
    base = group_shares(numbers.share)[group]
    if numbers.pairs is not None and numbers.parent is not None:
        of_parent = group_of_cells(others[numbers.parent].share)[group, cells[numbers.parent]]
        base = numbers.pairs[group, of_parent]
    weight = base * numbers.lift[_segment(time_frac, numbers.lift), group]
    run = _drawn(np.where(weight.sum(axis=1, keepdims=True) > 0.0, weight, base), rng)
    found, own = np.zeros(len(group), np.int64), group_of_cells(numbers.share)
    for g, share in enumerate(numbers.share):
        for k in np.unique(own[g]):
            within = np.where(own[g] == k, share, 0.0)
            if (rows := np.flatnonzero((group == g) & (run == k))).size:
                found[rows] = rng.choice(len(share), len(rows), p=within / within.sum())
    return found
