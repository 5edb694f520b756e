"""The page says what was measured; segments are strung together for the simulator as they are sent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bench.live.__main__ import PAGE, POLICIES, RESULTS, figures
from bench.live.page import page
from bench.live.traffic import GAP_S, TRACE, predicted_s, segment

from trimtab.traces import read_trace


def test_page_is_made_from_what_is_saved() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [one["policy"] for one in saved["policies"]] == list(POLICIES)
    assert PAGE.read_text(encoding="utf-8") == page(saved)


def test_figures_are_mean_and_quantile() -> None:
    assert figures(np.arange(101.0)) == {"mean_s": 50.0, "p99_s": 99.0}


@pytest.mark.skipif(not TRACE.exists(), reason="needs the GenTD26 trace in ../shared/data")
def test_a_segment_is_predicted_alike_alone_and_after_another() -> None:
    """Random policies aside: the first is over before the second begins."""
    trace = read_trace(TRACE).table
    first, second = segment(0, 40, trace), segment(1, 40, trace)
    assert second.factor.mean() == pytest.approx(1.0)
    assert len(second.rows) == len(second.arrival_s) == 40
    both = predicted_s([first, second], "least-expected-completion", 0.01, mode="interpreted")
    (alone,) = predicted_s([second], "least-expected-completion", 0.01, mode="interpreted")
    assert both[0].max() < GAP_S
    np.testing.assert_allclose(both[1], alone, rtol=1e-9)
