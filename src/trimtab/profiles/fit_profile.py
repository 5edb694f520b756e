"""Fits the iteration seconds of a profile to measured iterations, and tells the error on rows held back.

Iterations without prompts: a table over the decoding rows, linear in the context. With prompts: a table over
the tokens of the iteration, linear in the rest. Non-negative least squares of the relative error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from trimtab.errors import UsageError
from trimtab.profiles.iteration_rows import IterationRows
from trimtab.profiles.latency_profile import LatencyProfile

Floats = NDArray[np.float64]

MIXED = ("mixed_s", "mixed_row_s", "mixed_context_s", "mixed_token_s", "pair_s")
ROW_POINTS, TOKEN_POINTS = 10, 16  # at most, of a fitted table
FOLDS = 5  # each is held back once
FEWEST_ROWS = 10
MOST_TOKENS = 1 << 20  # of an iteration
SMOOTHNESS = 0.002  # of the cost of context over the rows
ROUNDS, FAR, NEAR = (
    15,
    3.0,
    0.01,
)  # rows with errors above so many medians count less, but for such small ones


@dataclass(frozen=True, slots=True)
class HeldBackError:
    """Relative errors of rows that were held back."""

    rows: int
    mean: float
    median: float
    p90: float

    @classmethod
    def of(cls, predicted: Floats, measured: Floats) -> HeldBackError | None:
        """None where no row was held back."""
        if len(measured) == 0:
            return None
        error = np.abs(predicted / measured - 1.0)
        return cls(len(error), float(error.mean()), float(np.median(error)), float(np.percentile(error, 90)))


@dataclass(frozen=True, slots=True)
class FittedPart:
    """A part of another profile, and by how much it was scaled."""

    name: str
    multiple: float
    sd: float  # standard deviation of the multiple
    is_measured: bool  # False: the rows hardly tell it, so it is much as in the other profile


@dataclass(frozen=True, eq=False)
class FittedProfile:
    """A profile from all rows, and for each row what a fit of others predicts."""

    profile: LatencyProfile
    decode_error: HeldBackError | None
    mixed_error: HeldBackError | None
    held_back: IterationRows
    predicted_s: Floats  # [rows]
    parts: tuple[FittedPart, ...] = ()  # of a profile that scales another

    def errors(self) -> dict[str, HeldBackError]:
        """Errors by the kind of iteration, of those that were held back."""
        both = {"without prompts": self.decode_error, "with prompts": self.mixed_error}
        return {kind: error for kind, error in both.items() if error is not None}


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured iterations; the parts of their seconds that are known by themselves are not fitted."""

    rows: IterationRows
    dense_s: Mapping[int, float] | None = None
    sequence_s: Mapping[int, float] | None = None


def fit_profile(measured: Measurements, described: Mapping[str, Any], file: str) -> FittedProfile:
    """Fit a profile. Each row is held back once, with a fifth of all.

    Args:
        measured: iterations, those without prompts among them.
        described: fields of the profile that are not seconds.
        file: what errors call the measurements.

    Raises:
        UsageError: too few rows, or times that are not above 0.
    """
    rows = measured.rows
    _check(rows, file)
    fold, predicted = _folds(rows), np.zeros(len(rows))
    for k in range(FOLDS):
        tried = _fitted(measured, rows[fold != k], described)
        predicted[fold == k] = iteration_s(tried, rows[fold == k])
    errors = [HeldBackError.of(predicted[of], rows.seconds[of]) for of in (~rows.is_mixed, rows.is_mixed)]
    return FittedProfile(_fitted(measured, rows, described), errors[0], errors[1], rows, predicted)


def fit_served(rows: IterationRows, described: Mapping[str, Any], file: str) -> FittedProfile:
    """Fit a profile to mean iterations of servers: linear in the rows, the context, prompt tokens and pairs.

    Each row is held back once, and predicted from all others. Raises UsageError for too few rows.
    """
    if len(rows) < FEWEST_ROWS:
        expected = f"{FEWEST_ROWS} rows or more"
        raise UsageError("too few rows of this configuration", file=file, value=len(rows), expected=expected)
    predicted = np.array([_linear(rows, np.arange(len(rows)) != i)[1][i] for i in range(len(rows))])
    found, _ = _linear(rows, np.ones(len(rows), bool))
    each = dict(zip(MIXED, found.tolist(), strict=True))
    at = {n: each["mixed_s"] + n * each["mixed_row_s"] for n in (1, int(max(2, rows.decoding.max())))}
    decode = {
        "dense_s": {1: 0.0},
        "sequence_s": {1: 0.0},
        "attention_s": at,
        "context_s": {1: each["mixed_context_s"]},
    }
    profile = LatencyProfile.model_validate(dict(described) | decode | each)
    return FittedProfile(profile, None, HeldBackError.of(predicted, rows.seconds), rows, predicted)


def _linear(rows: IterationRows, of: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Seconds of MIXED by some of the rows, and the seconds of all rows by these."""
    columns = _mixed_columns(rows)
    scale = np.maximum(columns.max(axis=0), 1e-300)
    solved, _ = nnls((columns / scale / rows.seconds[:, None])[of], np.ones(int(of.sum())))
    found: Floats = solved / scale
    return found, columns @ found


def iteration_s(profile: LatencyProfile, rows: IterationRows) -> Floats:
    """Seconds of these iterations by the profile, [rows]."""
    tokens, served = rows.decoding + rows.prompt_tokens, rows.decoding + rows.prompt_rows
    tables = profile.tables(int(served.max()), int(tokens.max()))
    seconds = _between(tables.dense_s, tokens) + _between(tables.sequence_s, served)
    decode_s = _between(tables.attention_s, rows.decoding)
    decode_s = decode_s + _between(tables.context_s, rows.decoding) * rows.context
    mixed_s = _mixed_columns(rows) @ np.array([getattr(profile, name) for name in MIXED])
    result: Floats = seconds + np.where(rows.is_mixed, mixed_s, decode_s)
    return result


def _between(table: Floats, numbers: Floats) -> Floats:
    values: Floats = np.interp(numbers, np.arange(len(table)), table)
    return values


def _folds(rows: IterationRows) -> NDArray[np.int64]:
    """Which fifth each iteration is held back with, equal ones together, [rows]."""
    what = np.stack([rows.decoding, rows.context, rows.prompt_rows, rows.prompt_tokens, rows.pairs], axis=1)
    of = np.unique(what, axis=0, return_inverse=True)[1].reshape(-1)
    fold: NDArray[np.int64] = np.random.default_rng(0).permutation(of.max() + 1)[of] % FOLDS
    return fold


def _check(rows: IterationRows, file: str) -> None:
    wrong = rows.seconds[~(rows.seconds > 0.0)]
    if len(wrong):
        raise UsageError(
            "a time that cannot be", file=file, value=float(wrong[0]), expected="seconds above 0"
        )
    tokens = rows.decoding + rows.prompt_tokens
    if tokens.min() <= 0.0 or tokens.max() > MOST_TOKENS:
        value = float(tokens.min() if tokens.min() <= 0.0 else tokens.max())
        expected = f"1 to {MOST_TOKENS:,}"
        raise UsageError("tokens of an iteration", file=file, value=value, expected=expected)
    decodes = int((~rows.is_mixed).sum())
    if decodes < FEWEST_ROWS:
        problem = "too few iterations without prompts"
        raise UsageError(problem, file=file, value=decodes, expected=f"{FEWEST_ROWS} rows or more")


def _fitted(measured: Measurements, rows: IterationRows, described: Mapping[str, Any]) -> LatencyProfile:
    """Non-negative least squares of relative errors."""
    mixed = rows.is_mixed
    tokens, left_s = rows.decoding + rows.prompt_tokens, rows.seconds
    at_rows = _points(rows.decoding[~mixed], ROW_POINTS)
    hats = _hats(rows.decoding, at_rows) * ~mixed[:, None]
    parts = [hats, hats * rows.context[:, None], _mixed_columns(rows) * mixed[:, None]]
    at_tokens = np.zeros(0)
    if measured.dense_s is None:
        at_tokens = _points(tokens, TOKEN_POINTS)
        parts.append(_steps(tokens, at_tokens))
    else:
        left_s = left_s - np.interp(tokens, list(measured.dense_s), list(measured.dense_s.values()))
    if measured.sequence_s is not None:
        served = rows.decoding + rows.prompt_rows
        left_s = left_s - np.interp(served, list(measured.sequence_s), list(measured.sequence_s.values()))
    columns = np.concatenate(parts, axis=1) / rows.seconds[:, None]
    smooth = np.zeros((len(at_rows) - 1, columns.shape[1]))  # a token of context costs neighbours the same
    effect = (parts[1] / rows.seconds[:, None]).sum(axis=0) / np.maximum(hats.sum(axis=0), 1.0)
    for k in range(len(at_rows) - 1):
        weight = SMOOTHNESS * np.sqrt(len(rows)) * min(effect[k], effect[k + 1])
        smooth[k, len(at_rows) + k], smooth[k, len(at_rows) + k + 1] = weight, -weight
    solved = _robust(columns, left_s / rows.seconds, smooth)
    found = np.split(solved, np.cumsum([part.shape[1] for part in parts])[:-1])
    values: dict[str, Any] = dict(described) | {
        "dense_s": measured.dense_s or _points_of(at_tokens, found[3].cumsum()),
        "sequence_s": measured.sequence_s or {1: 0.0},
        "attention_s": _points_of(at_rows, found[0]),
        "context_s": _points_of(at_rows, found[1]),
    }
    values |= dict(zip(MIXED, found[2].tolist(), strict=True))
    return LatencyProfile.model_validate(values)


def _robust(columns: Floats, target: Floats, smooth: Floats) -> Floats:
    """Non-negative solution of least squares, where rows far off count less (Huber's weights)."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    weight = np.ones(len(target))
    solved = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        matrix = np.concatenate([columns * weight[:, None], smooth]) / scale
        q, r = np.linalg.qr(matrix)  # as many rows as columns are left
        solved, _ = nnls(r, q.T @ np.concatenate([target * weight, np.zeros(len(smooth))]))
        solved /= scale
        error = columns @ solved - target
        error, over = (
            np.abs(error),
            1.0 + np.maximum(error, 0.0),
        )  # of the larger of both, not of the measured
        far = np.maximum(error / over, 1e-12)
        weight = np.sqrt(np.minimum(1.0, max(NEAR, FAR * float(np.median(far))) / far)) / over
    return solved


def _mixed_columns(rows: IterationRows) -> Floats:
    """What the fields of MIXED are multiplied by, [rows, 5]."""
    one = np.ones(len(rows))
    return np.stack([one, rows.decoding, rows.context, rows.prompt_tokens, rows.pairs], axis=1)


def _points(numbers: Floats, most: int) -> Floats:
    """Points of a table: the numbers that occur, or some of them at even ratios."""
    found = np.unique(np.maximum(1.0, np.round(numbers)))
    if len(found) <= most:
        return found
    even = np.geomspace(found[0], found[-1], most)
    nearest = np.abs(np.log(found[None, :] / even[:, None])).argmin(axis=1)
    chosen: Floats = found[np.unique(nearest)]
    return chosen


def _hats(numbers: Floats, points: Floats) -> Floats:
    """Weights of the points in a linear interpolation, [numbers, points]."""
    return np.stack([np.interp(numbers, points, unit) for unit in np.eye(len(points))], axis=1)


def _steps(numbers: Floats, points: Floats) -> Floats:
    """Columns of a table that does not fall: the first value, and what each further point adds."""
    columns: Floats = _hats(numbers, points)[:, ::-1].cumsum(axis=1)[:, ::-1]
    return columns


def _points_of(points: Floats, values: Floats) -> dict[int, float]:
    return {int(x): float(y) for x, y in zip(points, values, strict=True)}


def thinned(numbers: Floats, values: Floats, most: int) -> dict[int, float]:
    """The points of a table that matter: more are added where the relative error is largest."""
    kept = [0, len(numbers) - 1]
    while len(kept) < min(most, len(numbers)):
        chosen = sorted(kept)
        error = np.abs(np.interp(numbers, numbers[chosen], values[chosen]) / values - 1.0)
        if error.max() < 1e-3:
            break
        kept.append(int(error.argmax()))
    chosen = sorted(set(kept))
    return _points_of(numbers[chosen], values[chosen])
