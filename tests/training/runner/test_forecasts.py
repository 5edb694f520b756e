"""When jobs will end: what a rollout says is what can be worked out by hand."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest

from support.train_runs import decider_of, job, jobs_text, train
from trimtab.training.runner.forecasts import Forecasts
from trimtab.training.runner.job_list import job_list_of
from trimtab.training.runner.rank_protocol import read_report
from trimtab.training.runner.run_ledger import KnownRun, RunSettings
from trimtab.training.runner.run_recording import forecast_error_frac
from trimtab.training.runner.train_jobs import decisions_of
from trimtab.training.runner.train_reports import run_summary

NEW, NONE = np.zeros(0, np.int64), []


def run_of(policy: str) -> KnownRun:
    """Two jobs that run at 20 samples a second, one after the other; a third comes much later."""
    jobs = (
        job(id, samples, gpus=2, samples_per_s={1: 10, 2: 20}, submit_s=submit_s)
        for id, samples, submit_s in (("a", 800, 0.0), ("b", 400, 0.0), ("later", 8000, 1e6))
    )
    listed = job_list_of(jobs_text(*jobs, nodes={"x": 2}, restart_s=5), "jobs.yaml", Path())
    return KnownRun("", RunSettings(policy, {"x": 2}, "test"), listed)


def test_a_rollout_counts_restarts_queues_and_what_is_done() -> None:
    run = run_of("fifo")
    made = decisions_of(run)
    forecasts = Forecasts(run, made)
    assert not forecasts.is_due(0.0)  # nobody has come
    decider_of(run, made)(0.0)
    assert forecasts.is_due(0.0)
    asyncio.run(forecasts.look(0.0, NEW))
    first = [5 + 40.0, 5 + 40.0 + 5 + 20.0]
    assert made.end_s[:2].tolist() == pytest.approx(first)
    assert math.isnan(made.end_s[2])
    assert [made.expected_end_s(k, 10.0) for k in (0, 1)] == pytest.approx(first)
    made.done.work[0] = 400  # at 100 s; it runs, so it is charged nothing
    asyncio.run(forecasts.look(100.0, np.array([0])))
    assert made.end_s[:2].tolist() == pytest.approx([100 + 20.0, 100 + 20.0 + 5 + 20.0])
    assert made.admission_end_s[:2].tolist() == pytest.approx(first)


def test_the_shorter_job_goes_first_where_the_policy_says_so() -> None:
    run = run_of("srtf")
    made = decisions_of(run)
    decider_of(run, made)(0.0)
    asyncio.run(Forecasts(run, made).look(0.0, NEW))
    assert made.end_s[:2].tolist() == pytest.approx([5 + 20.0 + 5 + 40.0, 5 + 20.0])


def test_a_rollout_is_made_when_something_changed_or_some_seconds_went_by() -> None:
    run = run_of("fifo")
    made = decisions_of(run)
    forecasts = Forecasts(run, made)
    decider_of(run, made)(0.0)
    asyncio.run(forecasts.look(0.0, NEW))
    assert not forecasts.is_due(9.0)
    assert forecasts.is_due(1000.0)
    asyncio.run(forecasts.look(1000.0, NEW))
    made.wanted[0] = 0
    assert forecasts.is_due(1009.0)


def test_errors_count_jobs_that_were_predicted_and_measured() -> None:
    pairs = [(12.0, 10.0), (9.0, 10.0), (math.nan, 10.0), (10.0, math.nan)]
    assert forecast_error_frac(pairs) == pytest.approx(0.15)
    assert math.isnan(forecast_error_frac(pairs[2:]))


def test_a_run_tells_what_was_predicted_and_how_far_off_it_was(tmp_path: Path) -> None:
    run = train(tmp_path, "fifo", job("fit", 400, "--step-s", 0.02, samples_per_s={1: 390}))
    told = run.recording.jobs[0]
    assert told.predicted_s > 400 / 390
    error = abs(told.predicted_s / told.completion_s - 1.0)
    assert run.recording.forecast_error_frac == pytest.approx(error)
    shown = run_summary(tmp_path, run.run_id)
    assert shown["jobs"][0]["predicted_s"] == pytest.approx(told.predicted_s)
    assert shown["jobs"][0]["completion_s"] == pytest.approx(told.completion_s, abs=0.1)
    assert shown["recording"]["forecast_error_frac"] == pytest.approx(error)
    json.dumps(shown, allow_nan=False)


def test_a_job_whose_batch_adapts_is_forecast_by_goodput(tmp_path: Path) -> None:
    batch = {"min": 8, "max": 64}
    run = train(
        tmp_path, "pollux", job("fit", 400, "--step-s", 0.01, batch=batch), clock="rounds(period_s=1)"
    )
    assert run.state == "done"
    assert run.recording.jobs[0].simulated_s < 400 / 8


def test_a_job_of_unknown_speed_has_no_forecast_until_it_reports() -> None:
    job_list = jobs_text(job("new", 800), nodes={"x": 1}, restart_s=5)
    run = KnownRun("", RunSettings("fifo", {"x": 1}, "test"), job_list_of(job_list, "jobs.yaml", Path()))
    made = decisions_of(run)
    forecasts = Forecasts(run, made)
    decider_of(run, made)(0.0)
    asyncio.run(forecasts.look(0.0, NEW))
    assert math.isnan(made.admission_end_s[0])
    assert math.isinf(made.expected_end_s(0, 0.0))
    made.speed.report(
        0, 1, 1, made.speed.plan(0, 1, 1, 0, 0.0), read_report(b'{"step": 1, "samples": 8, "step_s": 0.5}')
    )
    made.done.work[0] = 8
    asyncio.run(forecasts.look(6.0, np.array([0])))
    assert made.admission_end_s[0] == pytest.approx(6.0 + 792 / 16)
