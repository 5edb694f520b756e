"""Nodes drawn by capacity: exactly in proportion, and in proportion among the able ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.shared.sampling import alias_table

ONE = "sampled-completion(d=1)"


@pytest.mark.parametrize("weights", [[1.0], [5.0, 1.0, 1.0], [0.0, 2.0, 3.0], [0.1] * 7, [1e-9, 1.0, 1e9]])
def test_cells_add_up_to_the_weights(weights: list[float]) -> None:
    own_frac, other = alias_table(np.array(weights))
    shares = own_frac + np.bincount(other, weights=1.0 - own_frac, minlength=len(weights))
    np.testing.assert_allclose(shares / len(weights), np.array(weights) / sum(weights), atol=1e-15)
    assert ((own_frac >= 0.0) & (own_frac <= 1.0)).all()


def test_on_an_even_grid_draws_are_exactly_proportional() -> None:
    desk = Desk(cluster(4, types=4, speeds=[1.0, 2.0, 3.0, 4.0]), find(ONE)[0])
    counts = Counter(desk.decide([(i + 0.5) / 1000])[0] for i in range(1000))
    assert counts == {0: 100, 1: 200, 2: 300, 3: 400}


def test_among_able_nodes_the_proportions_stay() -> None:
    desk = Desk(cluster(4, types=4, speeds=[1.0, 2.0, 3.0, 4.0]), find(ONE)[0])
    desk.set(3, up=0)
    counts = Counter(desk.decide([(i + 0.5) / 12000])[0] for i in range(12000))
    for j, expected in enumerate([2000, 4000, 6000]):
        assert abs(counts[j] - expected) <= 5  # cells and grid don't quite match
    for j in range(3):
        desk.set(j, room=0)
    assert desk.decide([0.3]) == []


@pytest.mark.parametrize("d", [0, 9])
def test_a_number_of_samples_out_of_range_is_named(d: int) -> None:
    with pytest.raises(UsageError, match=r"sampled-completion\.d"):
        find(f"sampled-completion(d={d})")


def test_of_equals_the_one_sampled_first_is_taken() -> None:
    """By index, dispatchers with the same old reports would all take the first of the idle nodes."""
    desk = Desk(cluster(4), find("sampled-completion(d=2)")[0])
    assert desk.decide([0.9, 0.1]) == [3, 0]
    assert desk.decide([0.1, 0.9]) == [0, 3]
    desk.set(3, in_flight=1, running=1, backlog_s=0.5, outstanding_s=0.5)
    assert desk.decide([0.9, 0.1]) == [0, 3]
