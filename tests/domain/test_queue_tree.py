"""The tree of queues: what each may have, and fair shares: cases by hand and a search by bisection."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.compiled.kernel import interpreted
from trimtab.domain.queue_tree import Amounts, Floats, Queue, QueueScheme, QueueTree, fair_shares
from trimtab.errors import UsageError


def tree(*queues: Queue, resources: tuple[str, ...] = ("gpus",)) -> QueueTree:
    return QueueTree.of(queues, resources)


def shares(made: QueueTree, demand: list[float], capacity: float) -> dict[str, float]:
    amounts = made.amounts(np.array([capacity]))
    guarantee, limit = amounts.guarantee[:, 0].copy(), amounts.limit[:, 0].copy()
    found = fair_shares(made.shape, guarantee, limit, np.array(demand, np.float64), capacity)
    same = interpreted(fair_shares)(made.shape, guarantee, limit, np.array(demand, np.float64), capacity)
    np.testing.assert_array_equal(found, same)
    return dict(zip(made.paths, found.tolist(), strict=True))


def random_tree(rng: np.random.Generator, depth: int = 2) -> QueueTree:
    def queues(level: int) -> tuple[Queue, ...]:
        n = int(rng.integers(2, 5))
        parts = rng.dirichlet(np.ones(n)) * rng.uniform(0, 1)
        return tuple(
            Queue(
                f"q{k}",
                weight=float(rng.uniform(0.2, 5)),
                guarantee=float(parts[k]),
                limit=float(rng.uniform(parts[k], 1)),
                children=queues(level - 1) if level > 1 and rng.random() < 0.6 else (),
            )
            for k in range(n)
        )

    return tree(*queues(depth))


def test_parts_are_of_the_parent_and_limits_never_above_it() -> None:
    inner = Queue("b", guarantee=0.5, limit=0.8, children=(Queue("c", guarantee=0.4, limit=0.5), Queue("d")))
    made = tree(Queue("a", guarantee=0.5), inner)
    amounts = made.amounts(np.array([40.0]))
    assert made.paths == ("", "a", "b", "b.c", "b.d")
    assert amounts.guarantee[:, 0].tolist() == [40, 20, 20, 8, 0]
    assert amounts.limit[:, 0].tolist() == [40, 40, 32, 16, 32]


def test_absolute_amounts_hold_by_resource_and_shrink_with_what_is_there() -> None:
    resources = ("gpus", "cpus")
    made = tree(
        Queue("a", guarantee={"gpus": 8}, limit={"gpus": 12}), Queue("b", guarantee=0.25), resources=resources
    )
    whole = made.amounts(np.array([16.0, 64.0]))
    assert whole.guarantee.tolist() == [[16, 64], [8, 0], [4, 16]]
    assert whole.limit.tolist() == [[16, 64], [12, 64], [16, 64]]
    half = made.amounts(np.array([8.0, 64.0]))  # 8 and 2 of 8
    assert half.guarantee[:, 0].tolist() == pytest.approx([8, 6.4, 1.6])


def test_what_siblings_leave_is_borrowed_inside_the_parent_first() -> None:
    inner = Queue("b", children=(Queue("c"), Queue("d")))
    assert shares(tree(Queue("a"), inner), [100, 100, 1], 40) == {
        "": 40,
        "a": 20,
        "b": 20,
        "b.c": 19,
        "b.d": 1,
    }
    assert shares(tree(Queue("a"), inner), [100, 3, 1], 40) == {"": 40, "a": 36, "b": 4, "b.c": 3, "b.d": 1}


def test_weights_share_what_is_contended_within_guarantees_and_limits() -> None:
    queues = Queue("a", weight=3), Queue("b", guarantee=0.4), Queue("c", limit=0.1)
    # 40 GPUs: b has 16 at least, c 4 at most; a gets the rest, 20, since 3 of 5 parts would be 24
    assert shares(tree(*queues), [100, 100, 100], 40) == {"": 40, "a": 20, "b": 16, "c": 4}


@pytest.mark.parametrize("seed", range(25))
def test_fair_shares_are_those_of_a_search_for_the_level(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = random_tree(rng)
    demand = rng.uniform(0, 40, len(made.leaf_paths)) * (rng.random(len(made.leaf_paths)) < 0.8)
    found = shares(made, demand.tolist(), 50.0)
    amounts = made.amounts(np.array([50.0]))
    expected = np.zeros(len(made.paths))
    least, most = _bounds(made, amounts, demand)
    expected[0] = min(most[0], 50.0)
    for row in range(len(made.paths)):
        children = made.children(row)
        if len(children):
            expected[children] = _by_bisection(
                made.shape.weight[children], least[children], most[children], expected[row]
            )
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)


def _bounds(made: QueueTree, amounts: Amounts, demand: Floats) -> tuple[Floats, Floats]:
    most = np.zeros(len(made.paths))
    for row in reversed(range(len(made.paths))):
        children = made.children(row)
        wants = most[children].sum() if len(children) else demand[made.shape.first_leaf[row]]
        most[row] = min(wants, amounts.limit[row, 0])
    return np.minimum(amounts.guarantee[:, 0], most), most


def _by_bisection(weight: Floats, least: Floats, most: Floats, total: float) -> Floats:
    low, high = 0.0, 1e6
    for _ in range(200):
        level = (low + high) / 2
        if np.clip(level * weight, least, most).sum() < total:
            low = level
        else:
            high = level
    return np.clip(high * weight, least, most)


def test_schemes_keep_what_they_say() -> None:
    made = tree(
        Queue("a", weight=2, guarantee=0.5, limit=0.6, notice_s=10), Queue("b", children=(Queue("c"),))
    )
    assert made.under(QueueScheme.NONE) is None
    flat, guarantees, hdrf = map(made.under, (QueueScheme.FLAT, QueueScheme.GUARANTEES, QueueScheme.HDRF))
    assert flat is not None
    assert guarantees is not None
    assert hdrf is not None
    assert flat.paths == ("", "a", "b.c")
    assert (flat.shape.weight == 1).all()
    assert not flat.guarantee[1:].any()
    assert np.isinf(guarantees.notice_s).all()
    assert made.under(QueueScheme.PREEMPTION) == made
    assert made.notice_s[1] == hdrf.notice_s[1] == 10
    assert [made.is_dominant, hdrf.is_dominant] == [False, True]


def test_tenants_find_their_leaf_or_the_default() -> None:
    queues = Queue("a", tenants=("x",)), Queue("b", children=(Queue("c", tenants=("y", "z")),))
    assert tree(*queues).leaf_of(["z", "x", "w"]).tolist() == [1, 0, -1]
    assert tree(*queues, Queue("default")).leaf_of(["z", "x", "w"]).tolist() == [1, 0, 2]


def test_amounts_that_contradict_each_other_on_the_true_capacity_are_refused() -> None:
    made = tree(Queue("a", guarantee={"gpus": 12}), Queue("b", guarantee=0.5))
    made.refuse_misfits(np.array([24.0]), "f.yaml")
    with pytest.raises(UsageError, match=r"f\.yaml: queues\.b\.guarantee.*16 gpus.*add up to 20 gpus"):
        made.refuse_misfits(np.array([16.0]), "f.yaml")
    low = tree(Queue("a", guarantee=0.5, limit={"gpus": 4}))
    with pytest.raises(UsageError, match=r"queues\.a\.limit.*'4 gpus'.*at least its guarantee, 8 gpus"):
        low.refuse_misfits(np.array([16.0]), "f.yaml")
    with pytest.raises(UsageError, match=r"queues\.a\.queues\.b\.limit.*'gpu'.*amounts of gpus"):
        tree(Queue("a", children=(Queue("b", limit={"gpu": 3}),)))
