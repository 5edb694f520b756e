from __future__ import annotations

import math

import pytest

from trimtab.metrics import METRICS, Estimate
from trimtab.report.number_formats import (
    OTHER,
    headline_metrics,
    metric_groups,
    percent_text,
    style_of,
    time_unit,
    title_of,
)

NAN = math.nan


def test_percents_have_at_least_hundredths() -> None:
    fracs = (6.8e-9, 0.0, 0.125, 4.9e-5, 5.1e-5)
    assert [percent_text(frac) for frac in fracs] == ["0.00 %", "0 %", "12.5 %", "0.00 %", "0.0051 %"]
    assert style_of([Estimate(6.8e-9, 1e-9), Estimate(0.5, 0.01)], "frac").number(6.8e-9) == "0.00"


@pytest.mark.parametrize(
    ("estimate", "unit", "text", "shown_unit"),
    [
        (Estimate(12.3456, 0.234), "s", "12.35 ± 0.23", "s"),
        (Estimate(12.3456, 2.34), "s", "12.3 ± 2.3", "s"),
        (Estimate(1234.56, 178.0), "s²", "1,235 ± 178", "s²"),
        (Estimate(0.8761, 0.0039), "frac", "87.61 ± 0.39", "%"),
        (Estimate(0.00123, 0.00012), "1", "1.23 ± 0.12", "10⁻³"),
        (Estimate(2_345_678.0, 12_000.0), "s²", "2.346 ± 0.012", "10⁶ s²"),
        (Estimate(3.14159, None), "s", "3.142", "s"),
        (Estimate(0.0, 0.0), "frac", "0", "%"),
        (Estimate(500.0, None), "1", "500", ""),
        (Estimate(NAN, None), "s", "–", "s"),
        (Estimate(-12.3456, 0.234), "s", "-12.35 ± 0.23", "s"),
    ],
)
def test_digits_follow_the_confidence_interval(
    estimate: Estimate, unit: str, text: str, shown_unit: str
) -> None:
    style = style_of([estimate], unit)
    assert (style.estimate(estimate), style.unit) == (text, shown_unit)


def test_each_row_has_the_digits_that_its_own_interval_supports() -> None:
    column = [Estimate(10.0, 0.31), Estimate(20.0, 0.42), Estimate(95.0, 8.0)]
    style = style_of(column, "s")
    assert [style.estimate(e) for e in column] == ["10.00 ± 0.31", "20.00 ± 0.42", "95.0 ± 8.0"]


def test_a_column_over_many_magnitudes_keeps_its_smallest_values_readable() -> None:
    column = [Estimate(1_012.0, 853.0), Estimate(33_000.0, 82_000.0), Estimate(1_074_300.0, 144_000.0)]
    style = style_of(column, "s²")
    assert [style.estimate(e) for e in column] == ["1.01 ± 0.85", "33 ± 82", "1,074 ± 144"]
    assert style.unit == "10³ s²"


def test_tiny_intervals_do_not_add_digits_without_end() -> None:
    style = style_of([Estimate(12.345678901, 1e-9)], "s")
    assert style.estimate(Estimate(12.345678901, 1e-9)) == "12.35"  # ± 0.00 would say nothing


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("completion_p99_s", "completion p99"),
        ("completion_var_s2", "completion variance"),
        ("slo_attained_frac", "SLO attained"),
        ("usd_per_1k", "cost per 1,000 finished"),
        ("throughput_per_s", "throughput"),
    ],
)
def test_titles_are_words_without_units(name: str, title: str) -> None:
    assert title_of(METRICS[name]) == title


def test_titles_are_unique() -> None:
    titles = [title_of(metric) for metric in METRICS.values()]
    assert len(set(titles)) == len(titles)


def test_every_metric_is_in_one_named_group() -> None:
    groups = metric_groups(METRICS)
    assert OTHER not in groups
    assert sorted(m.name for members in groups.values() for m in members) == sorted(METRICS)


def test_headline_metrics_are_those_of_the_catalogue() -> None:
    assert [m.name for m in headline_metrics(METRICS)] == [name for name, m in METRICS.items() if m.headline]


@pytest.mark.parametrize(("span_s", "unit"), [(0.0, "s"), (599.0, "s"), (600.0, "min"), (10_800.0, "h")])
def test_time_axes_have_a_unit_that_suits(span_s: float, unit: str) -> None:
    assert time_unit(span_s)[0] == unit
