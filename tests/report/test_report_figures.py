from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.synthetic import POLICIES, comparison, random_curves
from trimtab.metrics import Estimate
from trimtab.report.data_figures import arrival_rate, size_histogram
from trimtab.report.figure_parts import inks, log_ticks
from trimtab.report.policy_figures import load_lines, metric_bars, trade_off
from trimtab.report.time_figures import completion_cdf, latency_over_time, queue_length, utilisation_heatmap

CURVES = {policy: random_curves(i, 8, 30) for i, policy in enumerate(POLICIES)}


def by_name(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def test_bars_are_the_means_best_on_top() -> None:
    table = comparison()
    figure = metric_bars(table, "completion_mean_s")
    ranked = table.ranked("completion_mean_s")[::-1]  # plotly draws the first at the bottom
    assert [y.replace("<br>", "") for y in figure.data[0].y] == [r.policy for r in ranked]
    np.testing.assert_allclose(
        figure.data[0].x, [r.metrics["completion_mean_s"].mean for r in ranked], rtol=1e-6
    )
    np.testing.assert_allclose(
        figure.data[0].error_x.array, [r.metrics["completion_mean_s"].ci95 for r in ranked], rtol=1e-6
    )


def test_the_bound_is_a_line_where_it_is_a_bound_of_the_metric() -> None:
    table = comparison()
    lines = metric_bars(table, "completion_mean_s").layout.shapes
    assert [line.x0 for line in lines] == pytest.approx([table.bound["completion_mean_s"]])
    assert not metric_bars(table, "queueing_mean_s").layout.shapes
    assert not metric_bars(comparison(bounded=False), "completion_mean_s").layout.shapes


def test_shares_are_drawn_in_percent() -> None:
    table = comparison()
    figure = metric_bars(table, "slo_attained_frac")
    best = table.ranked("slo_attained_frac")[0].metrics["slo_attained_frac"].mean
    assert figure.data[0].x[-1] == pytest.approx(100 * best, rel=1e-6)
    assert "%" in figure.layout.xaxis.title.text


def test_all_zero_metrics_have_an_axis() -> None:
    assert tuple(metric_bars(comparison(), "rejected_frac").layout.xaxis.range) == (0, 1)


def test_a_policy_has_the_same_colour_and_dash_in_every_figure() -> None:
    table, own = comparison(), inks(POLICIES)
    for figure in (completion_cdf(CURVES), queue_length(CURVES), load_lines(table, "completion_p99_s")):
        for policy, trace in by_name(figure).items():
            assert (trace.line.color, trace.line.dash) == (own[policy].colour, own[policy].dash)
    bars = metric_bars(table, "completion_mean_s").data[0]
    colours = dict(zip((y.replace("<br>", "") for y in bars.y), bars.marker.line.color, strict=True))
    assert colours == {policy: own[policy].colour for policy in POLICIES}


def test_cdf_draws_the_quantiles_and_leaves_out_zeros_on_its_log_axis() -> None:
    curve = random_curves(0, 2, 5)
    curve.completion_s[:3] = 0.0
    figure = completion_cdf({"random": curve})
    assert figure.layout.xaxis.type == "log"
    assert np.isnan(figure.data[0].x[:3]).all()
    np.testing.assert_allclose(figure.data[0].x[3:], curve.completion_s[3:], rtol=1e-6)
    np.testing.assert_allclose(figure.data[0].y, curve.quantile_frac, rtol=1e-6)


def test_a_run_that_finished_nothing_still_has_figures() -> None:
    curve = random_curves(0, 2, 5)
    curve.completion_s[:] = np.nan
    assert np.isnan(completion_cdf({"random": curve}).data[0].x).all()


def test_queue_is_drawn_at_the_middle_of_each_bin_in_a_suitable_unit() -> None:
    figure = queue_length({"random": random_curves(0, 2, 30)})  # an hour
    assert figure.layout.xaxis.title.text == "time (min)"
    assert figure.data[0].x[0] == pytest.approx(1.0)
    assert figure.data[0].x[-1] == pytest.approx(59.0)


def test_heat_map_holds_whole_percent_of_every_policy_and_shows_one() -> None:
    figure = utilisation_heatmap(CURVES)
    assert [trace.visible for trace in figure.data] == [True] + [False] * (len(POLICIES) - 1)
    for trace, curve in zip(figure.data, CURVES.values(), strict=True):
        assert trace.z.dtype == np.uint8
        np.testing.assert_allclose(trace.z, 100 * curve.utilisation_frac, atol=0.5)
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == list(POLICIES)
    assert [button.args[0]["visible"].index(True) for button in buttons] == list(range(len(POLICIES)))


def test_heat_map_names_groups_of_nodes_in_their_middle() -> None:
    axis = utilisation_heatmap({"random": random_curves(0, 8, 5)}).layout.yaxis  # four types of two
    assert list(axis.ticktext) == ["a100", "h100", "l40s", "t4"]
    assert list(axis.tickvals) == [0.5, 2.5, 4.5, 6.5]


def test_heat_map_of_amounts_tells_the_least_from_nothing_and_names_its_rows() -> None:
    """Rows whose names differ by more than their number have the name of all."""
    curve = replace(
        random_curves(0, 8, 5), rows_unit="GPUs", rows_most=16.0, row_names=tuple(map(chr, range(65, 78)))
    )
    figure = utilisation_heatmap({"random": curve}, "jobs")
    assert figure.layout.yaxis.title.text == "jobs"
    (below, nothing), (above, least) = figure.data[0].colorscale[1:3]
    assert below == above <= 0.1 / 16.0  # what is drawn is rounded to a tenth
    assert nothing != least


def test_load_lines_are_the_sweep_with_its_interval() -> None:
    table = comparison(("random", "power-of-d"))
    figure = load_lines(table, "slo_attained_frac")
    points = [p for p in table.sweep if p.policy == "random"]
    means = 100 * np.array([p.metrics["slo_attained_frac"].mean for p in points])
    halves = 100 * np.array([p.metrics["slo_attained_frac"].ci95 for p in points])
    band = next(trace for trace in figure.data if trace.legendgroup == "random" and trace.fill == "toself")
    np.testing.assert_allclose(by_name(figure)["random"].y, means, rtol=1e-6)
    np.testing.assert_allclose(band.y, [*(means - halves), *(means + halves)[::-1]], rtol=1e-6)


def test_intervals_are_cut_where_the_axis_ends() -> None:
    table = comparison(("random", "power-of-d"))
    wide = [replace(p, metrics=dict.fromkeys(p.metrics, Estimate(0.5, 9.0))) for p in table.sweep]
    shares = load_lines(replace(table, sweep=tuple(wide)), "slo_attained_frac").data[0].y
    times = load_lines(replace(table, sweep=tuple(wide)), "completion_p99_s")
    assert 0.0 < min(shares) < max(shares) == 100.0
    assert min(times.data[0].y) > 0.0
    assert list(times.layout.yaxis.range) == pytest.approx(np.log10([0.5 / 1.6, 0.5 * 1.6]))


def test_bars_start_at_zero_however_wide_the_interval() -> None:
    low, high = metric_bars(comparison(seeds=(0, 1)), "queueing_mean_s").layout.xaxis.range
    assert low == 0.0 < high


def test_the_bound_is_a_mark_at_the_load_it_was_computed_for() -> None:
    table = comparison()
    mark = by_name(load_lines(table, "completion_mean_s"))["lower bound"]
    assert (mark.x[0], mark.y[0]) == (80.0, pytest.approx(table.bound["completion_mean_s"]))
    assert "lower bound" not in by_name(load_lines(table, "completion_p99_s"))


def test_arrival_rate_is_drawn_as_given() -> None:
    figure = arrival_rate(np.array([0.0, 60.0, 120.0]), np.array([1.0, 5.0, 2.0]))
    np.testing.assert_allclose(figure.data[0].x, [0.0, 60.0, 120.0])
    np.testing.assert_allclose(figure.data[0].y, [1.0, 5.0, 2.0])


@pytest.mark.parametrize("size", [np.array([1.0, 2.0, 4.0, 1000.0]), np.array([3.0, 3.0])])
def test_size_histogram_counts_every_positive_size(size: np.ndarray) -> None:
    figure = size_histogram(np.append(size, 0.0))
    assert sum(figure.data[0].y) == len(size)


def test_no_positive_size_is_an_empty_figure() -> None:
    assert not size_histogram(np.zeros(3)).data


def test_a_trade_off_has_a_point_for_every_policy_with_both_values() -> None:
    table = comparison()
    figure = trade_off(table, "utilisation_var", "completion_p99_s")
    for result in table.results:
        point = by_name(figure)[result.policy]
        assert point.x[0] == pytest.approx(result.metrics["utilisation_var"].mean, rel=1e-6)
        assert point.y[0] == pytest.approx(result.metrics["completion_p99_s"].mean, rel=1e-6)
    even = replace(
        table.results[0], metrics={**table.results[0].metrics, "utilisation_var": Estimate(0.0, 0.0)}
    )
    without = trade_off(
        replace(table, results=(even, *table.results[1:])), "utilisation_var", "completion_p99_s"
    )
    assert set(by_name(without)) == {result.policy for result in table.results[1:]}


def test_failures_are_shaded_and_switches_stand_on_the_line_of_their_policy() -> None:
    curves = {
        "auto": replace(
            CURVES["random"],
            latency_s=np.linspace(10.0, 40.0, 30),
            marks=((600.0, 900.0, "a100-1 down"),),
            switches=((60.0, "random"), (1860.0, "late-binding")),
        ),
        "random": replace(CURVES["random"], latency_s=np.full(30, 20.0)),
    }
    figure = latency_over_time(curves)
    (shade,) = figure.layout.shapes
    assert (shade.x0, shade.x1) == (10.0, 15.0)  # minutes
    assert [note.text for note in figure.layout.annotations] == ["a100-1 down"]
    (marks,) = [trace for trace in figure.data if trace.mode == "markers"]
    assert marks.legendgroup == "auto"
    assert list(marks.text) == ["random", "late-binding"]
    np.testing.assert_allclose(marks.x, [1.0, 31.0])
    # Bins of 120 s with middles at 60, 180, …: the line goes from 10 to 40 in 29 steps.
    np.testing.assert_allclose(marks.y, [10.0, 10.0 + 15 * 30 / 29], rtol=1e-6)
    many = replace(curves["auto"], marks=tuple((60.0 * k, 60.0 * k + 9, "down") for k in range(12)))
    crowded = latency_over_time({"auto": many})
    assert len(crowded.layout.shapes) == 12
    assert not crowded.layout.annotations


@pytest.mark.parametrize("values", [[3635.0], [0.92, 2.97], [2091.0, 3635.0], [50.0, 20_000.0]])
def test_a_log_axis_has_three_to_twelve_ticks(values: list[float]) -> None:
    ticks = np.array(log_ticks(np.array(values))["tickvals"])
    shown = ticks[(ticks > min(values) / 1.6) & (ticks < max(values) * 1.6)]
    assert 3 <= len(shown) <= 12
