"""A policy that serves nothing, or too little, is warned about and stands nowhere."""

from __future__ import annotations

from typing import Any

import pytest

import trimtab as tt
from trimtab.metrics import METRICS, served_frac
from trimtab.report.comparison_columns import legend, metric_column, shown_name
from trimtab.report.comparison_page import comparison_page
from trimtab.report.paired import Verdict


class HoldsAll(tt.Policy):
    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        return 0


class RejectsSome(tt.Policy):
    """Serves most requests in no time, by rejecting the large ones."""

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = work.serial % 2
        return -6 if work.units > 20 else 1


@pytest.fixture(scope="module")
def compared() -> tt.Comparison:
    return tt.compare("tiny", [HoldsAll, RejectsSome, "round-robin", "random"], 2, sweep=(), jobs=1)


def test_a_run_that_serves_nothing_says_so() -> None:
    run = tt.simulate("tiny", HoldsAll)
    assert any("HoldsAll served nothing" in note for note in run.notes())
    assert run.to_dict()["served_frac"] == 0.0
    assert tt.simulate("tiny", "round-robin").notes() == []


def test_too_few_served_have_no_rank(compared: tt.Comparison) -> None:
    assert [r.is_ranked for r in compared.results] == [False, False, True, True]
    assert {r.policy for r in compared.ranked()[:2]} == {"round-robin", "random"}


@pytest.mark.parametrize("metric", ["utilisation_var", "completion_mean_s"])
def test_too_few_served_have_no_star(compared: tt.Comparison, metric: str) -> None:
    column = metric_column(compared.results, METRICS[metric])
    comparisons = [cell.verdict for cell in column.cells]
    assert comparisons[:2] == [Verdict.NONE, Verdict.NONE]
    assert Verdict.BEST in comparisons[2:]


def test_tables_page_and_json_say_which(compared: tt.Comparison) -> None:
    assert [shown_name(r) for r in compared.results][::3] == ["HoldsAll †", "random"]
    assert "† no rank" in legend(compared)
    page = comparison_page(compared)
    assert "HoldsAll served nothing" in page
    told = compared.to_dict()
    assert [r["is_ranked"] for r in told["results"]] == [False, False, True, True]
    assert any("RejectsSome served" in note for note in told["notes"])


def test_what_no_node_can_serve_and_what_a_horizon_cuts_off_does_not_count() -> None:
    metrics = {"finished_frac": 0.9, "rejected_fits_no_node_frac": 0.1, "unfinished_frac": 0.0}
    assert served_frac(metrics) == pytest.approx(1.0)
    cut_off = {"finished_frac": 0.9, "rejected_fits_no_node_frac": 0.0, "unfinished_frac": 0.1}
    assert served_frac(cut_off) == pytest.approx(0.9)
    assert served_frac(cut_off, ends_early=True) == pytest.approx(1.0)
    nothing = {"finished_frac": 0.0, "rejected_fits_no_node_frac": 0.0, "unfinished_frac": 1.0}
    assert served_frac(nothing, ends_early=True) == 0.0
