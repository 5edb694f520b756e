"""Fitted service times find the times that data were drawn from, with intervals that cover them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from trimtab.errors import TraceError
from trimtab.experiments.scenario.spec.scenario import ClusterPart
from trimtab.experiments.service_fit import fit_service
from trimtab.traces.read import Trace, read_trace

PART = ClusterPart.model_validate(
    {
        "cluster": {
            "types": {"big": {"memory_gib": 80}, "small": {"memory_gib": 24, "speed": 0.5}},
            "nodes": [{"type": "big", "count": 2}, {"type": "small", "count": 1}],
        },
        "classes": {"chat": {"unit_s": 1.0, "slo_s": 9.0}},
    }
)
TRUE = {"big": (0.3, 0.02), "small": (0.5, 0.05)}


def drawn(rows: int, seed: int, cv: float = 0.1) -> Trace:
    """Requests far apart, on big-1, big-2 and small-1 in turn."""
    rng = np.random.default_rng(seed)
    size, node = rng.integers(1, 400, rows).astype(float), np.array(["big-1", "big-2", "small-1"])
    kind = np.array(["big", "big", "small"])
    names, kinds = np.resize(node, rows), np.resize(kind, rows)
    exact_s = np.array([TRUE[k][0] + TRUE[k][1] * x for k, x in zip(kinds, size, strict=True)])
    frame = {
        "arrival_s": 100.0 * np.arange(rows),
        "size": size,
        "node": names,
        "recorded_s": exact_s * (1.0 + cv * rng.uniform(-1.0, 1.0, rows)),
    }
    return read_trace(pl.DataFrame(frame))


def test_without_noise_the_times_are_found_exactly_and_the_cluster_serves_with_them() -> None:
    fitted = fit_service(drawn(120, 0, cv=0.0), PART)
    for fit in fitted.fits:
        assert (fit.fixed_s, fit.unit_s) == pytest.approx(TRUE[fit.node_type])
        assert (fit.r2, fit.held_back_error) == pytest.approx((1.0, 0.0), abs=1e-9)
        assert fit.hints == ()
    chat = fitted.cluster.classes["chat"]
    assert chat.service_on("small", 0.5) == pytest.approx(TRUE["small"])
    assert chat.slo_s == 9.0
    assert ClusterPart.model_validate(fitted.content()).classes["chat"].service_on(
        "big", 1.0
    ) == pytest.approx(TRUE["big"])


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = []
    for seed in range(60):
        for fit in fit_service(drawn(150, seed), PART).fits:
            fixed_s, unit_s = TRUE[fit.node_type]
            covered.append(abs(fit.fixed_s - fixed_s) <= fit.fixed_ci95_s)
            covered.append(abs(fit.unit_s - unit_s) <= fit.unit_ci95_s)
    # 240 intervals, dependent in pairs: 95 % ± 4 standard errors of 120 independent ones
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / 120) <= np.mean(covered)


def test_a_type_with_too_few_rows_is_scaled_by_speed_and_told() -> None:
    table = drawn(120, 1, cv=0.0).table.filter((pl.col("node") != "small-1") | (pl.col("arrival_s") < 1000.0))
    fitted = fit_service(read_trace(table), PART)
    assert fitted.too_few == {("chat", "small"): 3}
    assert fitted.cluster.classes["chat"].service_on("small", 0.5) == pytest.approx(
        (0.6, 0.04)
    )  # half as fast


def test_times_that_grow_with_load_are_told_and_rows_of_low_load_fit() -> None:
    rng = np.random.default_rng(3)
    size = rng.integers(50, 200, 600).astype(float)
    arrival_s = np.cumsum(rng.exponential(3.0, 600))
    took_s = np.zeros(600)
    for i in range(600):  # each request in flight adds 20 % of the service
        ahead = int((arrival_s[:i] + took_s[:i] > arrival_s[i]).sum())
        took_s[i] = (0.2 + 0.02 * size[i]) * (1.0 + 0.2 * ahead)
    one = PART.model_copy(
        update={"cluster": PART.cluster.model_copy(update={"nodes": PART.cluster.nodes[:1]})}
    )
    trace = read_trace(pl.DataFrame({"arrival_s": arrival_s, "size": size, "recorded_s": took_s}))
    (fit,) = fit_service(trace, one).fits
    assert fit.per_in_flight_frac > 0.02
    assert "--max-in-flight" in " ".join(fit.hints)
    (low,) = fit_service(trace, one, max_in_flight=1).fits
    assert low.rows < fit.rows
    assert (low.fixed_s, low.unit_s) == pytest.approx((0.2, 0.02))


def test_a_bend_and_another_weight_of_prompts_are_told() -> None:
    rng = np.random.default_rng(4)
    one = PART.model_copy(
        update={"cluster": PART.cluster.model_copy(update={"nodes": PART.cluster.nodes[:1]})}
    )
    prompt, output = rng.integers(100, 4000, 300), rng.integers(1, 100, 300)
    frame = {"arrival_s": 100.0 * np.arange(300), "prompt_tokens": prompt, "output_tokens": output}
    bent = pl.DataFrame({**frame, "recorded_s": (0.05 * prompt + output) ** 2 / 100.0})
    assert "not a straight line" in " ".join(fit_service(read_trace(bent), one).fits[0].hints)
    heavy = pl.DataFrame({**frame, "recorded_s": 0.1 + 0.01 * (output + 0.4 * prompt)})
    assert "a prompt token weighs 0.4 of an output token" in " ".join(
        fit_service(read_trace(heavy), one).fits[0].hints
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop("recorded_s"), "has no recorded_s.*--map recorded_s=COLUMN"),
        (lambda t: t.drop("node"), "several types.*--map node=COLUMN"),
        (lambda t: t.with_columns(node=pl.lit("bigg-1")), "unknown nodes.*perhaps 'big-1'"),
        (lambda t: t.head(9), "too few rows"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_remedy(change, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TraceError, match=message):
        fit_service(read_trace(change(drawn(60, 0).table)), PART)
