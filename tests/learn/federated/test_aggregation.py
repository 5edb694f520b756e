"""How updates are combined: by hand, and against sites that lie or send poison."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.learn.federated.aggregation import Rule, Update, combined


def updates(*rows: tuple[float, float]) -> dict[str, Update]:
    """One number a site: its value and its rows."""
    return {f"s{k}": Update(np.array([value]), np.array([weight])) for k, (value, weight) in enumerate(rows)}


def test_the_mean_weighs_by_rows_or_not_at_all() -> None:
    given = updates((1.0, 10.0), (4.0, 20.0))
    assert combined(given, Rule()).values == pytest.approx(3.0)
    assert combined(given, Rule(weights="equal")).values == pytest.approx(2.5)


def test_a_site_without_rows_has_no_say() -> None:
    given = updates((1.0, 10.0), (100.0, 0.0), (3.0, 10.0))
    for name in ("mean", "median", "trimmed-mean"):
        assert combined(given, Rule(name)).values == pytest.approx(2.0), name
    assert combined(updates((5.0, 0.0)), Rule()).values == 0.0, "nobody knows: nothing changes"


def test_a_site_that_lies_about_its_rows_counts_for_no_more_than_the_bound() -> None:
    given = updates((0.0, 100.0), (0.0, 100.0), (9.0, 1e12))
    assert combined(given, Rule()).values == pytest.approx(9.0, abs=1e-6)
    assert combined(given, Rule(rows_max=100.0)).values == pytest.approx(3.0)
    assert combined(given, Rule(weights="equal")).values == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_a_minority_of_poison_stays_within_the_range_of_the_honest(name: str) -> None:
    rng = np.random.default_rng(3)
    honest = {f"h{k}": Update(rng.normal(1.0, 0.1, 50), np.full(50, 100.0)) for k in range(8)}
    poison = {f"p{k}": Update(np.full(50, 1e9 * (1 + k)), np.full(50, 1e9)) for k in range(2)}
    found = combined({**honest, **poison}, Rule(name)).values
    table = np.stack([update.values for update in honest.values()])
    assert (found >= table.min(axis=0)).all()
    assert (found <= table.max(axis=0)).all()
    assert abs(combined({**honest, **poison}, Rule()).values).max() > 1e6, "the mean has no bound"


def test_the_trimmed_mean_by_hand() -> None:
    given = updates((0.0, 1.0), (1.0, 5.0), (2.0, 1.0), (3.0, 1.0), (100.0, 1.0))
    assert combined(given, Rule("trimmed-mean", trim_frac=0.2)).values == pytest.approx(2.0)
    assert combined(given, Rule("trimmed-mean", trim_frac=0.45)).values == pytest.approx(2.0), "the middle"


def test_a_long_update_is_shortened_to_a_multiple_of_the_median_length() -> None:
    given = updates((1.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1000.0, 1.0))
    assert combined(given, Rule(clip=2.0)).values == pytest.approx((1 + 1 - 1 + 2) / 4)


def test_the_order_of_the_sites_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    given = {f"s{k}": Update(rng.normal(size=9), rng.random(9)) for k in range(7)}
    turned = dict(reversed(given.items()))
    for rule in (Rule(), Rule("median"), Rule(clip=1.0)):
        np.testing.assert_array_equal(combined(given, rule).values, combined(turned, rule).values)
