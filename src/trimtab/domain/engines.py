"""How nodes serve requests other than one per slot: engines, by node type. Pure data.

A *shared* node serves all its requests at once, each at a speed that falls with their number: processor
sharing. Where its seconds were *measured* by the number of requests and their size, a request of size x that
is served beside n − 1 others throughout takes measured_s[n, x], linear between the sizes.

A node that serves a *language model* works in iterations over a batch (continuous batching, Yu et al.,
"Orca", OSDI 2022, §3; chunked prefill, Agrawal et al., "Sarathi-Serve", OSDI 2024, §4), under the bounds of
vLLM's scheduler.

The seconds of an iteration with n decoding rows of c tokens of context in all, and m rows of which p prompt
tokens are read, beside `pairs` pairs of tokens that attend to each other, are

    dense_s[n + p] + sequence_s[n + m] + attention_s[n] + context_s[n] · c            without prompts, and
    dense_s[n + p] + sequence_s[n + m] + mixed_s + mixed_row_s · n + mixed_context_s · c
        + mixed_token_s · p + pair_s · pairs                                          with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLOTS, SHARED, LANGUAGE_MODEL = range(3)  # ENGINE_TYPE.service

ENGINE_TYPE = np.dtype(
    [
        ("mixed_s", "f8"),
        ("mixed_row_s", "f8"),
        ("mixed_context_s", "f8"),
        ("mixed_token_s", "f8"),
        ("pair_s", "f8"),
        ("kv_bytes_per_token", "f8"),  # of all GPUs of a replica
        ("service", "i4"),
        ("sizes", "i4"),  # that were measured, and no larger one is served; 0 = `slowdown` holds for any size
        ("batch_max", "i4"),  # rows of a batch
        ("token_budget", "i4"),  # of an iteration: a token for each decoding row, the rest for prompts
        ("adapters_max", "i4"),  # different adapters in a batch; 0 = unbounded
        ("kv_tokens", "i8"),  # capacity of the KV memory
        ("kv_kept", "i8"),  # tokens kept free at the admission of a request (vLLM's watermark)
        ("by_priority", "i4"),  # 1 = preempts the least urgent row, else the one admitted last
    ],
    align=True,
)

# Of `Engines`.
ENGINE_TABLES = ("dense_s", "sequence_s", "attention_s", "context_s", "slowdown", "size_at", "measured_s")


@dataclass(frozen=True, eq=False)
class Engines:
    """The engines of a cluster's node types. Rows of types with slots are zero.

    Tables go to the largest budget and batch of any type; what no iteration of a type can reach is unused.
    """

    types: NDArray[np.void]  # ENGINE_TYPE [types]
    dense_s: Floats  # [types, tokens of an iteration]
    sequence_s: Floats  # [types, rows]
    attention_s: Floats  # [types, rows]
    context_s: Floats  # [types, rows]
    slowdown: Floats  # [types, rows] seconds of a request among so many, over those that are estimated
    size_at: Floats  # [types, sizes] rising, of types that were measured by size
    measured_s: Floats  # [types, rows, sizes]

    def __post_init__(self) -> None:
        """Raises ValueError for tables that are too short, or times that are not above 0."""
        for g, kind in enumerate(self.types):
            rows, budget = int(kind["batch_max"]), int(kind["token_budget"])
            if kind["service"] == SHARED and not (self.slowdown[g, 1 : rows + 1] > 0.0).all():
                raise ValueError(f"slowdown of type {g}: expected numbers above 0")
            sizes = int(kind["sizes"])
            if sizes and not (self.measured_s[g, 1 : rows + 1, :sizes] > 0.0).all():
                raise ValueError(f"measured_s of type {g}: expected seconds above 0")
            if kind["service"] != LANGUAGE_MODEL:
                continue
            if self.dense_s.shape[1] <= max(budget, rows) or self.context_s.shape[1] <= rows:
                raise ValueError(f"tables of type {g}: expected {budget} tokens and {rows} rows")
            if not (self.decode_s(g, np.arange(1, rows + 1), 0.0) > 0.0).all():
                raise ValueError(f"tables of type {g}: expected iterations that take time")

    def among_s(self, g: int, rows: int, size: Floats) -> Floats:
        """Seconds of requests of these sizes among so many in all on type g, measured by size, [requests]."""
        sizes = int(self.types["sizes"][g])
        return np.interp(size, self.size_at[g, :sizes], self.measured_s[g, rows, :sizes])

    def holds(self, g: int, size: Floats, tokens: NDArray[Any] | int) -> NDArray[np.bool_]:
        """Whether type g can serve requests of these sizes and tokens, prompt and output, [requests]."""
        sizes, kv_tokens = int(self.types["sizes"][g]), int(self.types["kv_tokens"][g])
        size_max = self.size_at[g, sizes - 1] if sizes else np.inf
        return (size <= size_max) & (tokens <= (kv_tokens or np.inf))

    def decode_s(self, g: int, rows: NDArray[Any] | int, context: NDArray[Any] | float) -> Floats:
        """Seconds of an iteration of so many decoding rows with so much context in all on type g, [rows]."""
        seconds: Floats = (
            self.dense_s[g, rows]
            + self.sequence_s[g, rows]
            + self.attention_s[g, rows]
            + self.context_s[g, rows] * context
        )
        return seconds

    def row_s(self, g: int) -> float:
        """Mean seconds by which one more row without context lengthens an iteration of type g."""
        alone_s, full_s = (float(self.decode_s(g, n, 0.0)) for n in (1, int(self.types["batch_max"][g])))
        return (full_s - alone_s) / max(int(self.types["batch_max"][g]) - 1, 1)

    def prompt_s(self, g: int, tokens: NDArray[Any]) -> Floats:
        """Seconds of the iterations that read a prompt of so many tokens, alone on type g, [prompts]."""
        kind = self.types[g]
        budget = max(int(kind["token_budget"]), 1)
        tokens = np.asarray(tokens, np.int64)
        whole, rest = np.divmod(tokens, budget)
        steps_s = whole * self.dense_s[g, budget] + np.where(rest > 0, self.dense_s[g, rest], 0.0)
        fixed_s = (kind["mixed_s"] + self.sequence_s[g, 1]) * (whole + (rest > 0))
        pairs = 0.5 * np.square(tokens.astype(np.float64))
        seconds: Floats = steps_s + fixed_s + kind["mixed_token_s"] * tokens + kind["pair_s"] * pairs
        return seconds

    def alone_s(self, g: int, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> Floats:
        """Seconds of requests of so many tokens, each alone on type g, [requests]."""
        further = np.maximum(output.astype(np.float64) - 1.0, 0.0)
        context = further * (prompt + 1.0) + 0.5 * further * (further - 1.0)
        step_s = self.dense_s[g, 1] + self.sequence_s[g, 1] + self.attention_s[g, 1]
        seconds: Floats = self.prompt_s(g, prompt) + further * step_s + self.context_s[g, 1] * context
        return seconds
