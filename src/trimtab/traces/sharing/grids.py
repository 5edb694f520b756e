"""Public grids: the cells in which a shared trace counts values. None depends on the data."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trimtab.traces.formats import AT_LEAST, COLUMNS

PER_DOUBLING: Final = 4
SINGLE_TO, WHOLE_TO_BITS = 64, 21  # whole numbers have cells of their own up to 64
FIRST_BIT, LAST_BIT = -10, 31  # of other numbers
SPAN_BITS: Final = 26  # two years, in seconds


def _whole() -> NDArray[np.float64]:
    single = np.arange(SINGLE_TO + 1)
    bits = range(SINGLE_TO.bit_length() - 1, WHOLE_TO_BITS)
    above = [round(2.0 ** (b + k / PER_DOUBLING)) for b in bits for k in range(PER_DOUBLING)]
    return np.unique(np.concatenate([single, above, [2**WHOLE_TO_BITS]])).astype(np.float64)


def _other() -> NDArray[np.float64]:
    bits = range(FIRST_BIT, LAST_BIT)
    above = [2.0 ** (b + k / PER_DOUBLING) for b in bits for k in range(PER_DOUBLING)]
    return np.array([0.0, *above, 2.0**LAST_BIT])


WHOLE, OTHER = _whole(), _other()  # lower edges of the cells, and the upper edge of the last


def is_whole(column: str) -> bool:
    """Whether the canonical column holds whole numbers."""
    return COLUMNS[column].is_integer()


def edges_of(column: str) -> NDArray[np.float64]:
    """Edges of the cells of a canonical column of numbers, [cells + 1]."""
    return WHOLE if is_whole(column) else OTHER


def cells_of(values: pl.Series) -> NDArray[np.int64]:
    """The cell of each value of a canonical column [rows]: 0 = no value; the end cells take those beyond."""
    edges = edges_of(values.name)
    numbers = values.cast(pl.Float64).fill_null(0.0).to_numpy()
    cell = np.clip(np.searchsorted(edges, numbers, side="right"), 1, len(edges) - 1)
    return np.where(values.is_null().to_numpy(), 0, cell)


def drawn(column: str, cell: NDArray[np.int64], rng: np.random.Generator) -> pl.Series:
    """A value of each cell [rows], uniform within it; null in cell 0."""
    edges, at = edges_of(column), np.maximum(cell, 1)
    low, high = edges[at - 1], edges[at]
    values = np.maximum(low + rng.random(len(cell)) * (high - low), AT_LEAST.get(column, 0.0))
    if is_whole(column):
        values = np.floor(values)
    found = pl.Series(column, values).cast(COLUMNS[column])
    return pl.select(pl.when(pl.Series(cell > 0)).then(found).alias(column)).to_series()


def span_cells(arrival_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cell of each arrival [rows]: k where it comes before 2^k seconds, and not before 2^(k - 1)."""
    return np.searchsorted(2.0 ** np.arange(SPAN_BITS - 1), arrival_s, side="right").astype(np.int64)
