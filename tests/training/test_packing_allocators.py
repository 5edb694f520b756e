"""Allocators that pack, and shares by programmes, against brute force and by hand."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from support.training_runs import jobs_of, scaling_table
from trimtab.domain.service_loads import PairSpeeds
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes
from trimtab.training.allocator_catalogue import find_allocator
from trimtab.training.allocators.shared.gavel_mechanism import ShareState
from trimtab.training.allocators.shared.max_min_programme import ShareProblem, water_filled
from trimtab.training.allocators.tiresias_gittins import gittins_index
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth


def pairs_of(kept: Any) -> PairSpeeds:
    """Three curves; pairs with one GPU as given."""
    return PairSpeeds(np.full(3, 0.7), np.array([1]), np.asarray(kept, np.float64)[None, None])


def run(allocator: str, work: Any, kept: Any, gpus: int = 1, **columns: Any) -> JobRecords:
    submit_s = columns.pop("submit_s", [0.0] * len(work))
    return run_allocator(
        allocator,
        jobs_of(submit_s, work, **columns),
        nodes=gpu_nodes(0, [gpus]),
        type_names=("gpu",),
        truth=TableTruth(scaling_table(), pairs=pairs_of(kept)),
    )


def test_pairs_of_random_problems_against_a_grid() -> None:
    # three jobs on one GPU: x alone, y of each pair, in steps of 0.05
    rng = np.random.default_rng(0)
    members = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    bars = np.array(list(combinations(range(25), 5)))  # between 20 steps: all ways to share them out
    edges = np.hstack([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), 25)])
    grid = (np.diff(edges) - 1) / 20.0
    for _ in range(3):
        kept = rng.uniform(0.2, 1.0, (3, 2))
        gain = [np.ones((1, 1))] * 3 + [k[:, None] for k in kept]
        problem = ShareProblem(members, gain, np.ones(6, np.int64), np.array([1]), 3)
        share = water_filled(problem, 1)[:, 0]
        does = np.zeros((3, 6))
        for c, rows in enumerate(members):
            does[list(rows), c] = gain[c][:, 0]
        level = (does @ share).min()
        best = (grid @ does.T).min(axis=1).max()
        assert share.sum() <= 1 + 1e-9
        assert best <= level + 1e-9
        assert level <= best + 0.05  # a grid misses the corner by less than a step


def test_water_filling_raises_those_that_can_gain() -> None:
    # four GPUs, jobs of 1, 1 and 4: one GPU each is the first level; the wide job has room for one more
    state = ShareState(np.zeros(3, JOBS), np.ones((3, 1)), np.array([1.0, 1.0, 4.0]), np.array([4.0]), 0.0)
    share = find_allocator("gavel-water-filling").time_shares(state, None)[:, 0]  # type: ignore[attr-defined]
    assert share == pytest.approx([1.0, 1.0, 0.5])


def test_water_filling_of_two_types_against_a_grid() -> None:
    # one GPU of each type; job 0 is four times as fast on the second, the others twice
    rate = np.array([[1.0, 4.0], [1.0, 2.0], [1.0, 2.0]])
    state = ShareState(np.zeros(3, JOBS), rate, np.ones(3), np.ones(2), 0.0)
    share = find_allocator("gavel-water-filling").time_shares(state, None)  # type: ignore[attr-defined]
    gain = rate / (rate @ [0.5, 0.5])[:, None]
    best: tuple[float, ...] = ()
    steps = [x / 20.0 for x in range(21)]
    for a, b, c, d in product(steps, repeat=4):  # jobs 1 and 2 are alike: they have the same shares
        if a + 2 * c <= 1 and b + 2 * d <= 1 and a + b <= 1 and c + d <= 1:
            found = tuple(sorted((a * gain[0, 0] + b * gain[0, 1], *[c * gain[1, 0] + d * gain[1, 1]] * 2)))
            best = max(best, found)
    assert sorted((share * gain).sum(axis=1)) == pytest.approx(best, abs=0.1)
    assert min((share * gain).sum(axis=1)) >= best[0] - 1e-9


def test_a_pair_that_does_not_pay_is_undone() -> None:
    good = run("gandiva-packing", [120.0, 120.0], np.full((3, 3), 0.6))
    assert good.finish_s.tolist() == pytest.approx([200.0, 200.0])
    # 0.4 each: one round together, 48 done, then turns
    bad = run("gandiva-packing", [120.0, 120.0], np.full((3, 3), 0.4))
    assert bad.shared_gpu_s.tolist() == pytest.approx([60.0, 60.0])
    assert bad.finish_s.max() == pytest.approx(120.0 + 72.0 + 72.0)


def test_packing_waits_until_gpus_are_short() -> None:
    found = run("gandiva-packing", [100.0, 100.0], np.full((3, 3), 0.9), gpus=2)
    assert found.finish_s.tolist() == pytest.approx([100.0, 100.0])


def test_gavel_packs_what_gains() -> None:
    found = run("gavel-packed", [100.0, 100.0], np.full((3, 3), 0.8))
    assert found.finish_s.tolist() == pytest.approx([125.0, 125.0])
    assert run("gavel-packed", [100.0, 100.0], np.full((3, 3), 0.54)).shared_gpu_s.sum() == 0.0


@pytest.mark.parametrize(
    ("own", "work", "joins"),
    [
        (0.96, [100.0, 150.0], True),  # two light ones
        (0.85, [100.0, 150.0], True),  # two medium ones
        (0.70, [100.0, 150.0], False),  # two heavy ones
        (0.96, [100.0, 201.0], False),  # the newcomer takes more than twice as long
    ],
)
def test_lucid_packs_by_scores_and_service(own: float, work: list[float], joins: bool) -> None:
    found = run("lucid", work, np.full((3, 3), own))
    assert (found.start_s[1] == 0.0) == joins


def test_lucid_goes_by_service_and_never_preempts() -> None:
    heavy = np.full((3, 3), 0.5)
    found = run("lucid", [100.0, 50.0, 10.0], heavy, submit_s=[0.0, 1.0, 2.0])
    assert found.start_s.tolist() == pytest.approx([0.0, 110.0, 100.0])


def test_the_index_against_its_definition() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        sizes = np.sort(rng.exponential(100.0, 12))
        attained = float(rng.uniform(0.0, sizes[-2]))
        left = sizes[sizes > attained] - attained
        further = np.concatenate([np.linspace(0.01, left.max(), 4000), left])
        ratio = (left <= further[:, None]).mean(axis=1) / np.minimum(left, further[:, None]).mean(axis=1)
        assert gittins_index(sizes, attained) == pytest.approx(ratio.max())
    assert gittins_index(np.array([10.0]), 4.0) == pytest.approx(1 / 6)  # sure to end after six more
    assert gittins_index(np.array([10.0]), 10.0) == 0.0


def test_who_passed_the_short_sizes_waits_for_those_that_may_end_soon() -> None:
    # sizes of 3600 and 360 000 GPU s: having had 7200, a job is a long one; a new one may end within 3600
    allocator = find_allocator('tiresias-gittins(sizes="3600/360000")')
    jobs = np.zeros(2, JOBS)
    jobs["job_idx"], jobs["gpus_requested"], jobs["gpus_max"] = [0, 1], 1, 1
    nobody = Held(np.zeros(0, np.int64), np.zeros((0, 1), np.int64))
    cluster = GpuCluster(gpu_nodes(0, [1]), ("gpu",), nobody, 2)
    for attained, first in (([7200.0, 0.0], 1), ([359_000.0, 0.0], 0)):
        jobs["attained_gpu_s"] = attained
        memory = allocator.init(cluster, 2)
        counts = allocator.allocate(jobs, cluster, 0.0, None, memory).counts  # type: ignore[arg-type]
        assert counts is not None
        assert counts[first, 0] == 1
        assert counts.sum() == 1
