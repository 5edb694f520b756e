"""Even work: what it counts, which nodes compete, and that use comes out even where nodes differ."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.dispatch_by_hand import Desk
from trimtab.domain.options import Options
from trimtab.errors import UsageError
from trimtab.policies import find


def test_least_work_goes_first_among_the_good_enough() -> None:
    """Speeds 1 and 4, one unit each: completions 1 and .25 s, so the slow node is good enough later."""
    desk = Desk(cluster(2, types=2, speeds=[1.0, 4.0]), find("even-work(slack=4)")[0])
    desk.work["units"], desk.work["estimate_s"] = 1.0, 0.25
    first = [desk.decide() for _ in range(7)]
    assert first[0] == [1]  # nothing is sent yet, so a mean service is 0
    assert [ranked[0] for ranked in first] == [1, 0, 1, 1, 1, 0, 1]  # a second of work each by then
    assert first[1] == [0, 1]


def test_a_node_far_from_the_best_completion_does_not_compete() -> None:
    desk = Desk(cluster(2), find("even-work(slack=2)")[0])
    desk.work["units"] = desk.work["estimate_s"] = 1.0
    assert desk.decide()[0] == 0
    desk.set(1, in_flight=3, running=1, outstanding_s=2.5, backlog_s=2.5)
    assert desk.decide() == [0]  # 3.5 s there, 1 s here
    desk.set(1, backlog_s=1.5)
    assert desk.decide() == [1, 0]  # 2.5 s there, at most 3 will do


def test_a_node_that_was_down_does_not_make_up_for_it() -> None:
    desk = Desk(cluster(3), find("even-work")[0])
    desk.work["units"] = 1.0
    desk.set(2, up=0)
    assert [desk.decide()[0] for _ in range(8)] == [0, 1] * 4
    desk.set(2, up=1)
    assert sorted(desk.decide()[0] for _ in range(3)) == [0, 1, 2]


def test_unequal_nodes_are_used_evenly_and_no_slower_than_by_least_completion() -> None:
    c = cluster(20, types=2, speeds=[1.0, 4.0])
    work = requests(c, 20_000, load=0.8, seed=3)

    def figures(spec: str) -> tuple[float, float]:
        """Variance of utilisation over the nodes, 99th percentile of completion."""
        state = run(c, work, Options(), *find(spec), compiled=True)
        finish_s = state.requests["finish_s"]
        window_s = finish_s.max() - work.work["arrival_s"][0]
        completion_s = finish_s - work.work["arrival_s"]
        return float((state.hidden["busy_slot_s"] / window_s).var()), float(np.quantile(completion_s, 0.99))

    even, turns, best = (figures(spec) for spec in ("even-work", "round-robin", "least-expected-completion"))
    assert turns[0] > 20.0 * even[0]
    assert even[1] <= 1.2 * best[1]


@pytest.mark.parametrize("slack", ["-1.0", "1e999"])
def test_slack_out_of_range_is_named(slack: str) -> None:
    with pytest.raises(UsageError, match=r"even-work\.slack"):
        find(f"even-work(slack={slack})")
