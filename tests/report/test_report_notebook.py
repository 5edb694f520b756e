from __future__ import annotations

from support.synthetic import comparison
from trimtab.experiments.serving.run import simulate
from trimtab.report.notebook import comparison_html, run_html


def test_a_comparison_shows_its_policies_best_first() -> None:
    table = comparison()
    html = comparison_html(table)
    places = [html.index(f">{result.policy}<") for result in table.ranked()]
    assert places == sorted(places)
    assert "Lower bound" in html
    assert "<script" not in html


def test_names_are_escaped() -> None:
    assert "<b>mine" not in comparison_html(comparison(("<b>mine", "random")))


def test_a_run_shows_its_metrics() -> None:
    html = run_html(simulate("tiny", "random", mode="interpreted"))
    assert "completion mean" in html
    assert "random on tiny, seed 0" in html
