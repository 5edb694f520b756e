"""The iteration seconds of one model on one GPU configuration, at grid points, and their tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trimtab.validation.base import NonNegative, Positive, Spec

Floats = NDArray[np.float64]

GIB = 2.0**30
MEMORY_FRAC = 0.9  # of the memory that a server uses; vLLM's gpu_memory_utilization


def _ascending(points: dict[int, float]) -> dict[int, float]:
    if not points or any(a >= b for a, b in pairwise((0, *points))):
        raise ValueError("one point at least, ascending, from 1 on")
    return points


Points = Annotated[dict[int, NonNegative], AfterValidator(_ascending)]  # number: seconds


@dataclass(frozen=True, eq=False)
class IterationTables:
    """Seconds of iterations at every number, as in `trimtab.domain.engines.Engines`."""

    dense_s: Floats  # [1 + tokens of an iteration]
    sequence_s: Floats  # [1 + rows]
    attention_s: Floats  # [1 + rows]
    context_s: Floats  # [1 + rows], a token of context


class LatencyProfile(Spec):
    """The iteration seconds of one model on one GPU configuration.

    `trimtab.domain.engines` has their form. What depends on a number is given at a few points and linear
    between them. Below the first point it stays; beyond the last it goes on as steeply as between the last
    two, except `context_s`, which stays.
    """

    gpu: str
    model: str
    precision: str
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    source: Literal["measured", "roofline"]
    notes: str = ""  # where the figures are from, and what is assumed
    memory_gib: Positive  # of a GPU
    weights_gib: Positive  # on a GPU
    kv_bytes_per_token: Positive  # on a GPU
    batch_max: Annotated[int, Field(ge=1)] = 256  # rows of a batch, where nothing else is said
    token_budget: Annotated[int, Field(ge=1)] = 2048  # tokens of an iteration, where nothing else is said
    kv_tokens: Annotated[int, Field(ge=1)] | None = None  # capacity where it is known; see `kv_capacity`
    dense_s: Points  # by tokens of an iteration
    sequence_s: Points  # by rows
    attention_s: Points  # by decoding rows
    context_s: Points  # by decoding rows, a token of context
    mixed_s: NonNegative = 0.0
    mixed_row_s: NonNegative = 0.0
    mixed_context_s: NonNegative = 0.0
    mixed_token_s: NonNegative = 0.0
    pair_s: NonNegative = 0.0

    @property
    def kv_capacity(self) -> int:
        """Tokens that the KV memory holds: as known, else nine tenths of the memory less the weights.

        0 or less: the model does not fit.
        """
        if self.kv_tokens is not None:
            return self.kv_tokens
        free_gib = MEMORY_FRAC * self.memory_gib - self.weights_gib
        return int(free_gib * GIB / self.kv_bytes_per_token)

    def tables(self, batch_max: int, token_budget: int) -> IterationTables:
        """Seconds at every number of rows up to `batch_max`, and of tokens up to the larger of both."""
        rows = np.arange(batch_max + 1)
        return IterationTables(
            dense_s=_at(np.arange(max(batch_max, token_budget) + 1), self.dense_s),
            sequence_s=_at(rows, self.sequence_s),
            attention_s=_at(rows, self.attention_s),
            context_s=np.interp(rows, list(self.context_s), list(self.context_s.values())),
        )


def _at(numbers: NDArray[np.int64], points: dict[int, float]) -> Floats:
    """Values at these numbers, linear between the points and beyond the last; [numbers]."""
    x, y = np.array(list(points), float), np.array(list(points.values()))
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0
    beyond = np.maximum(numbers - x[-1], 0.0) * max(slope, 0.0)
    values: Floats = np.interp(numbers, x, y) + beyond
    return values
