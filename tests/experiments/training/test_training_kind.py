"""Training jobs as a kind of comparison: bounds, inputs of a seed, metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab
from support.training_runs import jobs_of, random_jobs, run_of, scaling_table
from trimtab.domain.training_jobs import Workload
from trimtab.domain.training_profiles import ScalingTable
from trimtab.errors import ScenarioError, TraceError, UsageError
from trimtab.experiments.compare import run_comparison
from trimtab.experiments.scenario.scenario_parts import Parts
from trimtab.experiments.training.training_bounds import (
    curves_of_jobs,
    edges_of,
    goodput_over_time,
    gpus_over_time,
    mean_completion_bound_s,
    most_deadlines,
)
from trimtab.experiments.training.training_environment import node_faults
from trimtab.experiments.training.training_inputs import build_training
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import (
    TRAINING_JOBS,
    TrainingScenario,
    resolve_training,
)
from trimtab.training.job_metrics import JOB_METRICS, job_metrics
from trimtab.training.job_models import TableJobs

CLUSTER = """\
types: {node: {accelerators: 4, memory_gib: 64, usd_per_hour: 8}}
nodes: [{type: node, count: 2}]
"""
WITH_DEADLINES = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"


def scenario_of(
    folder: Path, rows: str, head: str = "job_id,submission_time,num_gpu,duration\n", **parts: Any
) -> TrainingScenario:
    """These jobs on two nodes of four GPUs."""
    trace, cluster = folder / "jobs.csv", folder / "cluster.yaml"
    trace.write_text(head + rows)
    cluster.write_text(CLUSTER)
    return resolve_training(None, Parts(trace=trace, cluster=cluster, **parts))


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """One model, with a speed on one GPU."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "bert.csv").write_text("global_batch_size,1\n8,2.0\n")
    return folder


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"load": -1.0}, "jobs.load: .*-1.0.*greater than 0"),
        ({"load": float("nan")}, "jobs.load: .*nan.*finite"),
        ({"limit": 0}, "jobs.trace.limit: .*0.*greater than or equal to 1"),
    ],
)
def test_options_of_a_comparison_are_held_to_what_the_file_may_say(
    tmp_path: Path, given: dict[str, float], told: str
) -> None:
    with pytest.raises(ScenarioError, match=told):
        scenario_of(tmp_path, "a,0,2,60\nb,9,2,60\n", "job_id,submit_s,gpus,duration_s\n", **given)


def test_the_bound_on_mean_completion_by_hand() -> None:
    # Model 0: 1, 1.8, 3, 4 work per second with 1, 2, 4, 8 GPUs: one GPU uses the least GPU seconds.
    workload = jobs_of([0, 0], [80, 160], [1, 1])
    # alone: 20 and 40 s, mean 30; pooled on 8 GPUs: 10 and 30 s, mean 20
    assert mean_completion_bound_s(workload, TableJobs(scaling_table()), np.array([8])) == pytest.approx(30)
    # on one GPU: pooled 80 and 240 s
    assert mean_completion_bound_s(workload, TableJobs(scaling_table()), np.array([1])) == pytest.approx(160)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["fifo", "srtf", "edf", "tiresias", "gandiva"])
def test_nothing_beats_the_bounds(policy: str, seed: int) -> None:
    workload = random_jobs(seed)
    run = run_of(workload, policy)
    assert run.finished.all()
    mean_s = float((run.finish_s - workload.submit_s).mean())
    assert mean_s >= mean_completion_bound_s(workload, TableJobs(scaling_table()), np.array([8])) - 1e-6
    assert run.on_time.sum() <= most_deadlines(workload, TableJobs(scaling_table()), 8)


def least_mean_s(workload: Workload, rate: np.ndarray, type_gpus: tuple[int, ...]) -> float:
    """The best of all schedules that give jobs, all there at 0, GPUs of one type for whole units of time.

    `rate` [jobs, types, counts from 0 on].
    """

    @cache
    def best(left: tuple[float, ...]) -> float:
        """Least sum over jobs of the seconds until they end."""
        active = [j for j, work in enumerate(left) if work > 1e-9]
        if not active:
            return 0.0
        ways = [(t, n) for t, gpus in enumerate(type_gpus) for n in range(1, gpus + 1)]
        found = np.inf
        for chosen in product([(0, 0), *ways], repeat=len(active)):
            used = [sum(n for at, n in chosen if at == t) for t in range(len(type_gpus))]
            if not any(used) or any(u > gpus for u, gpus in zip(used, type_gpus, strict=True)):
                continue
            after, seconds = list(left), 0.0
            for j, (t, n) in zip(active, chosen, strict=True):
                speed = rate[j, t, n]
                took_s = left[j] / speed if speed > 0 else np.inf
                seconds += min(took_s, 1.0)
                after[j] = round(max(left[j] - speed, 0.0), 9)
            if after != list(left):
                found = min(found, seconds + best(tuple(after)))
        return float(found)

    return best(tuple(workload.work.tolist())) / len(workload)


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_of_a_tiny_cluster_of_two_types_beats_the_bound(seed: int) -> None:
    """One fast GPU and two slow ones, three jobs at 0, against all schedules in units of time."""
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.5, 1.0, (3, 1)) * np.array([1.0, 1.6])
    fast = rng.uniform(1.5, 4.0, (3, 1)) * slow
    table = ScalingTable(
        np.array([1, 2]), ("a", "b", "c"), np.stack([fast, slow]), np.array([[0], [1], [2]]), np.array([64.0])
    )
    work = rng.uniform(0.5, 2.0, 3)
    workload = jobs_of([0.0] * 3, work, 1, model_idx=[0, 1, 2], gpus_max=np.array([2, 2, 2]))
    bound_s = mean_completion_bound_s(workload, TableJobs(table), np.array([1, 2]))
    rate = np.concatenate([np.zeros((3, 2, 1)), np.stack([fast, slow], axis=1)], axis=2)
    optimum_s = least_mean_s(workload, rate, (1, 2))
    assert 0.4 * optimum_s < bound_s <= optimum_s + 1e-9
    # as if all three GPUs were fast ones
    one_type = replace(table, rate_per_s=table.rate_per_s[:1])
    assert bound_s >= mean_completion_bound_s(workload, TableJobs(one_type), np.array([3]))


def test_most_deadlines_by_hand() -> None:
    # One GPU, jobs of 10 s due at 15: one fits. Of a job that could never make it, none.
    workload = jobs_of([0, 0, 0], [10, 10, 99], 1, deadline_s=[15, 15, 15], gpus_max=np.array([1, 1, 1]))
    assert most_deadlines(workload, TableJobs(scaling_table()), 1) == 1
    assert most_deadlines(workload, TableJobs(scaling_table()), 2) == 2


def test_metrics_by_hand() -> None:
    workload = jobs_of([0, 10, 20], [300, 400, 100], [4, 8, 1], deadline_s=[90, 200, np.inf])
    workload.duration_s[:] = [100, 100, 100]
    metrics = job_metrics(run_of(workload, "fifo"))  # 0-100, 100-200, 200-300
    assert set(metrics) == set(JOB_METRICS)
    assert metrics["completion_mean_s"] == pytest.approx((100 + 190 + 280) / 3)
    assert metrics["makespan_s"] == 300
    assert metrics["deadline_satisfied_frac"] == 0.5
    assert metrics["gpu_hours"] == pytest.approx((400 + 800 + 100) / 3600)
    assert metrics["utilisation_allocated_mean_frac"] == pytest.approx(1300 / 2400)
    assert metrics["rho_max"] == pytest.approx(2.8)
    # active: job 0 0-100, job 1 10-200, job 2 20-300, on 8 GPUs: never more than GPUs, so no contention
    assert metrics["rho_contention_mean"] == pytest.approx((1.0 + 1.9 + 2.8) / 3)
    # 4 GPUs free while others wait from 10 on to 100, 7 free while none waits
    assert metrics["fragmentation_mean_frac"] == pytest.approx(4 * 90 / (8 * 300))


def test_isolated_fairness_by_hand() -> None:
    # Two jobs of 120 units on 8 GPUs; fifo gives the first 1 GPU (1/s), and 8 (4/s) to the second at 120 s.
    workload = jobs_of([0, 0], [120, 120], [1, 8])
    run = run_of(workload, "fifo")
    assert run.finish_s.tolist() == [120, 150]
    # active meanwhile: 2 for the first; 2 for 120 s and 1 for 30 s, 1.8 on average, for the second
    assert run.mean_active == pytest.approx([2, 1.8])
    model = TableJobs(scaling_table())
    isolated_s = model.alone_s(workload, run.total_gpus / run.mean_active)
    # alone on 4 GPUs: 3/s. 8 / 1.8 = 4.4, whole: 4
    assert isolated_s == pytest.approx([40, 40])
    # less than one GPU each, and jobs of fixed size that take turns
    assert model.alone_s(workload, np.array([0.5, 0.5])) == pytest.approx([240, 240])
    fixed = jobs_of([0, 0], [120, 120], [1, 8], scales=False)
    assert model.alone_s(fixed, np.array([4.0, 4.0])) == pytest.approx([120, 60])
    metrics = job_metrics(replace(run, isolated_s=isolated_s))
    assert metrics["rho_isolated_mean"] == pytest.approx((3 + 3.75) / 2)
    assert metrics["rho_isolated_max"] == pytest.approx(3.75)
    assert metrics["rho_isolated_unfair_frac"] == 1.0


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "elasticflow"])
def test_goodput_over_time_adds_up_to_the_work_that_was_done(policy: str) -> None:
    workload = random_jobs(4)
    workload.duration_s[:] = 100.0
    run = run_of(workload, policy, restart="flat(seconds_s=10)")
    edges_s = np.linspace(0, run.end_s + 1, 70)
    done = goodput_over_time(run, edges_s) * np.diff(edges_s) * run.total_gpus
    assert (done >= 0).all()
    assert done.sum() == pytest.approx((100.0 * workload.gpus_requested)[run.finished].sum())
    curves = curves_of_jobs(run, edges_s)
    held = curves.series["allocated_frac"] * np.diff(edges_s) * run.total_gpus
    assert held.sum() == pytest.approx(run.gpu_s.sum())
    assert curves.utilisation_frac.max() * curves.rows_most == pytest.approx(
        gpus_over_time(run, edges_s).max()
    )


def test_goodput_by_hand() -> None:
    # One job of 100 units, asked for 2 GPUs (1.8/s alone: 55.6 s), runs on 2 of 8 GPUs from 0 to 55.6 s.
    # What it declared is as wrong as it may be. Of the other there is nearly nothing; it comes half-way.
    workload = jobs_of([0, 50 / 1.8], [100, 1e-9], [2, 2])
    workload = replace(workload, declared_work=np.array([200.0, 1.0]))
    workload.duration_s[:] = workload.work / 1.8
    run = run_of(workload, "fifo")
    half = np.array([0.0, 50 / 1.8, 100 / 1.8, 1000.0])
    assert goodput_over_time(run, half) == pytest.approx([0.25, 0.25, 0.0])


def test_gpus_over_time_add_up() -> None:
    run = run_of(random_jobs(3), "tiresias", restart="flat(seconds_s=10)")
    edges_s = np.linspace(0, run.end_s, 50)
    held = gpus_over_time(run, edges_s) * np.diff(edges_s)
    assert held.sum(axis=1) == pytest.approx(run.gpu_s)
    assert edges_of(run)[0] == run.workload.submit_s[0]


def test_a_seed_gives_the_same_jobs_and_load_only_moves_them_apart() -> None:
    scenario = TRAINING_JOBS.load("elastic-training")
    assert scenario is not None
    first, again = build_training(scenario, 1), build_training(scenario, 1)
    denser = build_training(scenario, 1, 1.6)
    assert np.array_equal(first.workload.work, again.workload.work)
    assert np.array_equal(first.workload.work, denser.workload.work)
    assert first.offered_load == pytest.approx(0.8)
    assert denser.offered_load == pytest.approx(1.6)
    assert denser.workload.submit_s == pytest.approx(first.workload.submit_s / 2)


def test_estimates_are_off_by_a_factor_of_mean_1() -> None:
    scenario = TRAINING_JOBS.load("elastic-training")
    assert scenario is not None
    work = np.concatenate([build_training(scenario, s).workload.work for s in range(20)])
    declared = np.concatenate([build_training(scenario, s).workload.declared_work for s in range(20)])
    assert (declared / work).mean() == pytest.approx(1.0, abs=0.01)
    assert (declared / work).std() == pytest.approx(0.1, rel=0.05)


def test_jobs_of_a_trace_without_profiles_keep_their_gpus(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "a,0,4,100\nb,10,8,50\nc,20,1,30\n")
    comparison = run_comparison(TRAINING_KIND, scenario, ["fifo", "edf", "elasticflow"], jobs=1)
    assert [r.policy for r in comparison.results if r.metrics["finished_frac"].mean < 1] == []
    fifo = next(r for r in comparison.results if r.policy == "fifo")
    assert fifo.metrics["completion_mean_s"].mean == pytest.approx((100 + 140 + 160) / 3)
    assert fifo.metrics["usd"].mean == pytest.approx((400 + 400 + 30) / 3600 * 2)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ("a,0,1,10\na,5,1,10\n", "line 3, job_id: two jobs have the same id"),
        ("a,0,1,10\nb,5,1,0\n", "line 3, duration_s: has nothing to do"),
        ("a,0,0,10\n", "asks for no GPU"),
        ("a,-1,1,10\n", "submitted before the trace began"),
        ("a,0,1,ten\n", "line 2, duration: no value of duration_s"),
    ],
)
def test_bad_jobs_are_refused(tmp_path: Path, rows: str, what: str) -> None:
    scenario = scenario_of(tmp_path, rows)
    with pytest.raises(UsageError, match=what):
        run_comparison(TRAINING_KIND, scenario, ["fifo"], jobs=1)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("a,100,10,bert,50,8,1,5\n", "deadline before submission"),
        ("a,100,10,gpt,500,8,1,5\n", "a model without a profile.*gpt.csv"),
        ("a,100,10,bert,500,16,1,5\n", "a batch without a profile"),
    ],
)
def test_a_deadline_before_the_submission_and_a_model_without_a_profile_are_refused(
    tmp_path: Path, profiles: Path, row: str, what: str
) -> None:
    scenario = scenario_of(tmp_path, row, WITH_DEADLINES, profiles=profiles)
    with pytest.raises(UsageError, match=what):
        run_comparison(TRAINING_KIND, scenario, ["fifo"], jobs=1)


def test_unsorted_submissions_and_a_profile_of_one_point_are_fine(tmp_path: Path, profiles: Path) -> None:
    rows = "late,100,10,bert,150,8,1,5\nearly,0,20,bert,50,8,1,10\n"
    scenario = scenario_of(tmp_path, rows, WITH_DEADLINES, profiles=profiles)
    comparison = run_comparison(TRAINING_KIND, scenario, ["fifo", "elasticflow", "edf"], jobs=1)
    for result in comparison.results:
        assert result.metrics["deadline_satisfied_frac"].mean == 1.0


def test_jobs_wider_than_the_cluster_are_refused_or_left_out(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "a,0,64,100\nb,10,8,50\n")
    with pytest.raises(TraceError, match=r"jobs\.csv.*job a is wider.*64.*at most 8") as refused:
        build_training(scenario, 0)
    assert (refused.value.field, refused.value.exit_code) == ("gpus", 2)
    jobs = scenario.jobs.model_copy(update={"too_wide": "leave-out"})
    inputs = build_training(scenario.model_copy(update={"jobs": jobs}), 0)
    assert inputs.workload.job_ids == ("b",)
    assert "left out: 1 job wider than the 8 GPUs, such as a" in inputs.notes


def test_jobs_with_nothing_to_do_are_refused_or_left_out(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "a,0,8,100\nb,10,8,0\nc,20,1,0\n")
    told = r"line 3, duration_s: has nothing to do, as 1 other job .*got 0.*jobs\.zero: leave-out"
    with pytest.raises(TraceError, match=told):
        build_training(scenario, 0)
    jobs = scenario.jobs.model_copy(update={"zero": "leave-out"})
    inputs = build_training(scenario.model_copy(update={"jobs": jobs}), 0)
    assert inputs.workload.job_ids == ("a",)
    assert "left out: 2 jobs that have nothing to do" in inputs.notes


def test_trimtab_compare_takes_training_scenarios_too() -> None:
    comparison = trimtab.compare("elastic-training", ["fifo", "tiresias"], seeds=1, jobs=1)
    assert comparison.kind is not None
    assert {result.policy for result in comparison.results} == {"fifo", "tiresias"}
    assert comparison.scenario.name == "elastic-training"


def small_scenario(**changed: object) -> TrainingScenario:
    """Six jobs on two nodes of four GPUs."""
    values = {
        "kind": "training",
        "cluster": {
            "types": {"node": {"accelerators": 4, "memory_gib": 64}},
            "nodes": [{"type": "node", "count": 2}],
        },
        "jobs": {"generate": {"jobs": 6, "models": {"linear": {}}, "gpus": {1: 1, 4: 1}}, "load": 0.8},
        "seeds": 2,
        "policies": ["fifo", "tiresias"],
    } | changed
    return TRAINING_JOBS.parse(json.dumps(values), "small.yaml")


def test_at_another_load_faults_at_set_times_stretch_with_the_submissions() -> None:
    scenario = small_scenario(faults=[{"at_s": 600, "duration_s": 300}])
    plain = build_training(scenario, 0)
    twice = build_training(scenario, 0, 2.0 * plain.offered_load)
    assert np.ptp(twice.workload.submit_s) == pytest.approx(0.5 * np.ptp(plain.workload.submit_s))
    for inputs, times_s in ((plain, {600.0, 900.0}), (twice, {300.0, 450.0})):
        events, _ = node_faults(inputs.scenario, inputs.seed, inputs.stretch)
        assert {round(event.time_s, 6) for event in events} == times_s


def test_faults_of_a_scenario_take_nodes_away_and_lose_work() -> None:
    once = {"node": "node-1", "at_s": 600, "duration_s": 900}
    found = {}
    for name, faults in {
        "none": [],
        "fails": [once],
        "drained": [{**once, "planned": True}],
        "often": [{"mtbf_s": 2000, "mttr_s": 500}],
    }.items():
        rules = {"checkpoint_s": 1200} if name != "none" else {}
        result = run_comparison(TRAINING_KIND, small_scenario(faults=faults, rules=rules), jobs=1)
        found[name] = result.results[0].metrics
        assert found[name]["finished_frac"].mean == 1.0
    lost = {name: metrics["lost_frac"].mean for name, metrics in found.items()}
    assert lost["none"] == lost["drained"] == 0.0
    assert lost["fails"] > 0.0
    assert lost["often"] > 0.0
    slower = [found[name]["makespan_s"].mean for name in ("none", "fails")]
    assert slower[0] < slower[1]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ({"node": "node-9", "at_s": 1, "duration_s": 1}, "node-9"),
        ({"at_s": 1, "duration_s": 1, "factor": 0.5}, "do not slow down"),
        ({"at_s": 1}, "at_s and duration_s"),
    ],
)
def test_faults_that_can_not_be_are_refused(fault: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        small_scenario(faults=[fault])


def test_quotas_of_a_scenario_hold_and_hold_back() -> None:
    generate = {"jobs": 12, "models": {"linear": {}}, "gpus": {1: 1, 4: 1}, "tenants": {"a": 3, "b": 1}}
    jobs = {"generate": generate, "load": 1.5}
    free = build_training(small_scenario(jobs=jobs), 0)
    held = build_training(small_scenario(jobs=jobs, quotas={"a": 4}), 0)
    assert set(free.workload.tenant_idx) == {0, 1}
    alone = build_training(small_scenario(jobs={"generate": generate | {"tenants": {}}, "load": 1.5}), 0)
    assert np.array_equal(free.workload.work, alone.workload.work)  # tenants change nothing else
    assert held.quota_gpus.tolist() == [4, np.inf]
    of_a = held.workload.tenant_idx == 0
    assert held.workload.gpus_max[of_a].max() == 4
    runs = [TRAINING_KIND.run(inputs, "fifo", "interpreted") for inputs in (free, held)]
    assert all(run.finished.all() for run in runs)
    last_s = [run.finish_s[of_a].max() for run in runs]
    assert last_s[0] < last_s[1]


@pytest.mark.parametrize(
    ("quotas", "what"),
    [
        ({"c": 4}, r"quotas: no such tenant.*'a'"),
        ({"a": 2}, r"quotas\.a: job job-. asks for 4 GPUs"),
        ({"a": 0}, "quotas.a"),
    ],
)
def test_quotas_that_can_not_be_are_refused(quotas: dict[str, int], what: str) -> None:
    generate = {"jobs": 12, "models": {"linear": {}}, "gpus": {4: 1}, "tenants": {"a": 3, "b": 1}}
    with pytest.raises(UsageError, match=what):
        build_training(small_scenario(jobs={"generate": generate}, quotas=quotas), 0)
