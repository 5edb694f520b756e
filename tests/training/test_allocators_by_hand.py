"""Allocators on cases small enough for the head, and their promises on random workloads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.training_runs import jobs_of, random_jobs, run_of
from trimtab.training.allocators.chronus import packed
from trimtab.training.allocators.themis import fair_fractions
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import Outcome

# Model 0: 1, 1.8, 3, 4 work per second with 1, 2, 4, 8 GPUs. All clusters here have 8 GPUs.


def test_edf_gives_the_most_urgent_job_all_that_it_can_use() -> None:
    workload = jobs_of([0, 0], [80, 40], 1, deadline_s=[500, 100])
    run = run_of(workload, "edf", clock="events")
    assert run.finish_s.tolist() == pytest.approx([30, 10])  # 40 / 4 = 10, then 80 / 4 = 20


def test_srtf_preempts_and_sjf_does_not() -> None:
    workload = jobs_of([0, 10], [300, 30], 4)  # 100 and 10 seconds with 4 GPUs
    assert run_of(workload, "srtf", nodes=(4,)).finish_s.tolist() == pytest.approx([110, 20])
    assert run_of(workload, "sjf", nodes=(4,)).finish_s.tolist() == pytest.approx([100, 110])


def test_tiresias_demotes_at_the_threshold_and_serves_the_first_queue_first() -> None:
    # On 4 GPUs. Job 0 reaches 100 GPU seconds after 25 s; job 1 came at 10 and takes over.
    workload = jobs_of([0, 10], [300, 30], 4)
    run = run_of(workload, "tiresias(thresholds=100)", nodes=(4,), clock="events")
    assert run.start_s.tolist() == [0, 25]
    assert run.finish_s.tolist() == pytest.approx([110, 35])


def test_tiresias_promotes_a_job_that_waited_long() -> None:
    # Job 0 is demoted at 25 s; short jobs keep the first queue full, until it waited twice its 25 s.
    workload = jobs_of([0, *range(20, 300, 10)], [300, *[30] * 28], 4)
    never = run_of(workload, "tiresias(thresholds=100)", nodes=(4,), clock="events")
    twice = run_of(workload, "tiresias(thresholds=100,promote=2)", nodes=(4,), clock="events")
    assert twice.finish_s[0] < never.finish_s[0]


def test_gandiva_takes_turns() -> None:
    # Three jobs of 4 GPUs on one node of 4, 100 seconds each, a minute a turn. The last arrival is at 0.
    run = run_of(jobs_of([0, 0, 0], 300, 4), "gandiva", nodes=(4,))
    # turns: 0-60, 60-120, 120-180, then 40 s each, a slot apart
    assert sorted(run.finish_s.tolist()) == pytest.approx([220, 280, 340])


def test_elasticflow_gives_the_least_share_and_then_the_rest() -> None:
    # 100 work by 100 s needs one GPU; a second job takes what is left over.
    workload = jobs_of([0, 0], [100, 400], 1, deadline_s=[100, 200])
    run = run_of(workload, "elasticflow", clock="plans(slot_s=10)")
    assert run.on_time.all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("search", ["exact", "lazy"])
def test_elasticflow_keeps_every_promise_where_estimates_are_right(search: str, seed: int) -> None:
    """Times are whole seconds, because plans round finishes up to these."""
    workload = random_jobs(seed)
    workload = replace(
        workload, submit_s=np.ceil(workload.submit_s), deadline_s=np.floor(workload.deadline_s)
    )
    run = run_of(workload, f"elasticflow(search={search})", finish_rounding="up")
    done = run.outcome == Outcome.FINISHED
    assert run.on_time[done].all()
    assert done.sum() > 0
    assert set(run.reasons) == set(np.flatnonzero(~done))


@pytest.mark.parametrize("search", ["exact", "lazy"])
def test_elasticflow_may_refuse_everyone(search: str) -> None:
    run = run_of(jobs_of([0, 1], 1000, 1, deadline_s=[5, 6]), f"elasticflow(search={search})")
    assert (run.outcome == Outcome.REJECTED).all()


@pytest.mark.parametrize("seed", range(6))
def test_elasticflow_meets_at_least_as_many_deadlines_as_edf(seed: int) -> None:
    workload = random_jobs(seed, 80)
    assert run_of(workload, "elasticflow").on_time.sum() >= run_of(workload, "edf").on_time.sum() - 2


def test_elasticflow_admits_together_or_one_by_one() -> None:
    # In one slot come a job that can make it and one that cannot.
    workload = jobs_of([0, 10, 20], [10, 100, 1000], 1, deadline_s=[500, 400, 130])
    together = run_of(workload, "elasticflow(admit=together)")
    single = run_of(workload, "elasticflow")
    assert together.outcome.tolist() == [Outcome.FINISHED, Outcome.REJECTED, Outcome.REJECTED]
    assert single.outcome.tolist() == [Outcome.FINISHED, Outcome.FINISHED, Outcome.REJECTED]


def test_elasticflow_runs_jobs_without_deadlines_on_what_is_left() -> None:
    run = run_of(jobs_of([0, 0], [100, 100], 1, deadline_s=[120, np.inf]), "elasticflow")
    assert run.finished.all()
    assert run.on_time.all()


def test_a_pack_of_leases_by_hand() -> None:
    # Capacity 4: a wide job needs 2 of the first 3 leases, narrow ones 1 of 3 and 2 of 2.
    fits, first = packed(np.array([4, 2, 2]), np.array([2, 1, 2]), np.array([3, 3, 2]), 4)
    # the wide job takes leases 1 and 2; of the narrow ones, one finds lease 0, the other only one of two
    assert fits.tolist() == [True, True, False]
    assert first.tolist() == [False, True, True]


def test_chronus_keeps_promises_and_fills_spare_gpus() -> None:
    # A deadline job of 100 s with slack, and one without a deadline: both run at once.
    workload = jobs_of([0, 0], [300, 300], 4, deadline_s=[1000, np.inf], scales=False)
    run = run_of(workload, "chronus")
    assert run.finish_s.tolist() == pytest.approx([100, 100])


@pytest.mark.parametrize("seed", range(20))
def test_no_fractions_are_fairer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 4
    age_s, run_s, gpus = rng.uniform(0, 50, n), rng.uniform(1, 100, n), rng.choice([1, 2, 4], n)
    isolated = rng.uniform(50, 300, n)

    def worst(x: np.ndarray) -> float:
        return float(((age_s + run_s / x) / isolated).max())

    x = fair_fractions(age_s, run_s, isolated, gpus, 4)
    assert (x <= 1).all()
    assert (gpus * x).sum() <= 4 + 1e-6
    for _ in range(500):
        other = rng.uniform(0.01, 1, n)
        other *= min(1.0, 4 / (gpus * other).sum())
        assert worst(x) <= worst(other) * (1 + 1e-6)


def test_chronus_promises_what_fits_before_the_deadline() -> None:
    # one GPU, leases of 240 s: two of them each, with margin, of three until 720 s and two until 480 s
    workload = jobs_of([0.0, 0.0], [300.0, 300.0], deadline_s=[720.0, 480.0])
    run = run_of(workload, "chronus", nodes=[1])
    assert run.admitted.tolist() == [True, False]
    found = job_metrics(run)
    assert found["deadline_kept_frac"] == pytest.approx(0.5)
    assert np.isnan(job_metrics(run_of(workload, "edf", nodes=[1]))["deadline_kept_frac"])
