"""Figures for a shadow policy: exact counts, and intervals that cover what is known to be true."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from support.builders import cluster, requests
from support.recordings import simulated
from trimtab.experiments.serving.replay import paired_by_batches
from trimtab.gateway.record.intervals import BatchMeans, mean_interval, student_t95
from trimtab.gateway.record.shadow import ShadowTally, figures_of, replay_difference
from trimtab.gateway.record.switchback import Switchback
from trimtab.metrics import Estimate


@pytest.mark.parametrize("degrees", [1, 2, 5, 19, 30, 31, 60, 1000])
def test_quantiles_are_students(degrees: int) -> None:
    assert student_t95(degrees) == pytest.approx(stdtrit(degrees, 0.975), rel=2e-4)


def test_disagreement_is_exact_and_the_prediction_apart() -> None:
    tally = ShadowTally()
    assert np.isnan(tally.figures().disagreement_frac)
    tally.note([(0, -1, 0, 1.0, 1.0)])
    tally.note([(0, -1, 1, 1.0, 3.0)])
    tally.note([(0, -1, -1, 1.0, float("inf"))])  # held: no prediction
    tally.note([(2, -1, 1, 2.0, 1.0)])
    tally.note([(2, -1, 1, float("inf"), 1.0)])
    assert tally.counts == (5, 4)
    tally.note([(2, 2, 1, 5.0, 1.0)])  # its session lives there: no policy was asked
    tally.note([(-1, 2, 1, 0.0, 1.0)])  # its home had no room
    tally.note([(-1, -1, -1, 0.0, 0.0)])  # both hold it
    found = tally.figures()
    assert (found.decisions, found.differ, found.disagreement_frac) == (8, 5, 0.625)
    assert found.predicted == 5
    assert found.predicted_difference_s.mean == pytest.approx(1.0 / 5.0)
    assert found.predicted_difference_frac == pytest.approx(1.0 / 9.0)
    assert found.predicted_difference_s.ci95 is None  # too few


def test_batch_means_cover_the_mean_of_dependent_values() -> None:
    rng, covered = random.Random(3), 0
    for _ in range(200):
        batches, value = BatchMeans(), 0.0
        for _ in range(3000):
            value = 0.8 * value + rng.gauss(0.0, 1.0)
            batches.add(value + 7.0)
        found = batches.interval()
        assert found.ci95 is not None
        covered += abs(found.mean - 7.0) <= found.ci95
    assert 0.90 <= covered / 200 <= 0.99


def test_values_may_come_one_by_one_or_many_at_a_time() -> None:
    rng = random.Random(5)
    values = [float(rng.randrange(1000)) for _ in range(5000)]  # whole: sums do not depend on their order
    one_by_one, many = BatchMeans(), BatchMeans()
    for value in values:
        one_by_one.add(value)
    begin = 0
    while begin < len(values):
        n = rng.choice((0, 1, 2, 7, 256, 900))
        many.add_all(values[begin : begin + n])
        begin += n
    assert many.count == 5000
    assert many.interval() == one_by_one.interval()
    assert many.interval().mean == sum(values) / 5000


def test_an_interval_of_independent_values_is_the_textbooks() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.ci95 == pytest.approx(3.18245 * np.std([1, 2, 3, 4], ddof=1) / 2.0, rel=1e-4)
    assert mean_interval([1.0]).ci95 is None


# Switchback


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


def mean_of(served: list[tuple[float, float]]) -> float:
    return sum(completion_s for _, completion_s in served) / len(served)


def test_a_switchback_covers_the_true_difference_about_as_often_as_it_says() -> None:
    true_s = mean_of(queues(lambda _: 1, 100_000, 1)) - mean_of(queues(lambda _: 0, 100_000, 2))
    covered, n_seeds = 0, 100
    for seed in range(n_seeds):
        experiment = Switchback(period_s=90.0, washout_s=30.0, seed=seed, begun_s=0.0)
        served = queues(experiment.arm_at, 4_000, 1000 + seed)
        for arrived_s, completion_s in served:
            experiment.note(arrived_s, completion_s)
        found = experiment.figures(served[-1][0]).difference_s
        assert found.ci95 is not None
        covered += abs(found.mean - true_s) <= found.ci95
    assert 0.88 <= covered / n_seeds <= 0.995


def test_both_policies_are_live_once_in_every_pair_and_the_order_is_random() -> None:
    experiment = Switchback(period_s=10.0, washout_s=0.0, seed=4, begun_s=100.0)
    arms = [experiment.arm_at(105.0 + 10.0 * block) for block in range(200)]
    pairs = list(zip(arms[::2], arms[1::2], strict=True))
    assert set(pairs) == {(0, 1), (1, 0)}
    assert arms == [experiment.arm_at(105.0 + 10.0 * block) for block in range(200)]
    assert experiment.next_switch_s(105.0) == 110.0


def test_the_washout_and_the_last_pair_do_not_count() -> None:
    experiment = Switchback(period_s=10.0, washout_s=4.0, seed=0, begun_s=0.0)
    for arrived_s in (3.0, 5.0, 12.0, 15.0, 25.0, 35.0):
        experiment.note(arrived_s, 1.0 + experiment.arm_at(arrived_s))
    assert experiment.figures(39.0).pairs == 0
    found = experiment.figures(41.0)
    assert (found.pairs, found.requests, found.mean_s) == (1, (1, 1), (1.0, 2.0))
    assert found.difference_s.mean == 1.0
    assert found.difference_s.ci95 is None
    with pytest.raises(ValueError, match="washout_s"):
        Switchback(period_s=1.0, washout_s=1.0, seed=0, begun_s=0.0)


# Replay


def test_the_replay_interval_covers_the_true_difference_of_known_service_models() -> None:
    def difference(n: int, seed: int) -> Estimate:
        runs = [queues(lambda _, arm=arm: arm, n, seed) for arm in (0, 1)]  # the same requests for both
        anywhere_s, least_s = (np.array([completion_s for _, completion_s in run]) for run in runs)
        return paired_by_batches(least_s, anywhere_s)

    found = [difference(2_000, seed) for seed in range(100)]
    true_s = difference(200_000, 999).mean
    covered = sum(abs(each.mean - true_s) <= (each.ci95 or 0.0) for each in found)
    assert 0.88 <= covered / len(found) <= 0.995


def said(error_frac: float, *, hidden: bool) -> dict[str, Any]:
    live = {
        "error_frac": {"mean_s": error_frac},
        "completions": {"mean_s": 2.0},
        "difference_s": None,
    }
    shadow = {"error_frac": {"mean_s": 0.5}, "difference_s": {"mean": 0.3, "ci95": 0.1}}
    return {"policies": [live, shadow], "is_hidden": hidden, "requests": 10}


def test_the_difference_is_hidden_where_the_replay_is_off() -> None:
    assert figures_of(said(0.2, hidden=True)).difference_s is None
    shown = figures_of(said(0.02, hidden=False))
    assert shown.difference_s == 0.3
    assert shown.interval == pytest.approx((0.2, 0.4))


def test_another_process_replays(tmp_path: Path) -> None:
    c = cluster(3, queue_max=0)
    drawn = requests(c, 300, load=0.8)
    simulated(tmp_path, c, drawn, "least-connections")
    found = asyncio.run(replay_difference(tmp_path, "least-connections", "random"))
    assert found.requests == 300
    assert abs(found.live_vs_replay_error_frac) < 1e-6
    assert not found.hidden
    with pytest.raises(RuntimeError, match="cannot be read"):
        asyncio.run(replay_difference(tmp_path / "nothing", "random", "random"))


def test_the_recorder_loads_no_heavy_library() -> None:
    code = (
        "import sys, json, trimtab.gateway.record.recorder, trimtab.gateway.record.shadow, "
        "trimtab.gateway.record.switchback; "
        "print(json.dumps([m for m in ('polars', 'scipy', 'pandas', 'rich', 'aiohttp') if m in sys.modules]))"
    )

    async def main() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0]

    assert json.loads(asyncio.run(main())) == []
