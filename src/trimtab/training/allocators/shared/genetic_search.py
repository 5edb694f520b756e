"""A genetic search over allocations (matrices of GPUs, jobs by nodes), and sorting by two costs.

Non-dominated sorting of members with two costs, and their distance to neighbours on the same front.

Source: Deb et al., A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, IEEE Transactions on
Evolutionary Computation 6(2), 2002, §III. With two costs fronts are found by one sweep in order of the first.

A genetic search over allocations: matrices of GPUs, jobs by nodes.

Idea: from a population, pairs of good allocations exchange their first jobs; some rows go back to the present
allocation, some elements go to zero, some grow where a node has free GPUs; then a repair restores the rules.
The better half of parents and offspring stays, by non-dominated sorting of two costs and by distance to the
neighbours (NSGA-II).
Source: Qiao et al., Pollux, OSDI 2021, §4.2.1, and the simulator published with it; Deb et al., A Fast and
Elitist Multiobjective Genetic Algorithm: NSGA-II, IEEE Transactions on Evolutionary Computation 6(2), 2002.
Deviations: of a node's distributed jobs only these give way to the first; the published repair also takes the
node from jobs behind them that are not distributed. A crossover happens in 9 of 10 pairs, as in pymoo (from
memory). Offspring equal to another allocation are made anew, four times as many as wanted at most.
Cost: O(generations · population · jobs · nodes).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.arrays import array
from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.training_jobs import Ints
from trimtab.engine.draws import stream, uniform


@helper(inline=True)
def better(rank: Any, distance: Any, a: Any, b: Any) -> Any:
    """Whether member a stands before b: a better front, or more distance on the same."""
    return rank[a] < rank[b] or (rank[a] == rank[b] and distance[a] > distance[b])


@helper
def pareto_order(costs: Any, count: Any, rank: Any, distance: Any) -> None:
    """Front (0 = dominated by none) and crowding distance of the first `count` members."""
    first = np.argsort(costs[:count, 0].copy(), kind="mergesort")
    for i in range(1, count):  # equal first costs: by the second
        k, j = first[i], i
        while j > 0 and costs[first[j - 1], 0] == costs[k, 0] and costs[first[j - 1], 1] > costs[k, 1]:
            first[j] = first[j - 1]
            j -= 1
        first[j] = k
    last = np.empty(count, np.int64)  # of each front: the member with the least second cost so far
    fronts = 0
    for i in range(count):
        k = first[i]
        low, high = 0, fronts  # the first front whose last member does not dominate k
        while low < high:
            middle = (low + high) // 2
            m = last[middle]
            if costs[m, 1] < costs[k, 1] or (costs[m, 1] == costs[k, 1] and costs[m, 0] < costs[k, 0]):
                low = middle + 1
            else:
                high = middle
        rank[k] = low
        last[low] = k
        fronts = max(fronts, low + 1)
    _spread(costs, count, rank, distance, first, last, fronts)


@helper
def _spread(costs: Any, count: Any, rank: Any, distance: Any, first: Any, last: Any, fronts: Any) -> None:
    """Crowding distance: along a front the second cost falls as the first one rises."""
    begin = np.full(fronts, -1)
    low, high = np.full((fronts, 2), math.inf), np.full((fronts, 2), -math.inf)
    for i in range(count):
        k = first[i]
        for c in range(2):
            low[rank[k], c] = min(low[rank[k], c], costs[k, c])
            high[rank[k], c] = max(high[rank[k], c], costs[k, c])
        distance[k] = 0.0
    before = np.full(count, -1)
    last[:fronts] = -1
    for i in range(count):
        k = first[i]
        front = rank[k]
        before[k] = last[front]
        if last[front] >= 0:
            m = last[front]
            if before[m] >= 0:
                distance[m] = _apart(costs, before[m], k, low[front], high[front])
        else:
            begin[front] = k
        last[front] = k
    for front in range(fronts):
        distance[begin[front]] = math.inf
        distance[last[front]] = math.inf


@helper(inline=True)
def _apart(costs: Any, a: Any, b: Any, low: Any, high: Any) -> Any:
    found = 0.0
    for c in range(2):
        if high[c] > low[c]:
            found += abs(costs[a, c] - costs[b, c]) / (high[c] - low[c])
    return found


POPULATION: Final = 100
CROSSED_FRAC: Final = 0.9
RESET_FRAC: Final = 0.1  # of rows
THINNED_FRAC: Final = 0.1  # of rows, in which each element goes to zero as often
_MOST_WEIGHT: Final = 1 << 40  # times all GPUs, it fits 64 bits
ATTEMPTS: Final = 4  # offspring made for each that is wanted, at most


class SearchProblem(NamedTuple):
    """The space of the search. Rows are jobs in order of precedence."""

    present: Annotated[Any, array("i8", "jobs", "nodes")]  # GPUs held now
    capacity: Annotated[Any, array("i8", "nodes")]
    least: Annotated[Any, array("i8", "jobs")]  # GPUs with which a job runs
    most: Annotated[Any, array("i8", "jobs")]
    fixed: Annotated[Any, array("?", "jobs")]  # whether the row stays as it is
    cost: Annotated[Any, array("f8", "jobs", "ways", "counts")]  # way 0: on one node, 1: on several
    moved_cost: Annotated[Any, array("f8", "jobs", "ways", "counts")]  # of rows that differ from `present`
    speedup: Annotated[Any, array("f8", "jobs", "ways", "counts")]


class Population(NamedTuple):
    """Twice as many allocations as survive, with their costs: the sum of the jobs', and less utilisation."""

    gpus: Annotated[Any, array("i8", "members", "jobs", "nodes")]
    costs: Annotated[Any, array("f8", "members", "two")]
    digest: Annotated[Any, array("i8", "members")]
    rank: Annotated[Any, array("i8", "members")]
    distance: Annotated[Any, array("f8", "members")]


def search_allocation(problem: SearchProblem, start: Ints, generations: int, seed: int) -> Ints:
    """The last population [members, jobs, nodes], least cost first. `start` is the first one."""
    jobs, nodes = problem.present.shape
    members = 2 * POPULATION
    population = Population(
        np.zeros((members, jobs, nodes), np.int8),
        np.zeros((members, 2)),
        np.zeros(members, np.int64),
        np.zeros(members, np.int64),
        np.zeros(members),
    )
    first = start[:POPULATION]
    population.gpus[: len(first)] = first
    count = _evolve(*problem, *population, len(first), generations, seed)
    least = int(np.argmin(population.costs[:count, 0]))
    found: Ints = population.gpus[:count]
    found[[0, least]] = found[[least, 0]]
    return found


@helper(inline=True)
def _draw(state: Any, at: Any) -> Any:
    at[0] += 1
    return uniform(state, at[0])


@kernel
def _evolve(
    present: Any, capacity: Any, least: Any, most: Any, fixed: Any, cost: Any, moved_cost: Any, speedup: Any,
    gpus: Any, costs: Any, digest: Any, rank: Any, distance: Any, count: Any, generations: Any, seed: Any,
) -> Any:  # fmt: skip
    """Let the first `count` members evolve in place; returns how many there are."""
    jobs, nodes = present.shape
    state, at = stream(seed, 0, 0), np.zeros(1, np.int64)
    used, order, taken = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    weight, kept = np.empty((jobs, nodes), np.int64), 0
    for j in range(jobs):
        for n in range(nodes):
            weight[j, n] = int(_draw(state, at) * _MOST_WEIGHT)
    for i in range(count):
        gpus[kept] = gpus[i]
        _settle(gpus[kept], present, capacity, least, most, fixed, used, order, taken, state, at)
        digest[kept] = _evaluate(
            gpus[kept], present, capacity, cost, moved_cost, speedup, weight, used, costs[kept]
        )
        kept += _is_new(digest, kept, digest[kept])
    count = kept
    pareto_order(costs, count, rank, distance)
    half = gpus.shape[0] // 2
    place, picked = np.zeros(2 * half), np.zeros(2, np.int64)
    for _ in range(generations):
        total = count
        for _attempt in range(ATTEMPTS * half // 2):
            if total >= count + half:
                break
            for k in range(2):
                a, b = int(_draw(state, at) * count), int(_draw(state, at) * count)
                picked[k] = b if better(rank, distance, b, a) else a
            point = int(_draw(state, at) * jobs) if _draw(state, at) < CROSSED_FRAC else 0
            for k in range(2):
                if total >= count + half:
                    break
                child = gpus[total]
                child[:point] = gpus[picked[1 - k], :point]
                child[point:] = gpus[picked[k], point:]
                _mutate(child, present, capacity, used, state, at)
                _settle(child, present, capacity, least, most, fixed, used, order, taken, state, at)
                digest[total] = _evaluate(
                    child, present, capacity, cost, moved_cost, speedup, weight, used, costs[total]
                )
                total += _is_new(digest, total, digest[total])
        if total == count:
            return count
        pareto_order(costs, total, rank, distance)
        count = _survive(gpus, costs, digest, rank, distance, total, half, place)
    return count


@helper
def _survive(
    gpus: Any, costs: Any, digest: Any, rank: Any, distance: Any, total: Any, half: Any, place: Any
) -> Any:
    """Move the best `half` members to the front; returns how many there are."""
    if total <= half:
        return total
    for i in range(total):
        place[i] = 4.0 * rank[i] - min(
            distance[i], 3.0
        )  # distances within a front are 2 at most, or infinite
    keep = np.argsort(place[:total], kind="mergesort")
    hole = 0
    for i in range(half):
        distance[keep[i]] = -1.0 - distance[keep[i]]  # marks it
    for i in range(half):
        k = keep[i]
        if k < half:
            continue
        while distance[hole] < 0.0:
            hole += 1
        gpus[hole], costs[hole] = gpus[k], costs[k]
        digest[hole], rank[hole], distance[hole] = digest[k], rank[k], distance[k]
    for i in range(half):
        distance[i] = -1.0 - distance[i]
    return half


@helper(inline=True)
def _is_new(digest: Any, count: Any, value: Any) -> Any:
    is_new = True
    for i in range(count):
        is_new &= digest[i] != value
    return is_new


@helper
def _mutate(rows: Any, present: Any, capacity: Any, used: Any, state: Any, at: Any) -> None:
    jobs, nodes = rows.shape
    used[:] = 0
    for j in range(jobs):
        chance = _draw(state, at)
        if chance < RESET_FRAC:
            rows[j] = present[j]
        chance /= RESET_FRAC
        if chance - int(chance) < THINNED_FRAC:  # independent of the reset
            for n in range(nodes):
                if _draw(state, at) < THINNED_FRAC:
                    rows[j, n] = 0
        for n in range(nodes):
            used[n] += rows[j, n]
    for n in range(nodes):
        if used[n] >= capacity[n]:
            continue
        holders = 0
        for j in range(jobs):
            holders += rows[j, n] > 0
        any_frac, holder_frac = 1.0 / jobs, 1.0 / max(holders, 1)
        for j in range(jobs):
            chance = any_frac
            if rows[j, n] > 0:
                chance += holder_frac - any_frac * holder_frac
            if _draw(state, at) < chance:
                room = capacity[n] + 1 - rows[j, n]
                rows[j, n] += int(_draw(state, at) * room)


@helper
def _settle(
    rows: Any, present: Any, capacity: Any, least: Any, most: Any, fixed: Any,
    used: Any, order: Any, taken: Any, state: Any, at: Any,
) -> None:  # fmt: skip
    """Restore the rules: fixed rows, one distributed job a node, limits of jobs and nodes."""
    jobs, nodes = rows.shape
    taken[:] = 0  # whether a distributed job has the node
    used[:] = 0
    for j in range(jobs):
        if fixed[j]:
            rows[j] = present[j]
            for n in range(nodes):
                used[n] += rows[j, n]
            continue
        spread, count = 0, 0
        for n in range(nodes):
            spread += rows[j, n] > 0
            count += rows[j, n]
        if count == 0:
            continue
        if spread > 1:
            for n in range(nodes):
                if rows[j, n] > 0:
                    if taken[n]:
                        count -= rows[j, n]
                        rows[j, n] = 0
                    taken[n] = 1
        if count > most[j]:
            _cap(rows[j], most[j], order, state, at)
        count = 0
        for n in range(nodes):
            rows[j, n] = min(rows[j, n], capacity[n] - used[n])
            used[n] += rows[j, n]
            count += rows[j, n]
        if 0 < count < least[j]:
            for n in range(nodes):
                used[n] -= rows[j, n]
                rows[j, n] = 0


@helper
def _cap(row: Any, most: Any, order: Any, state: Any, at: Any) -> None:
    """Take GPUs away from nodes in random order until no more than `most` are left."""
    nodes = row.size
    left = most
    for n in range(nodes):
        order[n] = n
    for n in range(nodes):
        k = n + int(_draw(state, at) * (nodes - n))
        order[n], order[k] = order[k], order[n]
        row[order[n]] = min(row[order[n]], left)
        left -= row[order[n]]


@helper
def _evaluate(
    rows: Any, present: Any, capacity: Any, cost: Any, moved_cost: Any, speedup: Any, weight: Any,
    used: Any, costs: Any,
) -> Any:  # fmt: skip
    """The two costs; returns a number that equal allocations share, and others hardly ever do."""
    jobs, nodes = rows.shape
    total, speed, digest = 0.0, 0.0, 0
    used[:] = 0
    for j in range(jobs):
        count, spread, moved = 0, 0, False
        for n in range(nodes):
            gpus = rows[j, n]
            count += gpus
            spread += gpus > 0
            used[n] += gpus
            digest += gpus * weight[j, n]
            moved |= gpus != present[j, n]
        way = 1 if spread > 1 else 0
        total += moved_cost[j, way, count] if moved else cost[j, way, count]
        speed += speedup[j, way, count]
    active = 0
    for n in range(nodes):
        if used[n] > 0:
            active += capacity[n]
    costs[0] = total
    costs[1] = -speed / active if active > 0 else 0.0
    return digest
