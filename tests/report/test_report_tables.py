from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from rich.table import Table

from support.synthetic import POLICIES, comparison, metrics_of
from trimtab.errors import UsageError
from trimtab.metrics import METRICS
from trimtab.metrics.definitions import TOKEN_HEADLINE
from trimtab.policies import describe, names
from trimtab.report.terminal_tables import (
    comparison_table,
    metrics_table,
    policies_table,
    run_table,
    trace_table,
)
from trimtab.traces import summarise


def lines_of(table: Table, width: int) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def text_of(table: Table, width: int = 200) -> str:
    return "\n".join(line.rstrip() for line in lines_of(table, width))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 129, 130, 160, 200])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    lines = lines_of(comparison_table(comparison(), width=width), width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_wider_terminals_show_more_columns() -> None:
    table = comparison()
    columns = [len(comparison_table(table, width=width).columns) for width in (60, 80, 120, 200)]
    assert columns == sorted(columns)
    assert columns[0] >= 2
    headline = [metric.name for metric in METRICS.values() if metric.headline]
    assert columns[-1] == 2 + len(headline) + len(TOKEN_HEADLINE)  # policy, distance


def test_rows_are_sorted_best_first() -> None:
    table = comparison()
    text = text_of(comparison_table(table, "slo_attained_frac", width=200))
    ranked = [result.policy for result in table.ranked("slo_attained_frac")]
    assert [
        line.split()[0] for line in text.splitlines() if line.split()[:1] and line.split()[0] in POLICIES
    ] == ranked


def test_best_and_undecided_are_marked_without_colour() -> None:
    table = comparison(("random", "least-expected-wait"))
    best = table.ranked()[0]
    mean = best.metrics["completion_mean_s"].mean
    text = text_of(comparison_table(table, metrics=["completion_mean_s"]))
    marked = [line for line in text.splitlines() if line.endswith("*")]
    assert len(marked) == 1
    assert marked[0].startswith(best.policy)
    assert f"{mean:.1f}" in marked[0]


def test_the_caption_tells_the_bound_and_what_it_assumes() -> None:
    text = text_of(comparison_table(comparison()))
    assert "Lower bound on mean completion: 11.20 ± 0.20 s (B1 Lagrangian)." in text
    assert "It assumes: no preemption; true service times." in text
    assert "Offered load: 80 % of" in text


def test_the_distance_is_left_out_where_no_bound_holds() -> None:
    text = text_of(comparison_table(comparison(bounded=False)))
    assert "above" not in text
    assert "No lower bound holds" in text


def test_a_single_seed_has_no_intervals() -> None:
    text = text_of(comparison_table(comparison(seeds=(3,))))
    assert "±" not in text.partition("Lower bound")[0]
    assert "One seed" in text


def test_chosen_metrics_are_exactly_the_columns() -> None:
    table = comparison_table(comparison(), metrics=["makespan_s", "retries"], width=40)
    assert [str(column.header).split("\n")[0] for column in table.columns] == [
        "policy",
        "makespan",
        "retries",
    ]


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="completion_mean_s"):
        comparison_table(comparison(), metrics=["completion_mean"])
    with pytest.raises(UsageError, match="no such metric"):
        comparison_table(comparison(), sort="speed")


def test_names_are_text_and_never_markup() -> None:
    text = text_of(comparison_table(comparison(("[bold]mine[/bold]", "random"))))
    assert "[bold]mine[/bold]" in text


def test_a_run_shows_every_defined_metric() -> None:
    text = text_of(run_table("a run", metrics_of(1, 0, 0.8), 11.5))
    assert "deadline satisfied" not in text  # nan in the synthetic runs
    assert sum(line.startswith("  ") for line in text.splitlines()) == len(
        METRICS
    )  # less one, plus the bound
    assert "11.50" in text.partition("Lower bound")[2]


def test_policies_and_metrics_are_all_listed() -> None:
    policies = text_of(policies_table([describe(name) for name in names()]), 160)
    metrics = text_of(metrics_table(METRICS.values()), 160)
    assert all(name in policies for name in names())
    assert all(name in metrics for name in METRICS)


def test_narrow_terminals_show_no_sources() -> None:
    described = [describe(name) for name in names()]
    assert [len(policies_table(described, width).columns) for width in (40, 80, 160)] == [1, 3, 4]
    narrow = text_of(policies_table(described, 40), 40)
    assert all(each.idea.split()[-1] in narrow for each in described)


def test_a_trace_shows_its_rate_and_what_is_undefined() -> None:
    table = pl.DataFrame({"arrival_s": np.arange(11.0), "size": np.full(11, 2.0), "class": ["chat"] * 11})
    text = text_of(trace_table(summarise(table)))
    rows = {line[:40].split("  ")[1].strip(): line for line in text.splitlines() if line.startswith("  ")}
    assert "1 " in rows["rate"]
    assert "–" in rows["peak rate, 60 s windows"]
    assert "100" in rows["chat"]
    assert "tenant" in text
