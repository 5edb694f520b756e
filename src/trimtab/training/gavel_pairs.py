"""Speeds of pairs as Gavel measured them, over those of the jobs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.pair_speeds import PairSpeeds, busy_of_measured
from trimtab.traces.gavel_jobs import Key, PairRates
from trimtab.training.stepped_truth import StepRates


def with_pairs(rates: StepRates, measured: Sequence[PairRates]) -> StepRates:
    """Rates with the speeds of pairs of each type. Pairs that were not measured follow the formula."""
    kinds = sorted({key[:2] for table in rates.by_type for key in table})
    index = {kind: i for i, kind in enumerate(kinds)}
    return replace(rates, pairs=pair_speeds(kinds, rates.by_type, measured), kinds=index)


def pair_speeds(
    kinds: Sequence[tuple[str, int]], alone: Sequence[Mapping[Key, float]], measured: Sequence[PairRates]
) -> PairSpeeds:
    """Pairs of kinds (model, batch), by type: what each keeps of its speed alone."""
    index = {kind: i for i, kind in enumerate(kinds)}
    levels = sorted({own[2] for table in measured for own, _ in table}) or [1]
    kept = np.full((len(measured), len(levels), len(kinds), len(kinds)), np.nan)
    for t, table in enumerate(measured):
        for (own, other), rate in table.items():
            if own[2] == other[2] and alone[t].get(own, 0.0) > 0:
                at = levels.index(own[2])
                kept[t, at, index[own[:2]], index[other[:2]]] = min(rate / alone[t][own], 1.0)
    busy = busy_of_measured(kept[0, 0])
    return PairSpeeds(busy, np.array(levels, np.int64), kept)
