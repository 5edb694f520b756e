"""Rounding, the documented table of profiles, and what a rounded recording is worth."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import cluster, requests
from support.recordings import simulated
from trimtab.experiments.serving.replay import replay
from trimtab.gateway.record.redaction import PROFILES, coarse, two_digits
from trimtab.traces.gateway_format import Redaction, RequestRow, new_recording_id

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "record-and-replay.md"

times_s = st.floats(0.0, 1e5, allow_subnormal=False)


def digits(value: float) -> int:
    """Significant digits of a number, by its decimal text."""
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


@given(st.lists(st.floats(1e-6, 1e12), min_size=2, max_size=2))
def test_two_digits_keep_order_and_are_near(pair: list[float]) -> None:
    low, high = sorted(pair)
    assert two_digits(low) <= two_digits(high)
    assert digits(two_digits(low)) <= 2
    assert two_digits(low) == pytest.approx(low, rel=0.05)


@given(times_s, times_s, times_s, times_s, st.integers(0, 10**9))
def test_a_rounded_request_still_happens_in_order(
    arrival_s: float, wait_s: float, first_s: float, service_s: float, tokens: int
) -> None:
    started_s = arrival_s + wait_s
    first_byte_s = started_s + min(first_s, service_s)
    row: RequestRow = {
        "arrival_s": arrival_s,
        "started_s": started_s,
        "first_byte_s": first_byte_s,
        "finish_s": started_s + service_s,
        "service_s": service_s,
        "prompt_tokens": tokens,
        "cached_tokens": tokens // 3,
        "estimate_s": None,
        "model": "m",
    }
    rounded = coarse(row)
    assert rounded["arrival_s"] == int(arrival_s)
    assert rounded["arrival_s"] <= rounded["started_s"] <= rounded["first_byte_s"] <= rounded["finish_s"]
    assert rounded["cached_tokens"] <= rounded["prompt_tokens"]
    assert isinstance(rounded["prompt_tokens"], int)
    assert digits(rounded["service_s"]) <= 2
    assert (rounded["estimate_s"], rounded["model"]) == (None, "m")
    assert row["arrival_s"] == arrival_s


def test_the_guide_has_every_profile_and_every_column() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert set(PROFILES) == set(get_args(Redaction))
    for name in (*PROFILES, *RequestRow.__annotations__):
        assert f"`{name}`" in guide, name


def test_a_rounded_recording_replays_within_what_its_digits_allow(tmp_path: Path) -> None:
    c = cluster(4, types=2, slots=2, classes=2, queue_max=0, fixed_s=0.5)
    drawn = requests(c, 400, load=0.5, seed=3, noise=True)
    live = simulated(tmp_path / "exact", c, drawn, "least-expected-wait")
    rounded = simulated(tmp_path / "coarse", c, drawn, "least-expected-wait", redact="coarse")
    assert (live.state.requests["finish_s"] == rounded.state.requests["finish_s"]).all()
    done, kept = (replay(tmp_path / name, mode="interpreted") for name in ("exact", "coarse"))
    assert kept.requests == done.requests == 400
    assert kept.live.mean_s == pytest.approx(done.live.mean_s, rel=0.05)


def test_a_rounded_recording_is_named_by_the_hour() -> None:
    assert re.match(r"\d{8}T\d\d0000Z-[0-9a-f]{8}", new_recording_id(3600))
