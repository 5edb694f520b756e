"""Performance models against formulas that they should find, and errors by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.training_runs import LEVELS, jobs_of, scaling_table
from trimtab.domain.training_jobs import configs, gpu_nodes
from trimtab.errors import UsageError
from trimtab.training.job_models import TableJobs
from trimtab.training.performance.estimated_table import CURVE_MODELS, estimated_table, with_speeds
from trimtab.training.performance.job_metadata import JobMetadata
from trimtab.training.performance.optimus_convergence import LossCurve, fit_loss
from trimtab.training.performance.profiled_runs import (
    ProfiledRuns,
    Samples,
    held_back_error,
    percentage_error,
)
from trimtab.training.performance.task_graphs import (
    OPERATORS,
    GpuRates,
    Step,
    graph_features,
    roofline_seconds,
    step_seconds,
    task_samples,
)
from trimtab.training.performance.throughput_formulas import OptimusSpeed, PolluxThroughput
from trimtab.training.training_loop import run_allocator


def samples(seconds, **columns) -> Samples:
    return Samples({name: np.asarray(column) for name, column in columns.items()}, np.asarray(seconds, float))


def test_the_error_is_the_mean_share_of_the_measured() -> None:
    # off by 10 % and by 30 %; what can't be told does not count
    assert percentage_error(np.array([1.1, 0.7, np.nan]), np.array([1.0, 1.0, 5.0])) == pytest.approx(0.2)
    assert np.isnan(percentage_error(np.array([np.nan]), np.array([1.0])))


def test_profiled_runs_follow_powers_between_and_beyond_their_points() -> None:
    gpus = np.array([1, 2, 4, 8, 16])
    rows = samples(12.0 * gpus**-0.5, gpus=gpus, curve=[0] * 5)
    assert held_back_error(ProfiledRuns(), rows, np.isin(gpus, [2, 16])) == pytest.approx(0.0, abs=1e-12)
    fitted = ProfiledRuns().fit(rows)
    assert np.isnan(fitted.seconds(samples([1.0], gpus=[1], curve=[7]))).all()
    # two runs of one size count as their geometric mean; one point is a constant
    twice = ProfiledRuns().fit(samples([2.0, 8.0], gpus=[1, 1], curve=[0, 0]))
    assert twice.seconds(samples([np.nan], gpus=[4], curve=[0])) == pytest.approx([4.0])


def test_optimus_finds_the_formula_that_made_its_rows() -> None:
    gpus, batch = (a.ravel() for a in np.meshgrid([1, 2, 4, 8, 16, 32], [64, 256]))
    seconds = 0.01 * batch / gpus + 0.2 + 0.03 * gpus
    rows = samples(seconds, gpus=gpus, batch=batch, curve=np.zeros(len(gpus)))
    assert OptimusSpeed().fit(rows).theta[0.0,] == pytest.approx([0.01, 0.2, 0.03])
    assert held_back_error(OptimusSpeed(), rows, gpus > 8) == pytest.approx(0.0, abs=1e-9)
    # a term that would have to be negative is none
    falling = samples([1.0, 0.2, 0.01], gpus=[1, 2, 4], batch=[8, 8, 8], curve=[0, 0, 0])
    assert (OptimusSpeed().fit(falling).theta[0,] >= 0).all()


def test_a_loss_of_optimus_form_is_found_and_converges_where_it_should() -> None:
    truth = LossCurve(slope=0.02, start=0.5, floor=0.3)
    steps = np.arange(1.0, 400.0, 7.0)
    found = fit_loss(steps, truth.loss(steps))
    later = np.array([1000.0, 5000.0])
    assert found.loss(later) == pytest.approx(truth.loss(later), rel=0.03)
    k = truth.steps_to_converge(0.01, window=50)
    fall = truth.loss(np.array([k])) - truth.loss(np.array([k + 50]))
    assert fall == pytest.approx([0.01])
    assert truth.steps_to_converge(1e9, 50) == 0
    for losses in ([1.0, 0.5], [1.0, 0.5, -0.1], [1.0, np.nan, 0.5]):
        with pytest.raises(UsageError):
            fit_loss(np.arange(len(losses)) * 1.0, np.array(losses))


def test_metadata_learn_a_product_of_powers_and_factors() -> None:
    rng = np.random.default_rng(1)
    n = 300
    model, gpu = rng.choice(["a", "b", "c"], n), rng.choice(["x", "y"], n)
    batch, gpus = rng.choice([8, 16, 32, 64], n), rng.choice([1, 2, 4, 8], n)
    factor = np.select([model == "a", model == "b"], [1.0, 20.0], 0.3) * np.where(gpu == "x", 1.0, 3.0)
    rows = samples(factor * batch**0.9 * gpus**-0.6, model=model, gpu=gpu, batch=batch, gpus=gpus)
    metadata = JobMetadata(("batch", "gpus"), ("model", "gpu"), ridge=1e-6)
    assert held_back_error(metadata, rows, np.arange(n) % 5 == 0) < 1e-3
    # beyond what was seen: as at its edge
    fitted = metadata.fit(rows)
    edge, far = (
        fitted.seconds(samples([1.0], model=["a"], gpu=["x"], batch=[b], gpus=[1])) for b in (64, 640)
    )
    assert edge == far


def test_features_of_a_graph_by_hand() -> None:
    # a → b → d, a → c → d
    edges = [("a", "b", 10.0), ("a", "c", 20.0), ("b", "d", 1.0), ("c", "d", 2.0)]
    rows = task_samples(dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", "k"), edges)
    assert rows.columns["in_degree"].tolist() == [1, 2, 2, 3]
    assert rows.columns["out_degree"].tolist() == [3, 2, 2, 1]
    assert rows.columns["in_bytes"].tolist() == [1, 11, 21, 4]
    assert rows.columns["depth"].tolist() == [1, 2, 2, 3]


def test_seconds_that_follow_bytes_are_found_from_the_graph() -> None:
    rng = np.random.default_rng(2)
    names = [f"t{i}" for i in range(80)]
    edges = [
        (names[i], names[j], float(rng.uniform(1, 1e6))) for i in range(80) for j in range(i + 1, 80, 17)
    ]
    flow = {name: 1.0 + sum(s for _, t, s in edges if t == name) for name in names}
    seconds = {name: 1e-6 * flow[name] ** 0.7 for name in names}
    rows = task_samples(seconds, dict.fromkeys(names, "k"), edges)
    assert held_back_error(graph_features(), rows, np.arange(80) % 4 == 1) < 0.05


def test_steps_are_sums_of_their_operators() -> None:
    size = np.array([1.0, 4.0, 16.0] * 2)
    name = np.array(["matmul"] * 3 + ["norm"] * 3)
    curves = OPERATORS.fit(samples(np.append(2.0 * size[:3], 5.0 + 0 * size[:3]), operator=name, size=size))
    step = Step(("matmul", "norm"), (8.0, 8.0), (3, 2))
    assert step_seconds(curves, [step]) == pytest.approx([3 * 16 + 2 * 5])
    assert np.isnan(step_seconds(curves, [Step(("conv",), (8.0,), (1,))])).all()
    gpu = GpuRates(flop_per_s=100.0, bytes_per_s=10.0)
    assert roofline_seconds(1000.0, 10.0, gpu) == 10.0  # arithmetic
    assert roofline_seconds(100.0, 100.0, gpu) == 10.0  # memory


def test_pollux_model_predicts_placements_that_its_form_made() -> None:
    rows = [(n, n * k, b) for n in (1, 2, 4) for k in (1, 2, 4) for b in (8, 32, 128)]
    nodes, gpus, local = (np.array(c, float) for c in zip(*rows, strict=True))
    grad_s = 0.05 + 0.002 * local
    sync_s = np.where(gpus == 1, 0, np.where(nodes > 1, 0.1 + 0.01 * (gpus - 2), 0.03 + 0.002 * (gpus - 2)))
    step_s = (grad_s**2 + sync_s**2) ** 0.5
    made = samples(
        step_s, nodes=nodes, gpus=gpus, local_batch=local, grad_s=grad_s, curve=np.zeros(len(gpus))
    )
    assert held_back_error(PolluxThroughput(), made, np.arange(len(rows)) % 4 == 1) < 0.05


@pytest.mark.parametrize("name", CURVE_MODELS)
def test_allocators_see_predictions_and_jobs_run_as_measured(name: str) -> None:
    table = scaling_table()
    estimate = estimated_table(table, name, (1, 2))
    assert (estimate.rate_per_s[:, :, :2] == table.rate_per_s[:, :, :2]).all()
    assert (estimate.rate_per_s[:, :, 2:] != table.rate_per_s[:, :, 2:]).all()
    workload = jobs_of([0, 0], [100, 300], [1, 1], model_idx=[0, 2])
    model = TableJobs(table, estimate=estimate)
    truth = model.truth()
    speed = truth.begin(workload)
    jobs = np.zeros(1, [("job_idx", "i8")])
    assert speed.goodput(jobs, configs(LEVELS)) == pytest.approx(estimate.rate_per_s[0, 0])
    nodes = gpu_nodes(0, [4, 4])
    run = run_allocator("fifo", workload, nodes=nodes, type_names=("any",), truth=model.truth())
    assert run.finish_s == pytest.approx([100, 300])


def test_a_curve_that_was_not_profiled_there_is_at_its_least_count() -> None:
    table = scaling_table()
    rate = table.rate_per_s.copy()
    rate[0, 1, :2] = 0  # runs with 4 and 8 GPUs only
    estimate = estimated_table(replace(table, rate_per_s=rate), "profiled-runs", (1, 2))
    assert estimate.rate_per_s[0, 1].tolist() == pytest.approx([0, 0, 3.6, 3.6])


def test_given_speeds_stand_in_for_those_of_their_model_and_batch() -> None:
    table = scaling_table()
    given = replace(table, levels=np.array([1, 2, 4]), rate_per_s=np.full((1, 3, 3), 7.0))
    names = ("sublinear", "good", "falling")
    found = with_speeds(table, names, given, ("other", "good", "more"))
    assert found is not None
    assert found.rate_per_s[0, 1].tolist() == [7, 7, 7, 6.4]
    assert (found.rate_per_s[0, ::2] == table.rate_per_s[0, ::2]).all()
    assert with_speeds(table, names, given, ("x", "y", "z")) is None
