"""Figures for a shadow policy: exact counts, and intervals that cover what is known to be true."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from trimtab.experiments.serving.replay import paired_by_batches
from trimtab.gateway.decide.shadow import ShadowStatistics
from trimtab.metrics import Estimate


def test_disagreement_is_exact_and_the_prediction_apart() -> None:
    statistics = ShadowStatistics()
    assert np.isnan(statistics.figures().disagreement_frac)
    statistics.note([(0, -1, 0, 1.0, 1.0)])
    statistics.note([(0, -1, 1, 1.0, 3.0)])
    statistics.note([(0, -1, -1, 1.0, float("inf"))])  # held: no prediction
    statistics.note([(2, -1, 1, 2.0, 1.0)])
    statistics.note([(2, -1, 1, float("inf"), 1.0)])
    assert statistics.counts == (5, 4)
    statistics.note([(2, 2, 1, 5.0, 1.0)])  # its session lives there: no policy was asked
    statistics.note([(-1, 2, 1, 0.0, 1.0)])  # its home had no room
    statistics.note([(-1, -1, -1, 0.0, 0.0)])  # both hold it
    found = statistics.figures()
    assert (found.decisions, found.differ, found.disagreement_frac) == (8, 5, 0.625)
    assert found.predicted == 5
    assert found.predicted_difference_s == pytest.approx(1.0 / 5.0)
    assert found.predicted_difference_frac == pytest.approx(1.0 / 9.0)


def queues(live_at: Any, n: int, seed: int, servers: int = 4, load: float = 0.5) -> list[tuple[float, float]]:
    """(arrival, completion) of requests on FCFS servers: `live_at` tells at a time whether to go to the least
    work (1) or anywhere (0)."""
    rng, free_s, now_s, served = random.Random(seed), [0.0] * servers, 0.0, []
    for _ in range(n):
        now_s += rng.expovariate(servers * load)
        anywhere, service_s = rng.randrange(servers), rng.expovariate(1.0)
        j = free_s.index(min(free_s)) if live_at(now_s) else anywhere
        free_s[j] = max(free_s[j], now_s) + service_s
        served.append((now_s, free_s[j] - now_s))
    return served


def test_the_replay_interval_covers_the_true_difference_of_known_service_models() -> None:
    def difference(n: int, seed: int) -> Estimate:
        runs = [queues(lambda _, arm=arm: arm, n, seed) for arm in (0, 1)]  # the same requests for both
        anywhere_s, least_s = (np.array([completion_s for _, completion_s in run]) for run in runs)
        return paired_by_batches(least_s, anywhere_s)

    found = [difference(2_000, seed) for seed in range(100)]
    true_s = difference(200_000, 999).mean
    covered = sum(abs(each.mean - true_s) <= (each.ci95 or 0.0) for each in found)
    assert 0.88 <= covered / len(found) <= 0.995
