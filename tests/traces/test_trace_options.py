from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from trimtab.errors import TraceError
from trimtab.traces import TraceOptions, apply_options

TABLE = pl.DataFrame(
    {"arrival_s": [0.0, 1.0, 1.0, 2.0, 4.0, 8.0], "deadline_s": [9.0] * 6, "size": [1.0] * 6}
)


def arrivals(**options: object) -> list[float]:
    return apply_options(TABLE, TraceOptions.model_validate(options))["arrival_s"].to_list()


def test_by_default_nothing_changes() -> None:
    assert apply_options(TABLE, TraceOptions()).equals(TABLE)


def test_a_slice_holds_its_start_but_not_its_end_and_starts_at_zero() -> None:
    assert arrivals(start_s=1.0, stop_s=4.0) == [0.0, 0.0, 1.0]
    assert arrivals(start_s=1.5) == [0.5, 2.5, 6.5]


def test_rate_scale_changes_arrivals_and_nothing_else() -> None:
    table = apply_options(TABLE, TraceOptions(rate_scale=2.0))
    assert table["arrival_s"].to_list() == [0.0, 0.5, 0.5, 1.0, 2.0, 4.0]
    assert table.drop("arrival_s").equals(TABLE.drop("arrival_s"))


def test_slice_then_rate_then_limit() -> None:
    assert arrivals(start_s=1.0, rate_scale=0.5, limit=3) == [0.0, 0.0, 2.0]


def test_samples_repeat_and_larger_ones_contain_smaller_ones() -> None:
    table = pl.DataFrame({"arrival_s": np.arange(100_000.0)})
    small, again, large = (
        set(apply_options(table, TraceOptions(sample_frac=frac, seed=5))["arrival_s"])
        for frac in (0.2, 0.2, 0.3)
    )
    assert small == again
    assert small < large
    assert len(small) == pytest.approx(20_000, abs=4 * np.sqrt(100_000 * 0.2 * 0.8))


def test_a_sample_is_the_same_in_every_slice() -> None:
    table = pl.DataFrame({"arrival_s": np.arange(1000.0)})
    whole = apply_options(table, TraceOptions(sample_frac=0.5))["arrival_s"]
    part = apply_options(table, TraceOptions(sample_frac=0.5, start_s=300.0))["arrival_s"]
    assert part.to_list() == [t - 300.0 for t in whole if t >= 300.0]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(TraceError, match="between 0 s and 8 s"):
        arrivals(start_s=9.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"start_s": -1.0},
        {"start_s": 5.0, "stop_s": 5.0},
        {"rate_scale": 0.0},
        {"rate_scale": float("inf")},
        {"sample_frac": 0.0},
        {"sample_frac": 1.1},
        {"limit": 0},
        {"limits": 1},
    ],
)
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TraceOptions.model_validate(bad)
