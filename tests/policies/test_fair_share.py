"""Fair share: its tags by hand, its bound between tenants, and how far it can be from the token counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests, run
from trimtab.compiled.kernel import interpreted
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Requests
from trimtab.policies import find
from trimtab.policies.orders.fair_share import FairShare

ONE_SLOT = cluster(1, queue_max=0)  # what does not run waits centrally


class Watched(Policy):
    """Fair share, with what it was shown and answered: time, serial, account, key."""

    needs = frozenset({Need.VIRTUAL_COUNTERS})

    def __init__(self) -> None:
        seen: list[tuple[float, int, float, float]] = []
        tag = interpreted(FairShare.order)

        def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
            key = float(tag(view, plan, work, memory))
            seen.append((view.context.now_s, work.serial, view.context.virtual_counter, key))
            return key

        self.order = order  # type: ignore[method-assign]
        self.seen = seen


def of_tenants(tenants: list[int], units: list[float], gap_s: float = 1e-3) -> Requests:
    """One after the other, almost at once."""
    work = requests(ONE_SLOT, len(tenants))
    work.work["arrival_s"] = gap_s * np.arange(len(tenants))
    work.work["tenant_idx"] = tenants
    for column in (work.work["units"], work.work["cost"], work.truth["units"]):
        column[:] = units
    return Requests(work.work, work.truth, ("a", "b", "c"))


def served(work: Requests, spec: str) -> list[int]:
    """Serials in the order in which the one slot took them."""
    return list(np.argsort(run(ONE_SLOT, work, Options(), *find(spec)).requests["start_s"]))


def test_tags_by_hand() -> None:
    """a sends 4, 2, 2 while the first runs, so a stands at 4 then; b comes to 0 but is lifted to a's 4.

    Tags: a: 4, 6; b: 4, 7. Ties by arrival: a's second, b's first, a's third, b's second.
    """
    work = of_tenants([0, 0, 0, 1, 1], [4.0, 2.0, 2.0, 3.0, 3.0])
    assert served(work, "random+fair-share") == [0, 1, 3, 2, 4]
    order = Watched()
    run(ONE_SLOT, work, Options(), find("random")[0], order)
    tags: dict[int, float] = {}
    for _, serial, _, key in order.seen:
        tags.setdefault(serial, key)
    assert tags == {1: 4.0, 2: 6.0, 3: 4.0, 4: 7.0}


@pytest.mark.parametrize("seed", range(3))
def test_with_exact_estimates_it_serves_as_the_token_counter_does(seed: int) -> None:
    c = cluster(3, queue_max=0)
    work = requests(c, 400, load=1.3, seed=seed, tenants=4)
    whole = np.ceil(work.work["units"])  # whole charges add up without rounding
    for column in (work.work["units"], work.work["cost"], work.truth["units"]):
        column[:] = whole
    ours, theirs = (run(c, work, Options(), *find(f"random+{o}")).requests for o in ("fair-share", "vtc"))
    np.testing.assert_array_equal(ours["start_s"], theirs["start_s"])


def test_backlogged_tenants_get_the_same_within_one_request_each() -> None:
    """Goyal, Vin, Cheng, theorem 1: services differ by at most a largest request of either, at any time."""
    rng = np.random.default_rng(4)
    tenants = list(rng.permutation([0] * 300 + [1] * 100))
    units = [float(rng.exponential(3.0 if t else 1.0)) for t in tenants]
    order = served(of_tenants(tenants, units, gap_s=1e-6), "random+fair-share")[1:]  # all wait but the first
    largest = [max(u for u, t in zip(units, tenants, strict=True) if t == which) for which in (0, 1)]
    last = [max(i for i, r in enumerate(order) if tenants[r] == which) for which in (0, 1)]
    both = order[: min(last)]  # from here on only one of them is backlogged
    gained = np.cumsum([units[r] * (1 if tenants[r] else -1) for r in both])
    assert len(both) > 100
    assert np.ptp(np.concatenate([[0.0], gained])) <= sum(largest)


@pytest.mark.parametrize("seed", range(3))
def test_tags_exceed_the_account_by_no_more_than_what_was_estimated_too_high(seed: int) -> None:
    """At service, account ≤ key ≤ account + overestimates of its tenant's that ended meanwhile.

    Meanwhile: since the oldest of the tenant's came that waited when the tag was given.
    """
    c = cluster(2, queue_max=0)
    work = requests(c, 500, load=1.2, seed=seed, tenants=3)
    rng = np.random.default_rng(seed)
    work.truth["units"] = work.work["units"] * rng.uniform(0.4, 1.3, len(work))
    order = Watched()
    rows = run(c, work, Options(), find("random")[0], order).requests
    over = np.maximum(0.0, work.work["units"] - work.truth["units"])
    given: dict[int, tuple[float, float]] = {}  # serial → when it got its present tag, and which
    worst = 0.0
    for now_s, serial, account, key in order.seen:
        since_s, tag = given.get(serial, (now_s, key))
        given[serial] = (now_s, key) if key > tag else (since_s, tag)
        if now_s > since_s:
            standing = max(tag, key)  # asked again as it leaves: the greater of the two holds
            mine = work.work["tenant_idx"] == work.work["tenant_idx"][serial]
            waited = mine & (rows["start_s"] > since_s) & (work.work["arrival_s"] <= since_s)
            oldest_s = work.work["arrival_s"][waited].min()
            ended = mine & (rows["finish_s"] > oldest_s) & (rows["finish_s"] <= now_s)
            assert account - 1e-9 <= standing <= account + over[ended].sum() + 1e-9
            worst = max(worst, standing - account)
    assert worst > 0.0  # the bound had something to bind


@pytest.mark.parametrize("order", ["vtc", "fair-share"])
def test_errors_of_estimates_count_by_weight(order: str) -> None:
    """a weighs 2: its requests are charged 1 for 2 s expected and 2 more for the true 6 s; b's 3 for 3 s."""
    n = 30
    work = of_tenants([2, *[0] * n, *[1] * n], [1.0] + [2.0] * n + [3.0] * n)
    work.work["cost"][1 : n + 1] /= 2.0
    work.truth["units"][1 : n + 1] = 6.0
    rows = run(
        ONE_SLOT,
        Requests(work.work, work.truth, work.tenant_names, tenant_weight=np.array([2.0, 1.0, 1.0])),
        Options(),
        *find(f"random+{order}"),
    ).requests
    first = np.argsort(rows["start_s"])[1:31]
    assert (first <= n).sum() == pytest.approx(15, abs=1)
