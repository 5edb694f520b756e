"""No policy knows what is to come: another future changes nothing that was decided before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.conformance_cases import CASES, covering, pair
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests, Status
from trimtab.domain.view import new_work
from trimtab.engine.simulator import run
from trimtab.engine.state import State

DECIDED = ("node_idx", "start_s", "status", "key", "ended_s")
SEED = 5


def until(case: str, spec: str, work: Requests, until_s: float) -> State:
    """The state at a moment of a run."""
    c, _, options = CASES[case]()
    driver = run(c, work, replace(options, horizon_s=until_s), pair(spec), seed=SEED, mode="compiled")
    state: State = driver.state
    return state


def another_future(work: Requests, past: State, moment_s: float, c: Cluster) -> Requests:
    """The same up to a moment; then other requests, and what has not ended by then takes longer in truth."""
    rng, n = np.random.default_rng(7), len(work)
    rows, truth = work.work.copy(), work.truth.copy()
    has_ended = np.isin(past.requests["status"], [Status.FINISHED, Status.CANCELLED, Status.REJECTED])
    truth["units"][~has_ended] *= 1.5
    truth["factor"][~has_ended] *= 1.3
    later = np.flatnonzero(rows["arrival_s"] > moment_s)
    assert 0.3 * n < len(later) < 0.9 * n
    shuffled = new_work(n)
    shuffled[later] = rows[rng.permutation(later)]
    for name in ("serial", "arrival_s"):
        shuffled[name] = rows[name]
    shuffled["arrival_s"][later] = moment_s + np.sort(rng.uniform(0.0, 3.0, len(later))) + 1e-3
    shuffled["deadline_s"][later] = shuffled["arrival_s"][later] + rng.uniform(1.0, 9.0, len(later))
    shuffled["units"][later] *= rng.uniform(0.5, 4.0, len(later))
    shuffled["cost"] = shuffled["units"]
    shuffled["estimate_s"] = c.best_estimate_s(shuffled["class_idx"], shuffled["units"])
    rows[later] = shuffled[later]
    return replace(work, work=rows, truth=truth)


@covering(0, cases=["stale", "fresh", "plain"])
def test_a_changed_future_changes_no_decision(spec: str, case: str) -> None:
    c, work, _ = CASES[case]()
    moment_s = float(np.quantile(work.work["arrival_s"], 0.4))
    one = until(case, spec, work, moment_s)
    other = until(case, spec, another_future(work, one, moment_s, c), moment_s)
    arrived = one.requests["status"] != Status.PENDING
    np.testing.assert_array_equal(arrived, other.requests["status"] != Status.PENDING)
    assert arrived.sum() > 100
    for field in DECIDED:
        np.testing.assert_array_equal(one.requests[field][arrived], other.requests[field][arrived])
    for memory, same in zip(one.memories, other.memories, strict=True):
        for array, equal in zip(memory, same, strict=True):
            np.testing.assert_array_equal(array, equal)


def test_a_policy_that_knew_the_truth_would_be_caught() -> None:
    """The test can fail: one that looks at what requests really take decides otherwise."""
    c, work, options = CASES["plain"]()
    moment_s = float(np.quantile(work.work["arrival_s"], 0.4))

    def assigned(given: Requests, truth: np.ndarray) -> np.ndarray:
        class Oracle(Policy):
            """Sends what takes long in truth to the last node."""

            @staticmethod
            def dispatch(view, plan, work, memory, draws, ranking):  # type: ignore[no-untyped-def]
                ranking[0] = view.context.n_nodes - 1 if truth["units"][work.serial] > 1.0 else 0
                return 1

        state = run(
            c, given, replace(options, horizon_s=moment_s), Decider.of(Oracle()), mode="interpreted"
        ).state
        rows: np.ndarray = state.requests["node_idx"]
        return rows

    past = run(c, work, replace(options, horizon_s=moment_s), pair("random"), mode="interpreted").state
    changed = another_future(work, past, moment_s, c)
    arrived = work.work["arrival_s"] <= moment_s
    assert (assigned(work, work.truth) != assigned(changed, changed.truth))[arrived].any()
