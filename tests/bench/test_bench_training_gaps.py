"""The optimum of small lists against a search over all schedules, and allocators against the optimum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest
from bench.training import gaps
from bench.training.gaps import DUE, GPUS, MEAN, RATE, ROUND_S


@pytest.fixture(autouse=True)
def _three_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gaps, "JOBS", 3)
    monkeypatch.setattr(gaps, "ROUNDS", 9)
    yield
    gaps.drawn.cache_clear()
    gaps.optimum.cache_clear()


def searched(seed: int, objective: str, free: bool) -> float:
    """The best schedule of whole rounds, by trying all."""
    jobs = gaps.drawn(seed, objective)
    ways = [range(GPUS + 1) if free else (0, int(g)) for g in jobs.gpus_requested]
    given = [counts for counts in product(*ways) if sum(counts) <= GPUS]
    due = jobs.deadline_s / ROUND_S - 1

    @cache
    def best(t: int, left: tuple[float, ...]) -> float:
        if t == gaps.ROUNDS or max(left) <= 1e-9:
            return 0.0
        found = np.inf
        for counts in given:
            rates = [RATE[m, g - 1] if g else 0.0 for m, g in zip(jobs.model_idx, counts, strict=True)]
            after = tuple(round(x - r * ROUND_S, 6) for x, r in zip(left, rates, strict=True))
            if objective == DUE:
                cost = -sum(x > 1e-9 >= y and t + 1 <= d for x, y, d in zip(left, after, due, strict=True))
            else:
                cost = sum(x > 1e-9 for x in left) / 3
            found = min(found, cost + best(t + 1, tuple(max(y, 0.0) for y in after)))
        return float(found)

    value = best(0, tuple(round(float(w), 6) for w in jobs.work))
    return -value if objective == DUE else value


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("objective", [MEAN, DUE])
@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_is_that_of_a_search(seed: int, objective: str, free: bool) -> None:
    best = gaps.optimum(seed, objective, free)
    assert best == pytest.approx(searched(seed, objective, free))
    ours = gaps.scheduled("srtf", seed, objective)
    assert ours <= best + 1e-6 if objective == DUE else ours >= best - 1e-6
