"""What is released: no unit changes it by more than its noise covers, and costs are as promised."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from support.privacy import TOKENS_RULE, Transcript, requests, seeded_noise, trace_of
from trimtab.errors import UsageError
from trimtab.privacy.accounting import epsilon_of
from trimtab.traces.sharing import bursts
from trimtab.traces.sharing.grids import OTHER, WHOLE, cells_of, drawn
from trimtab.traces.sharing.promise import Promise, check
from trimtab.traces.sharing.release import Released, release, shares
from trimtab.traces.sharing.synthesis import synthetic

PUBLIC = {"class": ("chat", "batch"), "tenant": tuple(f"t{k}" for k in range(40))}


def released(table: pl.DataFrame, promise: Promise, noise: object, seed: int = 0) -> Released:
    return release(table, promise, TOKENS_RULE, noise, np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["row", "tenant", "class"])
def test_no_unit_changes_a_count_by_more_than_its_sensitivity(unit: str) -> None:
    """Against the definition: each answer of two neighbours, given the same answers to all before."""
    whole = requests(400)
    public = {column: names for column, names in PUBLIC.items() if column != unit}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        gone = int(rng.integers(400))
        keep = np.arange(400) != gone if unit == "row" else (whole[unit] != whole[unit][gone]).to_numpy()
        promise = Promise(1.0, 1e-6, unit, 1 if unit == "row" else int((~keep).sum()), public)
        # All rows of the unit count, and the bound is no larger than they are many: the worst case.
        table = whole if unit == "row" else whole.filter(pl.len().over(unit) <= promise.bound)
        first = Transcript()
        told = released(table, promise, first)
        rest = (
            table.filter(pl.Series(keep))
            if unit == "row"
            else table.filter(pl.col(unit) != whole[unit][gone])
        )
        second = Transcript([answer.counts for answer in told.answers])
        released(rest, promise, second)
        for answer, a, b in zip(told.answers, first.asked, second.asked, strict=True):
            assert np.sqrt(((a - b) ** 2).sum()) <= answer.sensitivity + 1e-9, answer.name
            assert (a != b).any() or answer.name in ("bursts", "volumes")


def test_costs_add_up_to_the_promise() -> None:
    promise = Promise(2.0, 1e-5)
    told = released(requests(3000), promise, seeded_noise(0))
    costs = told.costs()
    assert sum(cost["rho"] for cost in costs) == pytest.approx(told.rho)
    assert sum(cost["share_frac"] for cost in costs) == pytest.approx(1.0)
    assert sum(answer.delta for answer in told.answers) == pytest.approx(told.delta_of_names)
    together = epsilon_of(sum(cost["rho"] for cost in costs), promise.delta - told.delta_of_names)
    assert 0.999 * promise.epsilon < together <= promise.epsilon


def test_one_arrival_changes_the_sums_of_bursts_by_at_most_their_sensitivity() -> None:
    """By all splits of up to 120 arrivals."""
    worst = 0.0
    for left in range(60):
        for right in range(60):
            before = bursts.split_sums(np.array([0.25] * left + [0.75] * right), 1.0, 1)
            after = bursts.split_sums(np.array([0.25] * (left + 1) + [0.75] * right), 1.0, 1)
            worst = max(worst, float(np.sqrt(((after - before) ** 2).sum())))
    assert 0.8 * bursts.SENSITIVITY < worst <= bursts.SENSITIVITY


def test_bursts_that_were_drawn_are_found_again() -> None:
    rng = np.random.default_rng(1)
    variance = np.array([0.0, 0.3, 0.0, 0.6, 0.1])
    arrival_s = bursts.drawn_arrivals(np.full(400, 60), 16.0, variance, rng)
    assert len(arrival_s) == 400 * 60
    assert (np.bincount((arrival_s / 16.0).astype(int)) == 60).all()
    found = bursts.variances(bursts.split_sums(arrival_s, 16.0, 5), 1.0)
    np.testing.assert_allclose(found, variance, atol=0.03)


@pytest.mark.parametrize("column", ["prompt_tokens", "size"])
def test_a_value_drawn_from_a_cell_lies_in_it(column: str) -> None:
    edges = WHOLE if column == "prompt_tokens" else OTHER
    cell = np.arange(len(edges))
    values = drawn(column, cell, np.random.default_rng(0))
    assert values[0] is None
    assert cells_of(values).tolist() == cell.tolist()


def test_shares_of_cells_with_little_noise_are_those_of_the_counts() -> None:
    counts = np.array([0, 500, 0, 300, 200, 0, 0])
    found = shares(counts, 0.1)
    assert found is not None
    np.testing.assert_allclose(found, counts / 1000.0)


def test_cells_above_the_last_that_stands_out_are_noise() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros(100, np.int64)
    counts[10:20] = 500
    found = shares(counts + np.rint(rng.normal(0, 10, 100)).astype(np.int64), 10.0)
    assert found is not None
    assert found[10:20].sum() > 0.98
    assert found[40:].sum() < 0.01
    assert shares(np.rint(rng.normal(0, 10, 100)).astype(np.int64), 10.0) is None


def test_a_shared_trace_is_like_its_original() -> None:
    """Totals, means by class, and what goes with what, within what the noise of ε = 2 allows."""
    table, promise = requests(20_000), Promise(2.0, 1e-6, public={"class": ("chat", "batch")})
    told = released(table, promise, seeded_noise(3))
    made = synthetic(told, np.random.default_rng(3), 0.05)
    assert made.columns == ["arrival_s", "size", "class", "tenant", "prompt_tokens", "output_tokens"]
    assert made.height == pytest.approx(table.height, rel=0.03)
    assert made["arrival_s"].is_sorted()
    assert made["arrival_s"][-1] == pytest.approx(3600.0, rel=0.02)
    for name in ("chat", "batch"):
        own, original = (t.filter(pl.col("class") == name) for t in (made, table))
        assert own.height == pytest.approx(original.height, rel=0.05)
        for column in ("prompt_tokens", "output_tokens"):
            assert own[column].mean() == pytest.approx(original[column].mean(), rel=0.08)
            assert own[column].quantile(0.99) == pytest.approx(original[column].quantile(0.99), rel=0.15)
    together = [
        t.select(pl.corr("prompt_tokens", "output_tokens", method="spearman")).item() for t in (made, table)
    ]
    assert together[0] == pytest.approx(together[1], abs=0.08)
    largest = [t["tenant"].value_counts()["count"].max() / t.height for t in (made, table)]
    assert largest[0] == pytest.approx(largest[1], rel=0.1)
    assert (made["size"] - made["output_tokens"] - 0.05 * made["prompt_tokens"]).abs().max() < 1e-9


def test_sizes_and_classes_change_over_time_as_they_did() -> None:
    """In the second half answers are three times as long, and there are no batches."""
    table, late = requests(12_000), pl.col("arrival_s") > 1800.0
    changed = table.with_columns(
        pl.when(late).then(3 * pl.col("output_tokens")).otherwise("output_tokens").alias("output_tokens"),
        pl.when(late).then(pl.lit("chat")).otherwise("class").alias("class"),
    )
    promise = Promise(2.0, 1e-6, public={"class": ("chat", "batch")})
    told = released(changed, promise, seeded_noise(5))
    made = synthetic(told, np.random.default_rng(5), 0.05)
    means = [[t.filter(half)["output_tokens"].mean() for half in (~late, late)] for t in (made, changed)]
    assert means[0] == pytest.approx(means[1], rel=0.12)
    assert (made.filter(late)["class"] == "batch").mean() < 0.03


def test_counts_of_images_are_never_below_one() -> None:
    table = (
        requests(3000)
        .select("arrival_s")
        .with_columns(images=pl.lit(1, pl.Int64), steps=pl.lit(30, pl.Int64))
    )
    told = released(table, Promise(1.0), seeded_noise(0))
    assert synthetic(told, np.random.default_rng(0), 0.05)["images"].min() == 1


def test_tenants_are_as_skewed_as_told_when_they_are_what_is_protected() -> None:
    """400 tenants with 40 rows each, 4,000 with one: the former have 80 % of the rows."""
    table = requests(20_000)
    many = [f"t{k % 400}" if k < 16_000 else f"t{k - 15_600}" for k in range(20_000)]
    mixed = pl.Series("tenant", np.random.default_rng(0).permutation(many))
    promise = Promise(4.0, 1e-6, "tenant", 4)
    told = released(table.with_columns(mixed), promise, seeded_noise(1))
    made = synthetic(told, np.random.default_rng(1), 0.05)
    volumes = made["tenant"].value_counts(sort=True)["count"]
    assert volumes.head(400).sum() / made.height == pytest.approx(0.8, abs=0.06)
    assert not set(made["tenant"]) & set(mixed)


@pytest.mark.parametrize(
    ("promise", "parts"),
    [
        (Promise(0.0), ("--epsilon", "above 0")),
        (Promise(float("nan")), ("--epsilon", "above 0")),
        (Promise(float("inf")), ("--epsilon", "above 0")),
        (Promise(1.0, 1e-3), ("--delta", "below 1/3000")),
        (Promise(1.0, 0.0), ("--delta",)),
        (Promise(1.0, 0.03, "tenant", 5), ("--delta", "below 1/40")),
        (Promise(1.0, 1e-6, "user", 5), ("--unit", "tenant")),
        (Promise(1.0, 1e-6, "tenant", 0), ("--bound",)),
        (Promise(1.0, 1e-6, "row", 2), ("--bound",)),
        (Promise(1.0, public={"colour": ("red",)}), ("--public", "class, tenant")),
        (Promise(1.0, 1e-6, "tenant", 20), ("too small a table", "--epsilon", "at least")),
    ],
)
def test_promises_that_make_no_sense(promise: Promise, parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        check(trace_of(requests(3000)), promise)
    for part in parts:
        assert part in str(refused.value)


def test_the_least_sensible_epsilon_is_the_least() -> None:
    trace, promise = trace_of(requests(900)), Promise(0.2)
    with pytest.raises(UsageError) as refused:
        check(trace, promise)
    least = float(str(refused.value).partition("at least ")[2].partition(",")[0])
    check(trace, Promise(least))
    with pytest.raises(UsageError):
        check(trace, Promise(0.97 * least))
