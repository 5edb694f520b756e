"""Output lengths of a trace, learned under differential privacy by row: a file that a site may give away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trimtab.domain.learned_estimates import KNOTS, LearnedEstimates, class_idx
from trimtab.domain.output_estimate import FIRST_OUTPUT_TOKENS
from trimtab.errors import UsageError
from trimtab.learn.federated.estimates import TOKENS, EstimatesProblem, curve_places
from trimtab.learn.federated.site_data import rows_with_lengths
from trimtab.learn.private_training import Descent, private_fit
from trimtab.privacy.accounting import rho_of, sigma_of
from trimtab.privacy.mechanisms import Noise, gaussian_noise
from trimtab.traces import Trace
from trimtab.version import versions

Floats = NDArray[np.float64]
COUNTED: Final = 0.1  # share of ε and δ that tells how many rows are behind each knot


class PrivateLengths(NamedTuple):
    """What was learned, and each class's fit: rows, ε of its descent, standard deviation of its noise."""

    estimates: LearnedEstimates
    fits: dict[str, dict[str, float]]


def private_lengths(
    trace: Trace,
    classes: Sequence[str],
    *,
    epsilon: float,
    delta: float,
    descent: Descent,
    noise: Noise = gaussian_noise,
    seed: int | None = None,
) -> PrivateLengths:
    """Output tokens by the length of the prompt for each class, (ε, δ)-differentially private by row.

    A row is of one class, so the classes cost no more than one of them. A part `COUNTED` of ε and δ tells
    how many rows lie nearest to each knot; the rest goes to `private_fit`.

    Args:
        trace: with prompt_tokens and output_tokens.
        classes: names, which are public; "*" takes all that no other name fits.
        epsilon: above 0; inf = without noise.
        delta: below one by the number of rows.
        descent: of the fit.
        noise: on counts.
        seed: of the descent; None = the operating system's.

    Raises:
        UsageError: no row says anything, or ε or δ promise nothing. MissingExtra.
    """
    problem = EstimatesProblem(tuple(classes))
    layout, found = problem.layout, dict[str, dict[str, float]]()
    w, rows = problem.numbers(()), np.zeros(layout.width)
    by_class: dict[int, list[pl.DataFrame]] = {}
    for name, of_name in rows_with_lengths(trace.table):
        c = class_idx(classes, name)
        if c is not None:
            by_class.setdefault(c, []).append(of_name)
    if not by_class:
        raise UsageError(
            "says nothing of output lengths",
            file=trace.file,
            value=trace.table.columns,
            expected=f"prompt_tokens and output_tokens of {', '.join(classes)}",
        )
    for c, parts in sorted(by_class.items()):
        table = pl.concat([part.select("prompt_tokens", "output_tokens") for part in parts])
        begin = slice(layout.curve(c), layout.curve(c) + KNOTS)
        places, part = curve_places(table["prompt_tokens"].cast(pl.Float64).to_numpy())
        counts = np.bincount(places + (part > 0.5), minlength=KNOTS)
        if np.isfinite(epsilon):
            sigma = sigma_of(rho_of(COUNTED * epsilon, COUNTED * delta), sensitivity=1.0)
            counts = np.maximum(noise(counts, sigma), 0)
        fit = private_fit(
            _features(places, part),
            table["output_tokens"].cast(pl.Float64).to_numpy() / TOKENS,
            np.full(KNOTS, FIRST_OUTPUT_TOKENS / TOKENS),
            epsilon=(1.0 - COUNTED) * epsilon,
            delta=(1.0 - COUNTED) * delta,
            rows=max(1.0, float(counts.sum())),
            descent=descent,
            seed=None if seed is None else seed + c,
        )
        w[begin], rows[begin] = np.maximum(fit.weights, 0.0), counts
        found[classes[c]] = {
            "rows": float(counts.sum()),
            "epsilon": fit.epsilon,
            "noise_multiplier": fit.noise_multiplier,
        }
    provenance: dict[str, Any] = {
        "made by": "trimtab learn lengths",
        "epsilon": epsilon if np.isfinite(epsilon) else None,
        "delta": delta,
        "unit": "row",
        "descent": asdict(descent),
        "generator": "torch (Mersenne Twister, seeded by the operating system)" if seed is None else "seeded",
        "versions": versions(),
    }
    return PrivateLengths(problem.estimates(w, rows, provenance), found)


def _features(places: NDArray[np.int64], part: Floats) -> Floats:
    """What of each knot a row has, [rows, KNOTS]."""
    features, row = np.zeros((len(places), KNOTS)), np.arange(len(places))
    features[row, places] = 1.0 - part
    features[row, places + 1] += part
    return features
