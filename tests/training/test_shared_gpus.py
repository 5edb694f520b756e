"""Two jobs on the same GPUs: speeds, ends, charges and places by hand; rules that a pair has to keep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from bench.golden.cases import DATA

from support.training_runs import jobs_of, run_of, scaling_table, write_pairs
from trimtab.domain.allocator import Allocation, Allocator
from trimtab.domain.service_loads import PairSpeeds, busy_of_measured, proportional_sharing
from trimtab.domain.training_jobs import GpuCluster, Held, gpu_nodes
from trimtab.errors import PolicyError
from trimtab.traces.gavel_jobs import GavelJob, read_gavel_pairs, read_gavel_rates
from trimtab.training.gang_placement import consolidated
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import JobRecords
from trimtab.training.shared_gpus import placed
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.gavel_workloads import gavel_workload, pair_speeds, with_pairs
from trimtab.training.truths.stepped_truth import SteppedTruth, StepRates
from trimtab.training.truths.table_model import TableTruth

# the first curve keeps 0.8 of its speed beside the second one, and the second one 0.5 beside the first
KEPT = PairSpeeds(np.full(3, 0.5), np.array([1]), np.array([[[[0.8, 0.8, 1.0], [0.5, 0.8, 1.0], [1.0] * 3]]]))


@dataclass(frozen=True)
class Together(Allocator):
    """All jobs on as many GPUs as they ask for, the first two on the same."""

    shares: ClassVar[bool] = True
    turn: float = 1.0  # share of the first; the second one has the rest

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        counts = jobs["gpus_requested"].astype(np.int64)[:, None]
        partner = np.full(len(jobs), -1)
        share = np.ones(len(jobs))
        if len(jobs) > 1:
            partner[:2] = 1, 0
            share[:2] = (1.0, 1.0) if self.turn == 1.0 else (self.turn, 1.0 - self.turn)
        return Allocation(counts=counts, partner_row=partner, share_frac=share)


def pair_run(work: Any, allocator: Allocator, clock: str = "events", **truth: Any) -> JobRecords:
    workload = jobs_of([0.0, 0.0], work, model_idx=[0, 1])
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(0, [1]),
        type_names=("gpu",),
        truth=TableTruth(scaling_table(), pairs=KEPT, **truth),
        clock=clock,
    )


@pytest.mark.parametrize("clock", ["events", "rounds(period_s=1000, from_first=True)"])
def test_a_pair_is_slower_until_one_ends(clock: str) -> None:
    # one GPU, speed 1 each: 80 of 80 at 0.8 by 100 s; the other has done 50 of 90 by then, and goes on alone
    run = pair_run([80.0, 90.0], Together(), clock)
    assert run.finish_s.tolist() == pytest.approx([100.0, 140.0])
    assert run.gpu_s.tolist() == pytest.approx([50.0, 90.0])
    assert run.shared_gpu_s.tolist() == pytest.approx([50.0, 50.0])
    assert run.used_gpus.max() == 1
    found = job_metrics(run)
    assert found["shared_frac"] == pytest.approx(100.0 / 140.0)
    assert found["gpu_hours"] == pytest.approx(140.0 / 3600.0)
    assert found["utilisation_allocated_mean_frac"] == pytest.approx(1.0)
    assert run.restarts.tolist() == [0, 0]


def test_turns_divide_speed_and_charge() -> None:
    # a quarter: 50 by 200 s; three quarters: 150 of 180 by then, the rest alone
    run = pair_run([50.0, 180.0], Together(turn=0.25))
    assert run.finish_s.tolist() == pytest.approx([200.0, 230.0])
    assert run.gpu_s.tolist() == pytest.approx([50.0, 180.0])


def test_who_wants_less_than_a_gpu_is_not_slowed() -> None:
    assert proportional_sharing([0.5, 0.9, 0.3], [0.5, 0.6, 0.2]).tolist() == [1.0, 1 / 1.5, 1.0]
    # shares of the GPU in proportion to what each wants: 0.9 / 1.5 of it, where 0.9 would be full speed
    assert proportional_sharing(0.9, 0.6) == pytest.approx(0.9 / 1.5 / 0.9)
    assert busy_of_measured([[0.6, 0.0], [0.0, 0.0]]).tolist() == pytest.approx([1 / 1.2, 0.7])


def test_a_disturbance_has_mean_one_and_nobody_gains() -> None:
    pairs = PairSpeeds(np.full(60, 0.9)).disturbed(0.1, 3)
    curve = np.arange(60)
    kept = pairs.kept(curve[:, None], curve[None, :], 0, 1, 1.0, 1.0)
    assert kept.mean() == pytest.approx(1 / 1.8, rel=0.01)
    assert kept.std() == pytest.approx(0.1 / 1.8, rel=0.1)
    assert PairSpeeds(np.full(9, 0.5)).disturbed(0.5, 3).kept(curve[:9], curve[:9], 0, 1, 1.0, 1.0).max() == 1


def test_pairs_that_never_ran_are_not_known() -> None:
    seen = []

    class Looks(Together):
        def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
            ways = np.zeros(1, cluster_configs())
            ways["gpus"] = 1
            seen.append(speed.shared(jobs[:1], jobs[-1:], ways)[0][0])
            return super().allocate(jobs, cluster, now_s, speed, memory)

    pair_run([80.0, 90.0], Looks(), "rounds(period_s=60, from_first=True)", pairs_known=False)
    assert np.isnan(seen[0])
    assert seen[1] == pytest.approx(0.8)


def cluster_configs() -> Any:
    from trimtab.domain.training_jobs import CONFIGS

    return CONFIGS


def test_the_newcomer_comes_to_the_one_that_runs() -> None:
    held = Held(np.array([1, 2]), np.array([[0, 0, 2], [2, 0, 0]]))
    cluster = GpuCluster(gpu_nodes(0, [2, 2, 2]), ("gpu",), held, 3)
    allocation = Allocation(counts=np.array([[2], [2], [2]]), partner_row=np.array([1, 0, -1]))
    found = placed(allocation, consolidated, cluster)
    assert found.gpus.tolist() == [[0, 0, 2], [0, 0, 2], [2, 0, 0]]


def test_partners_that_part_do_not_both_stay() -> None:
    held = Held(np.array([0, 1]), np.array([[2, 0], [2, 0]]))
    cluster = GpuCluster(gpu_nodes(0, [2, 2]), ("gpu",), held, 2)
    found = placed(Allocation(counts=np.array([[2], [2]])), consolidated, cluster)
    assert found.gpus.tolist() == [[2, 0], [0, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partner_row": np.array([1, -1, -1])}, "does not name it back"),
        ({"partner_row": np.array([0, -1, -1])}, "does not name it back"),
        ({"partner_row": np.array([2, -1, 0])}, "other GPUs than its partner"),
        ({"partner_row": np.array([1, 0, -1]), "share_frac": np.array([0.7, 0.7, 1.0])}, "shares that are"),
        ({"partner_row": np.array([1, 0, -1]), "share_frac": np.array([1.0, 0.5, 1.0])}, "shares that are"),
    ],
)
def test_a_pair_that_breaks_a_rule_stops_the_run(change: dict[str, Any], message: str) -> None:
    class Wrong(Allocator):
        shares = True

        def allocate(self, jobs: Any, *rest: Any) -> Allocation:
            return Allocation(counts=jobs["gpus_requested"].astype(np.int64)[:, None], **change)

    with pytest.raises(PolicyError, match=message):
        run_of(jobs_of([0.0] * 3, 10.0, [1, 1, 2]), Wrong())


def test_an_allocator_that_shares_has_to_say_so() -> None:
    class Silent(Together):
        shares = False

    with pytest.raises(PolicyError, match="shares = True"):
        run_of(jobs_of([0.0] * 2, 10.0), Silent())


def test_measured_pairs_are_read_and_the_others_follow_the_formula(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "pairs.json")
    kinds = [("LM", 10), ("LM", 20)]
    pairs = pair_speeds(kinds, (read_gavel_rates(file, "gpu"),), (read_gavel_pairs(file, "gpu"),))
    a, b = np.array([0]), np.array([1])
    kept = [pairs.kept(own, other, 0, 1, 1.0, 1.0)[0] for own, other in ((a, b), (b, a), (b, b), (a, a))]
    assert kept == pytest.approx([0.6, 0.5, 0.0, 1 / 1.4])


def test_rounds_of_a_pair_by_hand(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "pairs.json")
    rates = StepRates((read_gavel_rates(file, "gpu"),), {"LM": 1000})
    rates = with_pairs(rates, (read_gavel_pairs(file, "gpu"),))
    jobs = [
        GavelJob("", "LM", batch, steps, 1, "static", 1.0, 0.0) for batch, steps in ((10, 1020), (20, 500))
    ]
    workload, truth = gavel_workload("made for a test", jobs, {}, {}, rates)
    run = run_allocator(
        Together(),
        workload,
        nodes=gpu_nodes(0, [1]),
        type_names=("gpu",),
        truth=SteppedTruth(truth.rates, truth.jobs),
        clock="step-rounds(period_s=120)",
    )
    # 120 s of 6 and 4 steps a second: 720 and 480 steps. The last 300 and 20 take 50 and 5 s
    assert run.finish_s.tolist() == pytest.approx([170.0, 125.0])


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="the recorded profiles are not beside the checkout")
@pytest.mark.parametrize(("gpu", "error", "of_constant"), [("v100", 0.18, 0.20), ("k80", 0.10, 0.18)])
def test_the_formula_against_measured_pairs(gpu: str, error: float, of_constant: float) -> None:
    """Busy shares come from pairs of equal jobs alone; all other pairs of Gavel's table are held back."""
    file = DATA / "gavel_throughputs" / "simulation_throughputs.json.gz"
    alone, measured = read_gavel_rates(file, gpu), read_gavel_pairs(file, gpu)
    kinds = sorted({key[:2] for key in alone})
    pairs = pair_speeds(kinds, (alone,), (measured,))
    kept = pairs.kept_frac[0, 0]
    own, other = np.nonzero((kept > 0) & ~np.identity(len(kinds), np.bool_))
    formula = proportional_sharing(pairs.busy_frac[own], pairs.busy_frac[other])
    wrong = np.abs(formula - kept[own, other]).mean()
    assert wrong < error
    assert np.abs(proportional_sharing(0.7, 0.7) - kept[own, other]).mean() > of_constant
