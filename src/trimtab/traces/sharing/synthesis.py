"""A synthetic trace from noisy statistics: no row of the original has a part in it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trimtab.traces.formats import COLUMNS, image_size, token_size
from trimtab.traces.sharing import bursts
from trimtab.traces.sharing.grids import drawn
from trimtab.traces.sharing.release import GROUPS, Names, Numbers, Released, group_of_cells


def synthetic(released: Released, rng: np.random.Generator, prompt_token_frac: float) -> pl.DataFrame:
    """A request table drawn from what was released; at least one row."""
    whole = np.floor(released.rate + rng.random(len(released.rate))).astype(np.int64)
    if not whole.sum():
        whole[int(released.rate.argmax())] = 1
    arrival_s = bursts.drawn_arrivals(whole, released.width_s, released.burst_variance, rng)
    many = len(arrival_s)
    table: dict[str, pl.Series] = {"arrival_s": pl.Series("arrival_s", arrival_s)}
    group = np.zeros(many, np.int64)
    for column, names in released.names.items():
        code = rng.choice(len(names.share), many, p=names.share)
        group = code if column == "class" else group
        table[column] = _named(column, names, code, rng)
    if released.volumes is not None:
        table[released.promise.unit] = _units(released.promise.unit, released.volumes, many, rng)
    cells: dict[str, NDArray[np.int64]] = {}
    for column, numbers in released.numbers.items():
        cells[column] = _cells(numbers, group, cells, released.numbers, rng)
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


def _cells(
    numbers: Numbers,
    group: NDArray[np.int64],
    cells: dict[str, NDArray[np.int64]],
    others: Mapping[str, Numbers],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """The cell of each row: by its group of rows, and by the cell of its parent."""
    found, own = np.zeros(len(group), np.int64), group_of_cells(numbers.share)
    for g, share in enumerate(numbers.share):
        rows = np.flatnonzero(group == g)
        if numbers.pairs is None or numbers.parent is None:
            found[rows] = rng.choice(len(share), len(rows), p=share)
            continue
        of_parent = group_of_cells(others[numbers.parent].share)[g, cells[numbers.parent][rows]]
        below = np.cumsum(numbers.pairs[g], axis=1)[of_parent]
        run = np.minimum((rng.random((len(rows), 1)) > below).sum(axis=1), GROUPS - 1)
        for k in range(GROUPS):
            within = np.where(own[g] == k, share, 0.0)
            if (of_run := rows[run == k]).size:
                likely = within if within.any() else share
                found[of_run] = rng.choice(len(share), len(of_run), p=likely / likely.sum())
    return found
