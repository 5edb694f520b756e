"""Power of two in plain Python on the same work: a loop over a heap, and SimPy. Draws come ready-made."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from bench.kernels import fill_draws
from bench.work import SLOTS
from trimtab.experiments.scenario.build import RunInputs


@dataclass(frozen=True, slots=True)
class Lists:
    """The input of both, as Python numbers."""

    arrival_s: list[float]
    units: list[float]
    unit_s: list[float]  # [nodes]
    draws: list[list[float]]  # [requests, 2]


def lists_of(built: RunInputs) -> Lists:
    work, draws = built.requests.work, np.zeros((len(built.requests), 2))
    fill_draws(0, draws)
    unit_s = built.cluster.unit_s[0][built.cluster.type_idx]
    return Lists(work["arrival_s"].tolist(), work["units"].tolist(), unit_s.tolist(), draws.tolist())


def _less_busy(in_flight: list[int], draws: list[float]) -> int:
    n = len(in_flight)
    a, b = int(draws[0] * n), int(draws[1] * n)
    return a if in_flight[a] <= in_flight[b] else b


def run_heapq(given: Lists) -> tuple[float, float]:
    """Processor seconds and mean completion of a hand-written loop."""
    begun_s = time.process_time()
    finish_s = _heapq_loop(given)
    took_s = time.process_time() - begun_s
    return took_s, float((np.array(finish_s) - given.arrival_s).mean())


def _heapq_loop(given: Lists) -> list[float]:
    arrival_s, units, unit_s, draws = given.arrival_s, given.units, given.unit_s, given.draws
    in_flight, finish_s = [0] * len(unit_s), [0.0] * len(arrival_s)
    waiting: list[deque[int]] = [deque() for _ in unit_s]
    heap: list[tuple[float, int, int]] = []  # finish, request, node
    arrived, n = 0, len(arrival_s)
    while heap or arrived < n:
        if arrived < n and (not heap or arrival_s[arrived] < heap[0][0]):
            r, now_s = arrived, arrival_s[arrived]
            arrived += 1
            j = _less_busy(in_flight, draws[r])
            in_flight[j] += 1
            if in_flight[j] > SLOTS:
                waiting[j].append(r)
                continue
        else:
            now_s, r, j = heapq.heappop(heap)
            in_flight[j] -= 1
            if not waiting[j]:
                continue
            r = waiting[j].popleft()
        finish_s[r] = now_s + unit_s[j] * units[r]
        heapq.heappush(heap, (finish_s[r], r, j))
    return finish_s


def run_simpy(given: Lists) -> tuple[float, float]:
    """Processor seconds and mean completion of the textbook model: request = process, node = resource."""
    begun_s = time.process_time()
    finish_s = [0.0] * len(given.arrival_s)
    env = simpy.Environment()
    nodes = [simpy.Resource(env, SLOTS) for _ in given.unit_s]
    env.process(_arrivals(env, given, nodes, finish_s))
    env.run()
    took_s = time.process_time() - begun_s
    return took_s, float((np.array(finish_s) - given.arrival_s).mean())


def _arrivals(env: Any, given: Lists, nodes: list[Any], finish_s: list[float]) -> Iterator[Any]:
    in_flight = [0] * len(nodes)
    for r, arrival_s in enumerate(given.arrival_s):
        yield env.timeout(arrival_s - env.now)
        j = _less_busy(in_flight, given.draws[r])
        in_flight[j] += 1
        env.process(_serve(env, nodes, j, given.unit_s[j] * given.units[r], in_flight, finish_s, r))


def _serve(
    env: Any, nodes: list[Any], j: int, service_s: float, in_flight: list[int], finish_s: list[float], r: int
) -> Iterator[Any]:
    with nodes[j].request() as slot:
        yield slot
        yield env.timeout(service_s)
    in_flight[j] -= 1
    finish_s[r] = env.now
