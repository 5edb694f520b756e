"""Fits multiples of the parts of a profile to mean iterations of a server.

Traffic that a server happens to have seldom tells all parts apart: at a constant batch, for one, context and
rows grow together. So the parts of a given profile are scaled, and a multiple stays near 1 where the rows do
not tell it: ridge regression of relative errors (Hoerl and Kennard, Technometrics 12, 1970), where rows far
off count less (Huber's weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from trimtab.errors import UsageError
from trimtab.profiles.fit_profile import FAR, FOLDS, ROUNDS, FittedPart, FittedProfile, HeldBackError
from trimtab.profiles.latency_profile import IterationTables, LatencyProfile
from trimtab.profiles.mean_iterations import MeanIterations

Floats = NDArray[np.float64]

PARTS = ("weights and fixed time", "arithmetic of tokens", "context", "prompts", "rows")
PRIOR = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
PRIOR_SD = np.array([0.5, 0.5, 0.5, 0.5, 1.0])
ROWS_SHARE = 1.0 / 256  # of the time of a row alone that each row adds where `rows` is 1
MEASURED_SD = 0.5  # of the prior's standard deviation: with more left, a part counts as not measured
FEWEST_ROWS = 10
LEAST_NOISE = 0.01  # of a row, relative


def fit_scaled(
    measured: MeanIterations, base: LatencyProfile, described: Mapping[str, Any], file: str
) -> FittedProfile:
    """Scale the parts of `base`. Each fifth of the rows, in their order, is held back once.

    Args:
        measured: mean iterations, in the order of time.
        base: a profile of the same model or GPU, or a roofline.
        described: fields of the profile that are not seconds.
        file: what errors call the measurements.

    Raises:
        UsageError: too few rows, or times that are not above 0.
    """
    rows = measured.rows
    if len(rows) < FEWEST_ROWS:
        problem, expected = "too few rows with tokens", f"{FEWEST_ROWS} or more"
        raise UsageError(problem, file=file, value=len(rows), expected=expected)
    if not (rows.seconds > 0.0).all():
        wrong = float(rows.seconds[~(rows.seconds > 0.0)][0])
        raise UsageError("a time that cannot be", file=file, value=wrong, expected="seconds above 0")
    columns = _columns(measured, base)
    fold, predicted = np.arange(len(rows)) * FOLDS // len(rows), np.zeros(len(rows))
    for k in range(FOLDS):
        multiples, _ = _solved(columns[fold != k], rows.seconds[fold != k], measured.weight[fold != k])
        predicted[fold == k] = columns[fold == k] @ multiples
    multiples, sd = _solved(columns, rows.seconds, measured.weight)
    parts = tuple(
        FittedPart(name, float(multiples[p]), float(sd[p]), bool(sd[p] <= MEASURED_SD * PRIOR_SD[p]))
        for p, name in enumerate(PARTS)
    )
    profile = _scaled(base, multiples, int(rows.decoding.max()), described)
    return FittedProfile(profile, None, HeldBackError.of(predicted, rows.seconds), rows, predicted, parts)


def _columns(measured: MeanIterations, base: LatencyProfile) -> Floats:
    """Seconds of each part of `base` in each mean iteration, [rows, PARTS]."""
    r, frac = measured.rows, measured.prompt_frac
    per = np.maximum(frac, 1e-12)  # iterations with prompts have all of the prompts
    prompt_rows, tokens, pairs = r.prompt_rows / per, r.prompt_tokens / per, r.pairs / per
    most = int(np.ceil((r.decoding + np.maximum(tokens, prompt_rows)).max())) + 1
    t = base.tables(most, most)
    alone = t.dense_s[1] + t.sequence_s[1]
    per_row = r.decoding * ROWS_SHARE * _row_alone_s(t)
    context = np.stack([_at(t.context_s, r.decoding) * r.context, base.mixed_context_s * r.context])
    grown = _at(t.dense_s, r.decoding) + _at(t.sequence_s, r.decoding) + _at(t.attention_s, r.decoding)
    decode = np.stack(
        [
            np.full(len(r), alone + t.attention_s[1]),
            np.maximum(grown - alone - t.attention_s[1], 0.0) * (r.decoding >= 1.0),
            context[0],
            np.zeros(len(r)),
            per_row,
        ]
    )
    grown = _at(t.dense_s, r.decoding + tokens) + _at(t.sequence_s, r.decoding + prompt_rows)
    prompts = base.mixed_s + base.mixed_row_s * r.decoding + base.mixed_token_s * tokens + base.pair_s * pairs
    mixed = np.stack([np.full(len(r), alone), grown - alone, context[1], prompts, per_row])
    columns: Floats = ((1.0 - frac) * decode + frac * mixed).T
    return columns


def _at(table: Floats, numbers: Floats) -> Floats:
    values: Floats = np.interp(numbers, np.arange(len(table)), table)
    return values


def _row_alone_s(tables: IterationTables) -> float:
    """An iteration of one row without context."""
    return float(tables.dense_s[1] + tables.sequence_s[1] + tables.attention_s[1])


def _solved(columns: Floats, seconds: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Multiples that are not negative, and their standard deviations, [PARTS] each."""
    relative = columns / seconds[:, None]
    noise, huber = 0.05, np.ones(len(seconds))
    for _ in range(ROUNDS):
        scale = np.sqrt(weight * huber) / noise
        matrix = np.concatenate([relative * scale[:, None], np.diag(1.0 / PRIOR_SD)])
        solved, _ = nnls(matrix, np.concatenate([scale, PRIOR / PRIOR_SD]))
        error = np.abs(relative @ solved - 1.0)
        noise = max(LEAST_NOISE, 1.5 * float(np.median(error)))  # of a normal distribution: 1.48
        huber = np.minimum(1.0, FAR * noise / np.maximum(error, 1e-12))
    variances: Floats = np.diag(np.linalg.inv(matrix.T @ matrix))
    return solved, np.sqrt(variances)


def _scaled(
    base: LatencyProfile, multiples: Floats, rows_max: int, described: Mapping[str, Any]
) -> LatencyProfile:
    fixed, arithmetic, context, prompts, rows = multiples.tolist()
    tables = base.tables(max(2, rows_max, *base.attention_s), 1)
    per_row_s = rows * ROWS_SHARE * _row_alone_s(tables)

    def grown(points: Mapping[int, float]) -> dict[int, float]:
        first = next(iter(points.values()))
        return {x: max(0.0, fixed * first + arithmetic * (y - first)) for x, y in points.items()}

    at = sorted({1, *base.attention_s, max(2, rows_max)})
    attention = grown({n: float(tables.attention_s[n]) for n in at})
    values = {
        "dense_s": grown(base.dense_s),
        "sequence_s": grown(base.sequence_s),
        "attention_s": {n: y + n * per_row_s for n, y in attention.items()},
        "context_s": {n: context * y for n, y in base.context_s.items()},
        "mixed_s": prompts * base.mixed_s,
        "mixed_row_s": prompts * base.mixed_row_s + per_row_s,
        "mixed_context_s": context * base.mixed_context_s,
        "mixed_token_s": prompts * base.mixed_token_s,
        "pair_s": prompts * base.pair_s,
    }
    return LatencyProfile.model_validate(dict(described) | values)
