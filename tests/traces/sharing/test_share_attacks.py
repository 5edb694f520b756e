"""Attacks on shared traces: within the bound of (ε, δ) with noise, and successful without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from support.privacy import (
    TOKENS_RULE,
    Transcript,
    advantage,
    most_advantage,
    no_noise,
    requests,
    seeded_noise,
)
from trimtab.privacy.mechanisms import Noise
from trimtab.traces.sharing.promise import Promise
from trimtab.traces.sharing.release import Released, release
from trimtab.traces.sharing.synthesis import synthetic

DELTA = 1e-6
OTHERS = requests(1500, tenants=300)
ROW = pl.DataFrame(  # one request at a quiet time, of a size that no other has
    {
        "arrival_s": [3900.0],
        "size": [180_000.0 + 0.05 * 900_000],
        "class": ["batch"],
        "tenant": ["t1"],
        "prompt_tokens": [900_000],
        "output_tokens": [180_000],
    },
    schema=OTHERS.schema,
)
TENANT = pl.concat(
    [ROW.with_columns(arrival_s=3700.0 + 10.0 * k, tenant=pl.lit("target")) for k in range(20)]
)


def let_out(is_in: bool, target: pl.DataFrame, promise: Promise, noise: Noise) -> Released:
    table = pl.concat([OTHERS, target]) if is_in else OTHERS
    columns = ["arrival_s", "size", "prompt_tokens", *({promise.unit} & {"tenant"})]
    return release(table.select(columns), promise, "column size", noise, np.random.default_rng(0))


def likelihood_attack(
    target: pl.DataFrame, promise: Promise, noise_of: Callable[[int], Noise]
) -> Callable[[bool, int], float]:
    """Log likelihood ratio of all released counts, for who knows every other row, and the target.

    The strongest attack there is: by the lemma of Neyman and Pearson no other tells both cases apart better.
    """

    def score(is_in: bool, seed: int) -> float:
        noise, true = noise_of(seed), Transcript()
        told = let_out(is_in, target, promise, lambda counts, sigma: noise(true(counts, sigma), sigma))
        other = Transcript([answer.counts for answer in told.answers])
        let_out(not is_in, target, promise, other)
        ratio = 0.0
        for answer, own, without in zip(told.answers, true.asked, other.asked, strict=True):
            apart = ((answer.counts - without) ** 2 - (answer.counts - own) ** 2).sum()
            ratio += float(apart) / (2.0 * answer.sigma**2)
        return ratio if is_in else -ratio

    return score


def size_attack(target: pl.DataFrame, promise: Promise) -> Callable[[bool, int], float]:
    """How many requests of the shared trace are nearly as long as the target's: sees the trace alone."""
    least = target["prompt_tokens"][0] / 2

    def score(is_in: bool, seed: int) -> float:
        told = let_out(is_in, target, promise, seeded_noise(seed))
        made = synthetic(told, np.random.default_rng(seed), 0.05)
        return float((made["prompt_tokens"] > least).sum())

    return score


TARGETS = {
    "row": (ROW, Promise(1.0, DELTA)),
    "tenant": (TENANT, Promise(1.0, DELTA, "tenant", 20)),
}


@pytest.mark.parametrize("unit", TARGETS)
def test_membership_is_told_no_better_than_the_bound(unit: str) -> None:
    target, promise = TARGETS[unit]
    _, high = advantage(likelihood_attack(target, promise, seeded_noise), 0.0, 160)
    assert high <= most_advantage(promise.epsilon, promise.delta)


@pytest.mark.parametrize("unit", TARGETS)
def test_without_noise_the_same_attack_succeeds(unit: str) -> None:
    target, promise = TARGETS[unit]
    low, _ = advantage(likelihood_attack(target, promise, lambda _: no_noise), 0.0, 20)
    assert low > most_advantage(promise.epsilon, promise.delta)


def test_a_tenant_is_not_hidden_by_a_promise_for_rows() -> None:
    """The attack is strong enough to tell tenant-level from row-level privacy."""
    low, _ = advantage(likelihood_attack(TENANT, TARGETS["row"][1], seeded_noise), 0.0, 30)
    assert low > most_advantage(1.0, DELTA)


def test_the_trace_alone_tells_no_more() -> None:
    _, high = advantage(size_attack(*TARGETS["row"]), 0.0, 30)
    assert high <= most_advantage(1.0, DELTA)


def test_the_trace_alone_tells_a_row_where_there_is_hardly_any_noise() -> None:
    """The count of its cell is 1, and each of as many draws as there are rows may meet it."""
    low, _ = advantage(size_attack(ROW, Promise(1e4, DELTA)), 0.0, 60)
    assert low > 0.3


def rate_of_target(promise: Promise, noise: Noise) -> float:
    """A tenant's requests, by who knows all others' and subtracts them from the released rate."""
    told = let_out(True, TENANT, promise, noise)
    (rate,) = (answer for answer in told.answers if answer.name == "rate")
    known = Transcript([answer.counts for answer in told.answers])
    let_out(False, TENANT, promise, known)
    at = [answer.name for answer in told.answers].index("rate")
    return float((rate.counts - known.asked[at]).sum())


def test_the_rate_of_a_tenant_cannot_be_reconstructed() -> None:
    """The error is larger than the rate itself; without noise there is none."""
    promise = TARGETS["tenant"][1]
    errors = [abs(rate_of_target(promise, seeded_noise(seed)) - 20.0) for seed in range(60)]
    assert np.median(errors) > 3 * 20.0
    assert rate_of_target(promise, no_noise) == 20.0


def test_canaries_are_nowhere() -> None:
    """Names, sizes, times, columns that are not shared: even where the counts are all but exact."""
    rows = OTHERS.height
    canaries = OTHERS.with_columns(
        pl.Series("class", [f"secret-class-{k % 2}" for k in range(rows)]),
        pl.Series("model", [f"secret-model-{k % 5}" for k in range(rows)]),
        pl.Series("tenant", [f"secret-tenant-{k % 9}" for k in range(rows)]),
        pl.Series("original_id", [f"secret-id-{k}" for k in range(rows)]),
        pl.Series("deadline_s", [1234.56789 + k / 977.0 for k in range(rows)]),
        pl.Series("note", ["secret-note"] * rows),
    )
    told = release(canaries, Promise(1e4, DELTA), TOKENS_RULE, seeded_noise(0), np.random.default_rng(0))
    made = synthetic(told, np.random.default_rng(0), 0.05)
    assert told.not_shared == ("original_id", "note")
    for text in (made.write_csv(), str(told.to_dict())):
        assert "secret" not in text
    for column in ("arrival_s", "deadline_s"):
        assert not set(made[column]) & set(canaries[column])
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "deadline_s"]
    assert made.join(canaries, on=columns, how="inner").is_empty()


def test_a_name_of_one_row_does_not_show() -> None:
    """Nor does the number of names tell that it is there."""
    promise = Promise(1.0, 1e-3)
    rare = OTHERS.with_columns(model=pl.lit("usual"))
    rare[0, "model"] = "rare"
    for seed in range(20):
        told = release(rare, promise, TOKENS_RULE, seeded_noise(seed), np.random.default_rng(0))
        assert told.names["model"].names == (None, "model-1")
        assert told.names["model"].others == 0
