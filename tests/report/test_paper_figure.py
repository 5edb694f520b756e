"""Figures for papers: what they show stands where it belongs, in every kind of file."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from support.synthetic import comparison
from trimtab.errors import MissingExtra, UsageError
from trimtab.metrics import Estimate
from trimtab.report.paper_figure import plot
from trimtab.report.text_tables import to_latex, to_markdown

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found():  # type: ignore[no-untyped-def]
    return comparison(seeds=(0, 1, 2))


def test_bars_and_whiskers_are_means_and_intervals_best_first(found) -> None:  # type: ignore[no-untyped-def]
    axes = plot(found, "completion_mean_s").figure.axes[0]
    ranked = found.ranked("completion_mean_s")
    assert [label.get_text() for label in axes.get_yticklabels()] == [r.policy for r in ranked]
    assert axes.yaxis_inverted()  # the first is on top
    estimates = [r.metrics["completion_mean_s"] for r in ranked]
    bars, (whiskers,) = axes.containers[1], axes.collections
    assert [bar.get_width() for bar in bars] == [e.mean for e in estimates]
    ends = [[x for x, _ in segment] for segment in whiskers.get_segments()]
    assert ends == [pytest.approx([e.mean - e.ci95, e.mean + e.ci95]) for e in estimates]
    assert axes.get_xlabel() == "completion mean (s)"
    name = "completion_mean_s"
    plain = [
        replace(r, metrics={**r.metrics, name: Estimate(r.metrics[name].mean, None)}) for r in found.results
    ]
    (no_whiskers,) = plot(replace(found, results=plain), name).figure.axes[0].collections
    assert all(math.isnan(x) for segment in no_whiskers.get_segments() for x, _ in segment)


def test_lines_over_load_have_the_means_of_the_sweep_in_their_bands(found) -> None:  # type: ignore[no-untyped-def]
    axes = plot(found, "slo_attained_frac", over="load").figure.axes[0]
    for line, band, result in zip(axes.lines, axes.collections, found.results, strict=True):
        points = sorted((p for p in found.sweep if p.policy == result.policy), key=lambda p: p.load)
        values = [p.metrics["slo_attained_frac"] for p in points]
        assert line.get_label() == result.policy
        np.testing.assert_allclose(line.get_xdata(), [100 * p.load for p in points])
        np.testing.assert_allclose(line.get_ydata(), [100 * v.mean for v in values])  # per cent
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(min(100 * (v.mean - v.ci95) for v in values))
        assert heights.max() == pytest.approx(max(100 * (v.mean + v.ci95) for v in values))


def test_one_metric_against_another_has_a_mark_for_each_policy(found) -> None:  # type: ignore[no-untyped-def]
    axes = plot(found, "completion_p99_s", over="slo_attained_frac").figure.axes[0]
    for mark, result in zip(axes.lines, found.results, strict=True):
        assert mark.get_label() == result.policy
        assert mark.get_xdata() == pytest.approx([100 * result.metrics["slo_attained_frac"].mean])
        assert mark.get_ydata() == pytest.approx([result.metrics["completion_p99_s"].mean])
    looks = [(mark.get_color(), mark.get_marker()) for mark in axes.lines]
    assert len(set(looks)) == len(looks)


def test_figures_show_in_notebooks_and_save_in_each_kind_the_same_each_time(found, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    texts = {text.text for text in ElementTree.fromstring(plot(found)._repr_svg_()).iter(f"{SVG}text")}
    assert {r.policy for r in found.results} <= texts
    for suffix, head in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        first, again = tmp_path / f"first{suffix}", tmp_path / f"again{suffix}"
        assert plot(found).save(first) == first
        plot(found).save(str(again))
        assert first.read_bytes().startswith(head)
        assert first.read_bytes() == again.read_bytes()


def test_without_matplotlib_the_extra_is_named(found, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"trimtab\[figures\]"):
        plot(found)


def test_other_kinds_of_file_and_unknown_metrics_are_refused(found, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="unknown kind of file"):
        plot(found).save(tmp_path / "f.gif")
    with pytest.raises(UsageError, match="can't write there"):
        plot(found).save(tmp_path / "missing" / "f.svg")
    with pytest.raises(UsageError, match="completion_p99_s"):
        plot(found, "completion_p98_s")
    with pytest.raises(UsageError, match="has no sweep"):
        plot(comparison(loads=()), over="load")


def test_tables_for_papers_have_the_cells_of_the_report(found) -> None:  # type: ignore[no-untyped-def]
    markdown, latex = (
        make(found, ["completion_mean_s", "rejected_frac"]) for make in (to_markdown, to_latex)
    )
    rows = markdown.splitlines()[2 : 2 + len(found.results)]
    ranked = found.ranked()
    assert [row.split("|")[1].strip() for row in rows] == [r.policy for r in ranked]
    assert "**" in rows[0]
    assert markdown.splitlines()[0].count("|") == 4
    assert latex.count(r"\\") == 1 + len(ranked)
    assert r"\%" in latex
    assert r"\begin{tabular}{lrr}" in latex
    assert r"$\pm$" in latex
