"""Comparing is generic: a second kind of work goes through all of it, from processes to the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from support.job_shop import JobShop, Shop
from trimtab.errors import UsageError
from trimtab.experiments.compare import Comparison, Interrupted, PlannedRuns, RunsDone, run_comparison
from trimtab.metrics import mean_ci95, paired_difference_ci95
from trimtab.report.comparison_columns import Cell, distance_column, metric_column
from trimtab.report.comparison_page import comparison_page
from trimtab.report.notebook import comparison_html
from trimtab.report.paired import Verdict
from trimtab.report.results_folder import write_results
from trimtab.report.terminal_tables import comparison_table

KIND = JobShop()
SHORTEST, LONGEST = "shortest-first", "longest-first"


@pytest.fixture(scope="module")
def found() -> Comparison:
    return run_comparison(KIND, Shop(), jobs=2)


def test_processes_give_what_one_alone_gives(found: Comparison) -> None:
    alone = run_comparison(KIND, Shop(), jobs=1)
    assert [r.policy for r in found.results] == [SHORTEST, LONGEST]
    assert [r.metrics for r in alone.results] == [r.metrics for r in found.results]
    assert (found.n_items, found.seeds) == (60, (0, 1, 2, 3))


def test_statistics_are_paired_over_seeds(found: Comparison) -> None:
    by_policy = {r.policy: [run.metrics["flow_mean_s"] for run in r.runs] for r in found.results}
    assert found.results[0].metrics["flow_mean_s"] == mean_ci95(by_policy[SHORTEST])
    assert found.ranked()[0].policy == SHORTEST
    best, other = metric_column(found.results, KIND.metrics["flow_mean_s"]).cells
    assert (best.verdict, other.verdict) == (Verdict.BEST, Verdict.BEHIND)
    difference = paired_difference_ci95(by_policy[LONGEST], by_policy[SHORTEST])
    assert difference.ci95 is not None
    assert difference.mean > difference.ci95
    assert isinstance(other, Cell)
    assert other.remark


def test_the_bound_is_of_the_kinds_objective(found: Comparison) -> None:
    bound = found.bound
    assert bound["method"] == "no waiting"
    assert 0 < bound["flow_mean_s"] < found.results[0].metrics["flow_mean_s"].mean
    column = distance_column(found.results)
    assert column is not None
    assert all(cell.value > 0 for cell in column.cells)


def test_an_interrupted_comparison_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: JobShop, inputs: Any, policy: Any, mode: str) -> Any:
        ran.append(policy)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return run(self, inputs, policy, mode)

    ran: list[str] = []
    run = JobShop.run
    with monkeypatch.context() as patched:
        patched.setattr(JobShop, "run", fails)
        with pytest.raises(Interrupted) as interrupted:
            run_comparison(KIND, Shop(), out=tmp_path, jobs=1)
    left = interrupted.value
    assert (left.done, left.total) == (3, 8)
    assert left.finished.seeds == (0,)  # which both policies have run
    alone = run_comparison(KIND, Shop(seeds=(0,)), jobs=1)
    assert [r.metrics for r in left.finished.results] == [r.metrics for r in alone.results]
    assert str(tmp_path) in left.__notes__[0]
    seen: list[RunsDone] = []
    done = run_comparison(KIND, Shop(seeds=(0, 1)), out=tmp_path, jobs=1, progress=seen.append)
    assert [(told.done, told.total) for told in seen] == [(3, 4), (3, 4), (4, 4)]
    assert [told.running for told in seen] == [(), (f"{LONGEST}, seed 1",), ()]
    write_results(done, tmp_path, with_report=False)
    assert not any(path.name.startswith(".unfinished") for path in tmp_path.iterdir())


def test_before_it_begins_a_comparison_tells_what_it_will_run() -> None:
    told: list[PlannedRuns] = []
    run_comparison(KIND, Shop(jobs=2000), jobs=1, planned=told.append)
    (plan,) = told
    assert str(plan).startswith("2 policies × 4 seeds × 1 load of 2,000 jobs: about ")
    assert plan.elapsed_s > 0
    # a duration and an end of 8 bytes each, which do not compress
    assert plan.disk_bytes == pytest.approx(2 * 4 * 2000 * 16, rel=0.5)
    run_comparison(KIND, Shop(jobs=60), jobs=1, planned=told.append)
    assert str(told[-1]) == "2 policies × 4 seeds × 1 load of 60 jobs"  # too little to measure


def test_a_large_comparison_sweeps_only_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        JobShop, "sweep_loads", lambda self, settings, wanted: (0.5,) if wanted is None else wanted
    )
    told: list[PlannedRuns] = []
    for jobs, sweep in ((1000, None), (1001, None), (1001, (0.7,))):
        run_comparison(KIND, Shop(jobs=jobs, seeds=(0,)), jobs=1, sweep=sweep, planned=told.append)
    assert [(plan.loads, plan.left_out) for plan in told] == [(2, ()), (1, (0.5,)), (2, ())]


def test_other_settings_do_not_go_on_from_there(tmp_path: Path) -> None:
    run_comparison(KIND, Shop(), out=tmp_path, jobs=1)
    seen: list[RunsDone] = []
    run_comparison(KIND, replace(Shop(), jobs=30), out=tmp_path, jobs=1, progress=seen.append)
    assert seen[0].done == 0


def test_results_report_and_records_are_written(tmp_path: Path) -> None:
    found = run_comparison(KIND, Shop(), out=tmp_path, jobs=1)
    names = [file.path.name for file in write_results(found, tmp_path).files]
    assert names == ["report.html", "results.json", "comparison.csv", "jobs"]
    told = json.loads((tmp_path / "results.json").read_text())
    assert (told["scenario"], told["jobs"], told["notes"]) == ("shop", 60, ["0 jobs took very long"])
    assert told["results"][0]["per_seed"][3]["metrics"].keys() == KIND.metrics.keys()
    table = pl.read_parquet(tmp_path / "jobs" / LONGEST / "seed-3.parquet")
    np.testing.assert_array_equal(table["duration_s"], KIND.build(Shop(), 3, None).duration_s)
    page = (tmp_path / "report.html").read_text()
    assert "2 policies on the same jobs, seed by seed." in page
    assert "Mean flow time" in page


@pytest.mark.parametrize("word", ["completion_mean_s", "requests"])
def test_tables_and_page_say_nothing_of_serving(found: Comparison, word: str) -> None:
    console = Console(width=120, record=True)
    console.print(comparison_table(found))
    written = console.export_text() + comparison_html(found) + repr(found)
    assert "Lower bound on mean flow time" in written
    body = comparison_page(found).partition("<body")[2].partition("<script")[0]
    assert "<table" in body
    assert word not in written + body


def test_unknown_policies_and_metrics_are_refused(found: Comparison) -> None:
    with pytest.raises(UsageError, match="no such allocator"):
        run_comparison(KIND, Shop(), "random")
    with pytest.raises(UsageError, match="flow_mean_s"):
        found.ranked("completion_mean_s")
