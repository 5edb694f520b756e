"""Speeds of two generated jobs on the same GPUs: measured where the scenario names a file, else a formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.domain.pair_speeds import DEFAULT_BUSY_FRAC, PairSpeeds, busy_of_measured
from trimtab.errors import ScenarioError
from trimtab.experiments.training.training_scenario import GenerateJobs, PairsFile
from trimtab.traces.gavel_jobs import read_gavel_pairs, read_gavel_rates
from trimtab.training.gavel_pairs import pair_speeds


def generated_pairs(generate: GenerateJobs, names: Sequence[str], types: int) -> PairSpeeds:
    """Pairs of curves, of the models [names], alike on all `types`. Raises UsageError for a bad file."""
    busy = np.array([_busy_frac(generate, name) for name in names])
    stands_for = {k: job_type for k, name in enumerate(names) if (job_type := _measured_as(generate, name))}
    if generate.pairs is None or not stands_for:
        return PairSpeeds(busy)
    kinds, measured = _read(generate.pairs)
    rows = list(stands_for)
    of_kind = [_kind_of(generate.pairs, kinds, stands_for[k]) for k in rows]
    kept = np.full((types, len(measured.levels), len(names), len(names)), np.nan)
    (own, other), (own_kind, other_kind) = np.ix_(rows, rows), np.ix_(of_kind, of_kind)
    kept[..., own, other] = measured.kept_frac[..., own_kind, other_kind]
    busy[rows] = busy_of_measured(measured.kept_frac[0, 0])[of_kind]
    return PairSpeeds(busy, measured.levels, kept)


def _busy_frac(generate: GenerateJobs, name: str) -> float:
    """Of a model's, or of a service's GPU."""
    if name in generate.models:
        return generate.models[name].busy_frac
    return generate.services.busy_frac if generate.services is not None else DEFAULT_BUSY_FRAC


def _measured_as(generate: GenerateJobs, name: str) -> str:
    if name in generate.models:
        return generate.models[name].measured_as
    return generate.services.measured_as if generate.services is not None else ""


def _read(pairs: PairsFile) -> tuple[dict[str, int], PairSpeeds]:
    """Job type → its row, and the pairs of the file."""
    alone = read_gavel_rates(pairs.file, pairs.gpu)
    kinds = sorted({key[:2] for key in alone})
    names = [f"{model} (batch size {batch})" if batch else model for model, batch in kinds]
    measured = pair_speeds(kinds, (alone,), (read_gavel_pairs(pairs.file, pairs.gpu),))
    return {name: k for k, name in enumerate(names)}, measured


def _kind_of(pairs: PairsFile, kinds: dict[str, int], job_type: str) -> int:
    if job_type not in kinds:
        raise ScenarioError(
            "no such job type",
            file=str(pairs.file),
            field="measured_as",
            value=job_type,
            expected=f"one of {', '.join(kinds)}",
        )
    return kinds[job_type]
