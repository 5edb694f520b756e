from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.traces import rate_series, summarise
from trimtab.traces.summary import Share, count_arrivals

TABLE = pl.DataFrame(
    {
        "arrival_s": [10.0, 10.5, 11.0, 14.0],
        "size": [1.0, 2.0, 3.0, 10.0],
        "tenant": ["a", "b", "a", None],
    }
)


def test_by_hand() -> None:
    summary = summarise(TABLE)
    assert (summary.rows, summary.span_s, summary.rate_per_s) == (4, 4.0, 0.75)
    # gaps 0.5, 0.5, 3: mean 4/3, variance (2 · (5/6)² + (5/3)²) / 3 = 25/18
    assert summary.interarrival_cv == pytest.approx((25 / 18) ** 0.5 / (4 / 3))
    # windows [10, 11) [11, 12) [12, 13) [13, 14): counts 2, 1, 0, 0; the last arrival begins a further window
    one_second = summary.counts[0]
    assert (one_second.windows, one_second.peak_rate_per_s) == (4, 2.0)
    assert one_second.dispersion == pytest.approx((5 / 4 - 9 / 16) / (3 / 4))
    assert summary.counts[1].dispersion is None
    assert summary.size is not None
    assert (summary.size.mean, summary.size.p50, summary.size.max) == (4.0, 2.5, 10.0)
    assert summary.size.p90 == pytest.approx(3.0 + 0.7 * 7.0)
    assert summary.size.cv == pytest.approx((12.5) ** 0.5 / 4.0)
    assert summary.shares == {"tenant": (Share("a", 2, 0.5), Share(None, 1, 0.25), Share("b", 1, 0.25))}
    assert "deadline_s" in summary.missing_columns
    assert "size" not in summary.missing_columns


def test_it_is_json_whatever_is_undefined() -> None:
    lone = pl.DataFrame({"arrival_s": [3.0]})
    text = json.dumps(summarise(lone).to_dict(), allow_nan=False)
    assert json.loads(text)["rate_per_s"] is None
    assert (
        json.loads(json.dumps(summarise(TABLE).to_dict(), allow_nan=False))["shares"]["tenant"][0]["rows"]
        == 2
    )


def test_only_the_ten_most_frequent_values_are_listed() -> None:
    models = [f"m{k}" for k in range(12) for _ in range(k + 1)]
    table = pl.DataFrame({"arrival_s": np.arange(float(len(models))), "model": models})
    shares = summarise(table).shares["model"]
    assert [share.value for share in shares] == [f"m{k}" for k in range(11, 1, -1)]


@given(st.lists(st.integers(0, 400), min_size=2, max_size=50), st.integers(1, 40))
def test_counts_against_a_plain_histogram(ticks: list[int], window_ticks: int) -> None:
    # Quarters of a second are exact in binary, so both sides put every arrival into the same window.
    arrival_s, window_s = np.sort(np.array(ticks)) / 4.0, window_ticks / 4.0
    result = count_arrivals(arrival_s, window_s)
    windows = int((arrival_s[-1] - arrival_s[0]) // window_s)
    assert result.windows == windows
    if windows >= 2:
        inside = ((arrival_s - arrival_s[0]) // window_s).astype(int)
        counts = np.bincount(inside)[:windows]
        assert result.peak_rate_per_s == counts.max() / window_s
        assert result.dispersion == pytest.approx(counts.var() / counts.mean(), abs=1e-9)


def test_rate_series_by_hand_and_conserves_arrivals() -> None:
    start_s, rate_per_s = rate_series(TABLE, 4)
    assert start_s.tolist() == [10.0, 11.0, 12.0, 13.0]
    assert rate_per_s.tolist() == [2.0, 1.0, 0.0, 1.0]


def test_rate_series_refuses_what_has_no_rate() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        rate_series(TABLE, 0)
    with pytest.raises(UsageError, match="two different arrival times"):
        rate_series(TABLE.head(1), 3)
