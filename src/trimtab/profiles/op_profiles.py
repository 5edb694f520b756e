"""Iterations put together from the measured seconds of their operations.

An iteration takes layers × (its dense operations + attention), and the embedding, the output head and the
sampler once. The form of the tables is that of LLMServingSim's profiler (Cho et al., IISWC 2024).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.profiles.fit_profile import Measurements, thinned
from trimtab.profiles.iteration_rows import IterationRows
from trimtab.profiles.measurement_files import MS, Table
from trimtab.profiles.model_shapes import VALUE_BYTES, ModelShape

Floats = NDArray[np.float64]


ONCE = ("embedding", "final_layernorm")  # in an iteration, not in every layer
TWICE = ("layernorm",)  # in a layer
REDUCED = 2  # all-reduces of a layer
DENSE_POINTS, SEQUENCE_POINTS = 24, 6
US = 1e-6

# Iterations as in serving; attention of a few tokens or of far longer contexts deviates from the form.
CONTEXTS = 64, 4096  # tokens of a decoding row
FEWEST_PROMPT_TOKENS, MOST_READ_BEFORE = 32, 2048

# Contexts of n rows that decode at once in Azure's conversation trace of 2023 (Patel et al., ISCA 2024):
# rows, the largest context over the mean, and (mean − least) / (largest − least); means of 2,000 draws.
ROWS_AT_ONCE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_TO_MEAN = (1.0, 1.26, 1.50, 1.78, 2.25, 2.87, 3.40, 3.77, 4.05)
SKEW_RATE = (1.0, 0.50, 0.51, 0.51, 0.44, 0.35, 0.28, 0.25, 0.24)


@dataclass(frozen=True, eq=False)
class Operations:
    """Tables of one model on one GPU; those that are None do not apply."""

    attention: Table
    dense: Table
    per_sequence: Table
    experts: Table | None = None  # mixture of experts
    skew: Table | None = None  # what unequal contexts cost
    all_reduce: Table | None = None  # by bytes


def measurements_of(
    ops: Operations, shape: ModelShape, ranks: int, kv_tokens: int, budget: int
) -> Measurements:
    """Iterations of a model over so many GPUs, of those in serving that fit the KV memory and the budget."""
    tokens, dense_s = _dense(ops, shape, ranks)
    sequences, sequence_s = _sum_of_layers(ops.per_sequence, "sequences", dict.fromkeys(ONCE, 1), 1)
    known = thinned(tokens, dense_s, DENSE_POINTS), thinned(sequences, sequence_s, SEQUENCE_POINTS)
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    chunk, read, decoding, each, time_us = (_floats(ops.attention, name) for name in columns)
    if ops.skew is not None:
        time_us = time_us + _skew_us(ops.skew, chunk, read, decoding, each, time_us)
    prompts = (chunk > 0).astype(float)
    seconds = shape.layers * US * time_us
    seconds = seconds + np.interp(decoding + chunk, list(known[0]), list(known[0].values()))
    seconds = seconds + np.interp(decoding + prompts, list(known[1]), list(known[1].values()))
    rows = IterationRows(decoding, decoding * each, prompts, chunk, chunk * (read + chunk / 2), seconds)
    fits = (decoding * each + prompts * (read + chunk) <= kv_tokens) & (decoding + chunk <= budget)
    served = (decoding == 0) | ((each >= CONTEXTS[0]) & (each <= CONTEXTS[1]))
    served &= (chunk == 0) | ((chunk >= FEWEST_PROMPT_TOKENS) & (read <= MOST_READ_BEFORE))
    return Measurements(rows[fits & served], *known)


def _floats(table: Table, name: str) -> Floats:
    return np.array(table[name], float)


def _sum_of_layers(table: Table, by: str, times: Mapping[str, int], else_times: int) -> tuple[Floats, Floats]:
    """Numbers that were measured, and the seconds of all layers of the table at each; [numbers]."""
    layers, numbers, time_us = np.array(table["layer"]), _floats(table, by), _floats(table, "time_us")
    at = np.unique(numbers)
    seconds = np.zeros(len(at))
    for layer in np.unique(layers):
        of = np.flatnonzero(layers == layer)
        of = of[numbers[of].argsort(kind="stable")]
        seconds += times.get(str(layer), else_times) * US * np.interp(at, numbers[of], time_us[of])
    return at, seconds


def _dense(ops: Operations, shape: ModelShape, ranks: int) -> tuple[Floats, Floats]:
    """Seconds of everything but attention and what goes by sequences, by tokens of the iteration."""
    times = dict.fromkeys(ONCE, 1) | dict.fromkeys(TWICE, 2 * shape.layers)
    tokens, seconds = _sum_of_layers(ops.dense, "tokens", times, shape.layers)
    if ops.experts is not None:
        seconds = seconds + shape.layers * _experts_s(ops.experts, shape, ranks, tokens)
    if ops.all_reduce is not None:
        size, each_s = _all_reduce_s(ops.all_reduce, ranks)
        bytes_ = tokens * shape.hidden * VALUE_BYTES
        seconds = seconds + REDUCED * shape.layers * np.interp(bytes_, size, each_s)
    return tokens, seconds


def _experts_s(table: Table, shape: ModelShape, ranks: int, tokens: Floats) -> Floats:
    """Seconds of a layer's experts on a rank that has its share of tokens, all experts as likely."""
    numbers, experts, time_us = (_floats(table, n) for n in ("tokens", "activated_experts", "time_us"))
    at, activated = np.unique(numbers), np.array([shape.activated(t, ranks) for t in tokens])
    by_tokens = [  # [points, tokens]
        np.interp(activated, experts[numbers == point], US * time_us[numbers == point]) for point in at
    ]
    share = np.maximum(1.0, tokens / ranks)
    columns = np.stack(by_tokens)
    return np.array([np.interp(share[i], at, columns[:, i]) for i in range(len(tokens))])


def _all_reduce_s(table: Table, ranks: int) -> tuple[Floats, Floats]:
    """Sizes in bytes, and the mean seconds of an all-reduce among so many ranks at each."""
    size, seconds = _floats(table, "size"), MS * _floats(table, "time_stats.all_reduce.median")
    among = _floats(table, "num_workers") == ranks
    at = np.unique(size[among])
    return at, np.array([seconds[among & (size == x)].mean() for x in at])


def _skew_us(
    table: Table, chunk: Floats, read: Floats, decoding: Floats, each: Floats, time_us: Floats
) -> Floats:
    """What unequal contexts add to attention that was measured with equal ones, [rows].

    alpha × (time at the largest context − time at the mean). An engine knows the contexts of its rows in all
    only, so they are taken to be as unequal as in a public trace.
    """
    alpha = _Skew(table)
    added = np.zeros(len(time_us))
    for z, k, n in {*zip(chunk.tolist(), read.tolist(), decoding.tolist(), strict=True)}:
        of = np.flatnonzero((chunk == z) & (read == k) & (decoding == n))
        if n < 2 or len(of) < 2:
            continue
        of = of[each[of].argsort()]
        largest = each[of] * np.interp(n, ROWS_AT_ONCE, LARGEST_TO_MEAN)
        rate = float(np.interp(n, ROWS_AT_ONCE, SKEW_RATE))
        x, y = each[of], time_us[of]
        at_largest = np.interp(largest, x, y) + np.maximum(largest - x[-1], 0.0) * _last_slope(x, y)
        factors = np.array([alpha(z, n, rate, top, k) for top in largest.tolist()])
        added[of] = factors * (at_largest - y)
    return added


def _last_slope(x: Floats, y: Floats) -> float:
    half = len(x) // 2
    return float((y[-1] - y[half]) / (x[-1] - x[half])) if half < len(x) - 1 else 0.0


class _Skew:
    """alpha by bucket of prompt tokens, decoding rows, skew rate, largest context, and tokens read before."""

    def __init__(self, table: Table) -> None:
        labels = [table[name] for name in ("n_label", "skew_rate_label", "kv_big_label", "kp_label")]
        keys = [
            (float(pc), *(_bound(text) for text in texts))
            for pc, *texts in zip(table["pc"], *labels, strict=True)
        ]
        alphas, samples = _floats(table, "alpha"), _floats(table, "n_samples")
        self._alpha = dict(zip(keys, alphas.tolist(), strict=True))
        self._bounds = [np.unique(column) for column in zip(*keys, strict=True)]
        self._else = float((alphas * samples).sum() / samples.sum())

    def __call__(self, *values: float) -> float:
        key = tuple(
            float(bounds[min(int(bounds.searchsorted(value)), len(bounds) - 1)])
            for bounds, value in zip(self._bounds, values, strict=True)
        )
        found: float = self._alpha.get(key, self._else)
        return found


def _bound(label: str) -> float:
    """The upper bound that a label names: n<=64, sr<=15%, kvB<=4k, kp=0; infinite after >."""
    match = re.fullmatch(r"\w+?(<=|=|>)(\d+)([k%]?)", label)
    if match is None or match[1] == ">":
        return np.inf
    unit = {"k": 1024.0, "%": 0.01, "": 1.0}[match[3]]
    return float(match[2]) * unit
