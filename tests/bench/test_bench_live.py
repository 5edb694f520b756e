"""The page says what was measured; segments are strung together for the simulator as they are sent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bench.ages import without_age
from bench.live.__main__ import PAGE, POLICIES, RESULTS
from bench.live.page import page
from bench.live.signals import PAGE as SIGNALS_PAGE
from bench.live.signals import POLICIES as SIGNALS_POLICIES
from bench.live.signals import RESULTS as SIGNALS_RESULTS
from bench.live.signals_course import LOAD, PLACES, SLOTS, SPEEDS, generated, nodes, rate_per_s
from bench.live.signals_page import page as signals_page
from bench.live.summary import figures
from bench.live.traffic import GAP_S, TRACE, predicted_s, segment

from trimtab.traces import read_trace


def test_page_is_made_from_what_is_saved() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert [one["policy"] for one in saved["policies"]] == list(POLICIES)
    assert without_age(PAGE) == page(saved)


def test_the_page_of_signals_is_made_from_what_is_saved() -> None:
    saved = json.loads(SIGNALS_RESULTS.read_text(encoding="utf-8"))
    assert [one["policy"] for one in saved["policies"]] == list(SIGNALS_POLICIES)
    assert without_age(SIGNALS_PAGE) == signals_page(saved)


def test_generated_requests_are_the_load_that_is_said() -> None:
    """Others use 0.7 × 60 / 100 of half the nodes; a request takes 2 + 2 × 2 seconds at speed 1."""
    speeds = {True: 1.0 - 0.42, False: 1.0}
    capacity = SLOTS * sum(SPEEDS[place.kind] * speeds[place.is_busy] for place in PLACES) / 6.0
    assert rate_per_s() == pytest.approx(LOAD * capacity)
    traffic = generated(0, 4000)
    assert 4000 / traffic.arrival_s[-1] == pytest.approx(rate_per_s(), rel=0.05)
    assert np.mean([one.images for one in traffic.asked]) == pytest.approx(2.0, rel=0.05)
    assert np.mean([one.factor for one in traffic.asked]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([one.extra_bytes > 0 for one in traffic.asked]) == pytest.approx(0.15, rel=0.2)


def test_a_gateway_is_told_what_real_ones_are_told() -> None:
    entries = [node.entry for node in nodes()]
    assert all({"speed", "busy_frac", "away_s"}.isdisjoint(entry) for entry in entries)
    assert {entry["zone"] for entry in entries} == {"near", "far"}


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
