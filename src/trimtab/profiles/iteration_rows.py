"""Measured iterations, one a row: what was in them and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class IterationRows:
    """Measured iterations. All columns have one value a row."""

    decoding: Floats  # rows that decode
    context: Floats  # tokens of context of these, in all
    prompt_rows: Floats  # rows whose prompts are read
    prompt_tokens: Floats  # tokens of these prompts that are read
    pairs: Floats  # pairs of tokens of these prompts that attend to each other
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, which: NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, f.name)[which] for f in fields(self)))

    def joined(self, other: IterationRows) -> IterationRows:
        """Rows of both."""
        columns = (np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self))
        return IterationRows(*columns)

    @property
    def is_mixed(self) -> NDArray[np.bool_]:
        """Which rows read prompts; [rows]."""
        return self.prompt_tokens > 0.0


def decode_rows(decoding: Floats, context: Floats, seconds: Floats) -> IterationRows:
    """Iterations without prompts."""
    none = np.zeros(len(seconds))
    return IterationRows(decoding, context, none, none, none, seconds)


def prompt_rows(rows: Floats, tokens: Floats, seconds: Floats) -> IterationRows:
    """Iterations that read whole prompts of `tokens` [rows] tokens each, and decode nothing."""
    none = np.zeros(len(seconds))
    return IterationRows(none, none, rows, rows * tokens, rows * tokens**2 / 2, seconds)
