"""Sparrow against a plain simulation of its algorithm, an equivalent policy, its mean field and by hand."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.by_hand import asked, fault_table, finishes, once, played, starts
from support.mean_field import least_loaded_time
from support.stations import stream, times_s
from trimtab.compiled.kernel import interpreted
from trimtab.domain.options import Options
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Status
from trimtab.engine.draws import stream as draw_stream
from trimtab.engine.draws import uniform
from trimtab.errors import UsageError
from trimtab.policies import find

SEED = 0


def policy(spec: str = "sparrow") -> Policy:
    return find(spec)[0]


def probed(serial: int, nodes: int, d: int) -> list[int]:
    """Different nodes, evenly drawn: the draws of the request's first decision."""
    with np.errstate(over="ignore"):
        state = interpreted(draw_stream)(SEED, serial, 0)
        draws = [interpreted(uniform)(state, i) for i in range(d)]
    found: list[int] = []
    for u in draws:
        j = int(u * nodes)
        if j in found:
            others = [k for k in range(nodes) if k not in found]
            j = others[int((u * nodes - j) * len(others))]
        found.append(j)
    return found


class PlainSparrow:
    """Nodes with queues of reservations, and a scheduler that gives each task to the first node that asks."""

    def __init__(self, nodes: int, service_s: np.ndarray) -> None:
        self.queues: list[deque[int]] = [deque() for _ in range(nodes)]
        self.service_s, self.ends_s = service_s, [0.0] * nodes
        self.start_s, self.node = [np.nan] * len(service_s), [-1] * len(service_s)

    def ask(self, j: int, now_s: float) -> None:
        """Node j, which is free, works off its reservations until one still has a task."""
        while self.queues[j]:
            task = self.queues[j].popleft()
            if self.node[task] < 0:
                self.node[task], self.start_s[task] = j, now_s
                self.ends_s[j] = now_s + self.service_s[task]
                return

    def run_to(self, now_s: float) -> None:
        """Completions in order of time."""
        while True:
            due = [(end_s, j) for j, end_s in enumerate(self.ends_s) if end_s <= now_s and self.queues[j]]
            if not due:
                return
            end_s, j = min(due)
            self.ask(j, end_s)

    def arrive(self, task: int, now_s: float, nodes: list[int]) -> None:
        """A reservation at each node; those that are idle ask at once."""
        self.run_to(now_s)
        for j in nodes:
            self.queues[j].append(task)
        for j in nodes:
            if self.ends_s[j] <= now_s:
                self.ask(j, now_s)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("load", [0.5, 0.95])
def test_each_task_starts_where_and_when_the_plain_algorithm_starts_it(d: int, load: float) -> None:
    nodes, n, rng = 6, 500, np.random.default_rng(d)
    arrival_s = np.cumsum(rng.exponential(1 / (load * nodes), n))
    service_s = rng.exponential(1.0, n)
    plain = PlainSparrow(nodes, service_s)
    for task, now_s in enumerate(arrival_s):
        plain.arrive(task, float(now_s), probed(task, nodes, d))
    plain.run_to(np.inf)
    c = cluster(nodes)
    driver = played(c, asked(c, arrival_s.tolist(), service_s), policy=policy(f"sparrow(d={d},tasks_max=1)"))
    assert driver.state.requests["node_idx"].tolist() == plain.node
    assert starts(driver) == pytest.approx(plain.start_s)
    assert (np.array(starts(driver)) > arrival_s + 1e-9).mean() > 0.05  # some have waited


def test_a_task_alone_starts_when_the_least_work_left_of_its_nodes_is_done() -> None:
    """Late binding by reservations finds the node of least work without knowing any size."""
    nodes, n, rng = 8, 600, np.random.default_rng(9)
    arrival_s, service_s = np.cumsum(rng.exponential(1 / 7.2, n)), rng.exponential(1.0, n)
    free_s, expected_s = np.zeros(nodes), []
    for task, now_s in enumerate(arrival_s):
        j = min(probed(task, nodes, 2), key=lambda k: max(free_s[k], now_s))
        expected_s.append(max(free_s[j], now_s))
        free_s[j] = expected_s[-1] + service_s[task]
    c = cluster(nodes)
    assert starts(played(c, asked(c, arrival_s.tolist(), service_s), policy=policy())) == pytest.approx(
        expected_s
    )


def test_wrong_estimates_change_nothing() -> None:
    rng, c = np.random.default_rng(2), cluster(5)
    r = asked(c, np.cumsum(rng.exponential(0.22, 200)).tolist(), rng.exponential(1.0, 200))
    before = starts(played(c, r, policy=policy()))
    r.work["units"] = 7.0
    r.work["estimate_s"] = 7.0
    assert starts(played(c, r, policy=policy())) == before


@pytest.mark.parametrize("load", [0.6, pytest.param(0.85, marks=pytest.mark.full)])
def test_many_nodes_take_as_long_as_the_mean_field_says(load: float) -> None:
    servers = 300
    means = [
        times_s(stream(cluster(servers), load * servers, 40_000, seed, policy=policy())).mean()
        for seed in range(8)
    ]
    assert_agrees(means, least_loaded_time(load, 2), bias_frac=0.02)


JOIN_AT_ONCE = Options(join_s=np.zeros(1))


def test_a_job_places_its_reservations_at_different_nodes() -> None:
    """Four tasks with one reservation each on four nodes: each node gets one, whatever is drawn."""
    c = cluster(4)
    for at_s in (0.3, 1.7, 4.1):
        d = played(c, asked(c, [at_s], 8.0, parts_max=4), JOIN_AT_ONCE, policy("sparrow(d=1)"))
        assert finishes(d)[0] == pytest.approx(at_s + 2.0)  # all four parts of two seconds at once


def test_tasks_share_the_reservations_of_their_job() -> None:
    """Two tasks, four nodes reserved, one of them idle: the second task starts at the next that is free."""
    c = cluster(4)
    r = asked(c, [0.0, 0.1, 0.2, 1.0], [5.0, 4.0, 3.0, 8.0], parts_max=[1, 1, 1, 2])
    d = played(c, r, JOIN_AT_ONCE, policy("sparrow(d=4)"))
    parts = d.state.requests[4:]
    assert sorted(parts["start_s"][parts["status"] == Status.FINISHED]) == pytest.approx([1.0, 3.2])
    assert finishes(d)[3] == pytest.approx(7.2)


def test_a_job_whose_nodes_have_failed_draws_new_ones() -> None:
    c = cluster(3)
    for serial in range(3):
        down = probed(serial, 3, 1)[0]
        faults = fault_table(once(down, 0.5, 99.0))
        r = asked(c, [0.0] * serial + [0.2] * (3 - serial), 0.1 if serial else 5.0)
        d = played(c, r, Options(faults=faults), policy("sparrow(d=1,tasks_max=1)"))
        assert (d.state.requests["status"] == Status.FINISHED).all()
        assert max(finishes(d)) < 50.0


@pytest.mark.parametrize("spec", ["sparrow(d=0)", "sparrow(d=9)", "sparrow(tasks_max=0)"])
def test_parameters_out_of_range_are_named(spec: str) -> None:
    with pytest.raises(UsageError, match=r"sparrow\.(d|tasks_max): "):
        find(spec)
