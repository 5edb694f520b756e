"""Measures the time of one decision, by repeated calls of the policy on a paused run."""

from __future__ import annotations

import time
from typing import Any

import numba
import numpy as np
from numba import types

from trimtab.compiled.compiling import compile_kernel
from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.view import View
from trimtab.engine.calls import dispatch_at, plan_at, state_at
from trimtab.engine.driver import Driver
from trimtab.engine.loop import decide
from trimtab.engine.state import State

REPETITIONS, LONG_ENOUGH_S = 5, 0.01
_STRIDE, _LEAP = 7919, 31  # primes: requests and nodes take their turns in no order that caches would like
_REPEATED = types.void(numba.types.Array(types.int64, 1, "C"), types.int64)


@helper(inline=True)
def _swap(view: View, a: int, b: int) -> None:
    """Exchange the in-flight counts of two nodes, so that a policy has changes to process."""
    nodes = view.nodes
    in_flight, running, room = nodes.in_flight[a], nodes.running[a], nodes.room[a]
    outstanding_s, backlog_s, anchor_s = nodes.outstanding_s[a], nodes.backlog_s[a], nodes.anchor_s[a]
    nodes.in_flight[a], nodes.running[a], nodes.room[a] = nodes.in_flight[b], nodes.running[b], nodes.room[b]
    nodes.outstanding_s[a], nodes.backlog_s[a] = nodes.outstanding_s[b], nodes.backlog_s[b]
    nodes.anchor_s[a] = nodes.anchor_s[b]
    nodes.in_flight[b], nodes.running[b], nodes.room[b] = in_flight, running, room
    nodes.outstanding_s[b], nodes.backlog_s[b], nodes.anchor_s[b] = outstanding_s, backlog_s, anchor_s


@helper(inline=True)
def _change_two_nodes(s: State, d: int, i: int) -> None:
    n = len(s.nodes.up)
    a = i * _LEAP % n
    b = (a + 1 + i % max(1, n - 1)) % n
    _swap(s.views[d], a, b)
    s.changed[d][0] = a
    s.contexts.n_changed[d] = 1
    if a != b:
        s.changed[d][1] = b
        s.contexts.n_changed[d] = 2


@kernel
def decide_repeatedly(bound: Any, count: int) -> None:
    """Decide `count` times about requests that have arrived; two nodes change before each decision.

    A run changes as many, because each request starts and ends on a node.
    """
    s, plan, dispatch = state_at(bound[0]), plan_at(bound[1]), dispatch_at(bound[2], bound[3])
    for i in range(count):
        r = i * _STRIDE % s.counts.arrived[0]
        _change_two_nodes(s, r % s.config.dispatchers[0], i)
        decide(s, plan, dispatch, r, s.counts.now_s[0])


def decision_s(driver: Driver) -> float:
    """Seconds for one decision of a compiled run in which requests have arrived; this spoils the run.

    Least processor time of several measurements with warm caches; random draws and the change of two nodes
    are included.
    """
    repeat = compile_kernel(decide_repeatedly, _REPEATED)
    count = 1
    while (taken_s := _seconds(repeat, driver.addresses, count)) < LONG_ENOUGH_S:
        count *= 2
    return min(taken_s, *(_seconds(repeat, driver.addresses, count) for _ in range(REPETITIONS))) / count


def _seconds(repeat: Any, bound: np.ndarray, count: int) -> float:
    begun_s = time.thread_time()
    repeat(bound, count)
    return time.thread_time() - begun_s
