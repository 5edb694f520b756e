from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.profiles import LatencyProfile
from trimtab.profiles.fit_profile import Measurements, fit_profile, fit_served, iteration_s, thinned
from trimtab.profiles.iteration_rows import IterationRows, decode_rows, prompt_rows

DESCRIBED = {"gpu": "A1", "model": "small", "precision": "bf16", "source": "measured"} | {
    "memory_gib": 24.0,
    "weights_gib": 15.0,
    "kv_bytes_per_token": 131072.0,
}
TRUTH = LatencyProfile.model_validate(
    DESCRIBED
    | {"dense_s": {1: 0.010, 256: 0.020, 512: 0.050, 2048: 0.180}, "sequence_s": {1: 0.0}}
    | {"attention_s": {1: 0.001, 8: 0.002, 64: 0.010}, "context_s": {1: 1e-7, 8: 2e-7, 64: 1.5e-7}}
    | {"mixed_s": 0.002, "mixed_row_s": 2e-5, "mixed_context_s": 2e-7, "pair_s": 5e-9}
)


def grid() -> IterationRows:
    """Iterations at the points of the tables, timed by the truth."""
    decode = [(n, n * c, 0, 0, 0) for n in (1, 8, 64) for c in (100, 500, 1000, 2000)]
    mixed = [
        (n, n * c, 1, z, z * (k + z / 2))
        for n in (0, 8, 64)
        for c in (100, 1500)
        for z in (256 - n, 512 - n, 2048 - n)
        for k in (0, 700)
    ]
    columns = [np.array(column, float) for column in zip(*decode, *mixed, strict=True)]
    untimed = IterationRows(*columns, np.ones(len(columns[0])))
    return IterationRows(*columns, iteration_s(TRUTH, untimed))


def test_seconds_of_an_iteration_by_hand() -> None:
    rows = IterationRows(
        *(np.array([a, b], float) for a, b in ((8, 8), (800, 800), (0, 1), (0, 248), (0, 90), (1, 1)))
    )
    decode = 0.010 + 7 / 255 * 0.010 + 0.002 + 2e-7 * 800
    mixed = 0.020 + 0.002 + 2e-5 * 8 + 2e-7 * 800 + 5e-9 * 90
    np.testing.assert_allclose(iteration_s(TRUTH, rows), [decode, mixed])


@pytest.mark.parametrize("is_dense_known", [True, False])
def test_a_profile_is_found_again(is_dense_known: bool) -> None:
    rows = grid()
    known = Measurements(rows, TRUTH.dense_s, TRUTH.sequence_s) if is_dense_known else Measurements(rows)
    fitted = fit_profile(known, DESCRIBED, "x.csv")
    np.testing.assert_allclose(iteration_s(fitted.profile, rows), rows.seconds, rtol=0.01)
    assert fitted.decode_error is not None
    assert fitted.decode_error.rows == 12
    assert fitted.mixed_error is not None
    if is_dense_known:
        assert fitted.mixed_error.p90 < 0.01


def test_a_row_far_off_hardly_counts() -> None:
    rows = grid()
    rows.seconds[20] *= 4.0
    fitted = fit_profile(Measurements(rows, TRUTH.dense_s, TRUTH.sequence_s), DESCRIBED, "x.csv")
    assert fitted.profile.pair_s == pytest.approx(TRUTH.pair_s, rel=0.02)
    assert fitted.profile.mixed_context_s == pytest.approx(TRUTH.mixed_context_s, rel=0.05)


def test_equal_iterations_are_held_back_together() -> None:
    rows = grid()
    twice = rows.joined(rows)
    fitted = fit_profile(Measurements(twice, TRUTH.dense_s, TRUTH.sequence_s), DESCRIBED, "x.csv")
    np.testing.assert_allclose(fitted.predicted_s[: len(rows)], fitted.predicted_s[len(rows) :])


def test_prompts_that_are_read_whole() -> None:
    rows = prompt_rows(np.array([2.0]), np.array([100.0]), np.array([1.0]))
    assert (rows.prompt_tokens[0], rows.pairs[0], rows.is_mixed[0]) == (200.0, 10_000.0, True)


def test_too_few_rows_and_times_that_cannot_be() -> None:
    few = decode_rows(np.ones(3), np.ones(3), np.ones(3))
    with pytest.raises(
        UsageError, match=r"x\.csv: too few iterations without prompts \(got 3\); expected 10"
    ):
        fit_profile(Measurements(few), DESCRIBED, "x.csv")
    for n in (0.0, 1e9):
        rows = decode_rows(np.full(10, n), np.ones(10), np.ones(10))
        with pytest.raises(UsageError, match=r"tokens of an iteration \(got .*\); expected 1 to 1,048,576"):
            fit_profile(Measurements(rows), DESCRIBED, "x.csv")
    rows = grid()
    rows.seconds[0] = 0.0
    with pytest.raises(UsageError, match=r"a time that cannot be \(got 0\.0\); expected seconds above 0"):
        fit_profile(Measurements(rows), DESCRIBED, "x.csv")


def test_mean_iterations_of_servers() -> None:
    n = np.array([1, 2, 4, 8, 16, 32, 64, 1, 8, 64], float)
    given = np.array([1000, 4000] * 5, float)
    made = np.array([200, 200, 1000, 500, 200, 1000, 200, 1000, 800, 400], float)
    read = n * given / made  # prompt tokens of an iteration
    rows = IterationRows(n, n * (given + made / 2), n / made, read, read * given / 2, np.ones(10))
    seconds = 0.008 + 1e-4 * n + 1e-8 * rows.context + 3e-5 * rows.prompt_tokens
    rows = IterationRows(n, rows.context, rows.prompt_rows, rows.prompt_tokens, rows.pairs, seconds)
    fitted = fit_served(rows, DESCRIBED, "x.csv")
    assert fitted.mixed_error is not None
    assert fitted.mixed_error.p90 < 0.02
    alone = fitted.profile.tables(64, 64)
    assert alone.attention_s[32] + alone.context_s[32] * 3200 == pytest.approx(0.0112, rel=0.02)
    with pytest.raises(UsageError, match="too few rows of this configuration"):
        fit_served(rows[n > 1], DESCRIBED, "x.csv")


def test_thinned_keeps_a_step() -> None:
    numbers = np.arange(1.0, 101.0)
    table = thinned(numbers, np.where(numbers <= 50, 1.0, 2.0), 10)
    assert table == {1: 1.0, 50: 1.0, 51: 2.0, 100: 2.0}
