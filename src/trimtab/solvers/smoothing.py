"""Large programmes: prices, rounding, ejection chains, and HiGHS on the core beside them.

Idea: the smoothed dual (`dual`) gives prices and a proven bound; `rounding` makes one node a task of the
softmin's shares; ejection chains (`ejection_search`) take away overload and cost. Where tasks are few
enough, the dual by resource (`knapsack`) proves more and says which pairs matter; chains with kicks
(`ejection_chains`) look at these first; branch and bound on that dual raises the bound by one at a time where
costs are whole (`bounded_search`); and HiGHS solves the core (`exact`) at the same time in a thread of its
own: the pairs of least floor, or, if they are few, all that could still be part of a better solution.
Source: Lagrangian heuristics, Fisher, Management Science 27(1), 1981; core problems, Balas and Zemel,
Operations Research 28(5), 1980; the parts name their own.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from trimtab.solvers.bounded_search import BoundSearch, Dives
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints, nearest, numbered, reduced
from trimtab.solvers.construction import construct_assignment
from trimtab.solvers.dual import Dual, climb, exact_value
from trimtab.solvers.knapsack import Knapsacks, knapsacks_of
from trimtab.solvers.primal_heuristic import Incumbent, Style
from trimtab.solvers.problem import AssignmentProblem, BoolArray, IntArray
from trimtab.solvers.rounding import repaired, rounded
from trimtab.solvers.solution import Solution, Status, found, nothing
from trimtab.solvers.subgradient import (
    FRESH_STAGES,
    PRICES_FRAC,
    cold_prices,
    columns_of,
    is_deep,
    is_integral,
    width_of,
)

CORE_WIDTHS = (2, 3, 4, 6, 10, 16, 1_000_000)  # pairs a task in the core, wider where it is solved in time
SEARCH_FIRST_FRAC = 0.05  # of the time before HiGHS begins, so that it gets a good start
ASK_FIRST_FRAC = 0.2  # the same where branch and bound begins with the search
KNAPSACKS_FIRST_FRAC = 0.1  # of the time for the bound by resource
REST_FRAC, REST_AFTER_S = 0.002, 1.0  # gap and time without gain at which HiGHS gets the processor alone
REST_S = 0.02
SPARE_S = 0.1  # what HiGHS may be late by
DEEP = Style()
BROAD = ((4, 4), (8, 4), (12, 4))  # depth and breadth of chains without kicks
SHORT = ((2, 1), (2, 4))  # of a large search at first: they take away most for an eighth of the time
REPAIR_GRACE_S = 0.3  # that repair may take beyond the limit: a solution late is better than none
REPAIR_FRAC = 0.2  # of the time that is left then, kept for repair
MAKESHIFT_GRACE_S = 1.0  # that the last chains of a makeshift may take beyond the limit
ADOPT_FRAC = 0.5  # of the time, when a large search gives up an overloaded position for the makeshift
AGAIN, AGAIN_LEAST_FRAC = (3, 4), 0.1  # from a start: only of tasks with regret, as a share of the spread
AGAIN_TRIES = 3  # to be without overload
SINGLE = (1, 1)  # before all: it takes overload away, in case that there is time for nothing more
FIRST_PURSUITS = 3  # before kicks begin
MOST_PURSUITS = 40
LEAST_PROGRESS_FRAC = 1e-4  # least gain that counts as progress
NEAR_FRAC, CLOSE_FRAC = 0.003, 0.002  # gaps at which a large search ends once it gains little, and at once


@dataclass(slots=True)
class _State:
    """State of one solve."""

    problem: AssignmentProblem
    begun_s: float
    until_s: float
    candidates: CandidatePairs
    dual: Dual
    bound: float  # of the cost
    is_integral: bool
    incumbent: Incumbent
    knapsacks: Knapsacks | None
    floors: Floats = field(init=False)  # [tasks, width] the least that a solution costs which uses a pair
    is_warm: bool = False  # the position is a start's
    makeshift: Ints | None = None  # [tasks] nodes, made for want of anything else
    is_makeshift_tried: bool = False
    bound_search: BoundSearch | None = None
    dives: Dives | None = None
    parts: list[str] = field(default_factory=lambda: ["dual smoothing", "ejection chains"])  # that had a turn

    @property
    def left_s(self) -> float:
        return self.until_s - time.perf_counter()

    @property
    def is_proved(self) -> bool:
        return self.incumbent.cost <= self.bound + 1e-9 * max(1.0, abs(self.bound))

    def is_within(self, gap_frac: float) -> bool:
        """Whether there is a solution with at most this gap."""
        cost = self.incumbent.cost
        return math.isfinite(cost) and cost - self.bound <= gap_frac * abs(cost)

    @property
    def least_dropped(self) -> float:
        """Lower bound of the cost of a solution that uses a pair outside the candidates."""
        first = reduced(self.candidates, self.dual.prices)[:, 0]
        return self.dual.value + float((self.candidates.dropped - first).min())

    def note(self, part: str) -> None:
        """Note a part of the method as used."""
        if part not in self.parts:
            self.parts.append(part)

    def raise_bound(self, bound: float) -> None:
        """Raise the bound; for whole costs to the next whole number."""
        whole = math.ceil(bound - 1e-6) if self.is_integral and math.isfinite(bound) else bound
        self.bound = max(self.bound, whole)


def solve_by_dual(
    problem: AssignmentProblem,
    *,
    time_limit_s: float,
    start: Solution | None = None,
    seed: int = 0,
    begun_s: float | None = None,
) -> Solution:
    """Solve by prices, rounding, chains and core; ends at the time limit, with a proof, or without progress.

    Args:
        problem: one that `why_infeasible` has nothing against.
        time_limit_s: wall time.
        start: solution of a problem like this one, with the same numbers of tasks, nodes and resources.
        seed: seed of the rounding and the random moves.
        begun_s: start of the time (perf_counter); default: now.
    """
    began_s = time.perf_counter() if begun_s is None else begun_s
    state = _prepared(problem, began_s, time_limit_s, start, np.random.default_rng(seed))
    if is_deep(problem):
        _search_with_core(state)
    else:
        if not state.is_warm:
            _search_broadly(state)
        elif not _search_again(state) and state.left_s > 0:
            state = _search_anew(state)
    if not math.isinf(state.bound):
        _adopt(state)
    took_s = time.perf_counter() - state.begun_s
    out_of_time = f"the time limit of {time_limit_s:g} s"
    bound, method = problem.sign * state.bound, ", ".join(state.parts)
    if math.isinf(state.incumbent.cost):
        return _without(problem, state, took_s, method, out_of_time)
    assignment = state.candidates.nodes_of(state.incumbent.best)
    reason = out_of_time if state.left_s <= SPARE_S else "the search stands still"
    prices = state.dual.prices[: problem.nodes]
    return found(problem, assignment, bound, took_s, method, prices=prices, reason=reason)


def _without(
    problem: AssignmentProblem, state: _State, took_s: float, method: str, out_of_time: str
) -> Solution:
    empty = np.full(problem.tasks, -1, np.int32)
    is_infeasible = math.isinf(state.bound)
    status = Status.INFEASIBLE if is_infeasible else Status.UNKNOWN
    over = problem.load(state.candidates.nodes_of(state.incumbent.current)) - problem.capacity
    where = f"node {int(over.max(axis=1).argmax())} stays overloaded by {over.max():g}"
    proof = f"no assignment keeps to all capacities (HiGHS): {where} in the nearest one found"
    reason = proof if is_infeasible else f"{where}; {out_of_time}"
    return nothing(problem, status, empty, problem.sign * state.bound, took_s, method, reason)


def _prepared(
    problem: AssignmentProblem,
    begun_s: float,
    time_limit_s: float,
    start: Solution | None,
    generator: np.random.Generator,
) -> _State:
    """Compute prices, candidate pairs, a bound, and a first solution."""
    until_s = begun_s + time_limit_s
    if start is not None and start.prices is not None:
        prices = np.vstack([start.prices, np.zeros((1, start.prices.shape[1]))])
        return _begun(problem, begun_s, until_s, prices, start.assignment, generator)
    dual = cold_prices(problem, begun_s, time_limit_s, generator)
    return _begun(problem, begun_s, until_s, dual.prices, dual.softness, generator)


def _begun(
    problem: AssignmentProblem,
    begun_s: float,
    until_s: float,
    prices: Floats,
    given: IntArray | float,
    generator: np.random.Generator,
) -> _State:
    """The state at these prices; the position is a given one [tasks], or rounded at a given softness."""
    has_all_pairs = is_deep(problem)
    candidates = nearest(problem, prices, problem.nodes + 1 if has_all_pairs else width_of(problem))
    softness = given if isinstance(given, float) else 0.0
    dual = Dual(prices, exact_value(candidates, prices), softness)
    state = _State(
        problem,
        begun_s,
        until_s,
        candidates,
        dual,
        -math.inf,
        has_all_pairs and is_integral(candidates),
        Incumbent(
            candidates,
            dual,
            rounded(candidates, dual)
            if isinstance(given, float)
            else columns_of(candidates, given, problem.nodes),
            generator,
        ),
        knapsacks_of(candidates, dual.prices) if has_all_pairs else None,
        is_warm=not isinstance(given, float),
    )
    state.raise_bound(dual.value)
    return state


def _search_anew(state: _State) -> _State:
    """Start a new search from new prices and a new rounding; keep the best solution from the start."""
    problem, before = state.problem, state.incumbent
    climb_until_s = time.perf_counter() + PRICES_FRAC * state.left_s
    dual = climb(state.candidates, state.dual.prices, climb_until_s, FRESH_STAGES)
    fresh = _begun(problem, state.begun_s, state.until_s, dual.prices, dual.softness, before.generator)
    fresh.raise_bound(state.bound)
    if math.isfinite(before.cost):
        fresh.makeshift, fresh.is_makeshift_tried = state.candidates.nodes_of(before.best), True
    _search_broadly(fresh)
    if fresh.makeshift is not None and fresh.incumbent.cost > before.cost:
        _offer(fresh, fresh.makeshift)
    return fresh


def _offer(state: _State, assignment: IntArray) -> None:
    """Continue from a feasible assignment, if there is none so far."""
    nodes = numbered(assignment, state.problem.nodes)
    state.incumbent.offer(state.incumbent.admit(nodes, state.problem))


def _search_again(state: _State) -> bool:
    """Apply chains from tasks with regret only; returns whether the gap is small enough."""
    incumbent, until_s = state.incumbent, state.until_s - REPAIR_FRAC * state.left_s
    for _ in range(AGAIN_TRIES):
        incumbent.eject_chains(*AGAIN, until_s, least_frac=AGAIN_LEAST_FRAC)
        if math.isinf(incumbent.cost):
            _repair(state)
        if math.isfinite(incumbent.cost) or time.perf_counter() > until_s:
            break
    return state.is_within(NEAR_FRAC)


def _search_broadly(state: _State) -> None:
    """Apply chains from all tasks, longer ones for a wide gap; then random moves, unless it is narrow."""
    incumbent, level, lengths = state.incumbent, 0, (*SHORT, *BROAD)
    until_s = state.until_s - REPAIR_FRAC * state.left_s
    incumbent.eject_chains(*SINGLE, until_s)
    adopt_s = time.perf_counter() + ADOPT_FRAC * state.left_s
    for _ in range(MOST_PURSUITS):
        before = incumbent.cost
        incumbent.eject_chains(*lengths[level], until_s)
        if math.isinf(incumbent.cost):
            _repair(state)
        if time.perf_counter() > adopt_s:
            _adopt(state)
        if time.perf_counter() > until_s or state.is_proved:
            break
        if state.is_within(CLOSE_FRAC):
            break
        if before - incumbent.cost <= LEAST_PROGRESS_FRAC * abs(incumbent.cost):
            level += 1
            if state.is_within(NEAR_FRAC) or level == len(lengths):
                break
    if math.isinf(incumbent.cost):
        _repair(state)
    while state.left_s > 0 and not state.is_within(NEAR_FRAC):
        incumbent.shake(*BROAD[-1], state.until_s)


def _repair(state: _State) -> None:
    """Repair: move tasks from overloaded nodes to any node."""
    incumbent = state.incumbent
    before = state.candidates.nodes_of(incumbent.current)
    after = repaired(state.problem, before, state.dual.prices, state.until_s + REPAIR_GRACE_S)
    if after is None:
        return
    _offer(state, after)


def _have_makeshift(state: _State) -> None:
    """If there is no feasible assignment yet, construct one as a fallback."""
    if math.isinf(state.incumbent.cost) and not state.is_makeshift_tried:
        state.is_makeshift_tried = True
        until_s = max(state.until_s, time.perf_counter() + MAKESHIFT_GRACE_S)
        state.makeshift = construct_assignment(state.problem, state.dual.prices, until_s)


def _adopt(state: _State) -> None:
    """Continue from the fallback if nothing else is feasible; at least one round of chains."""
    _have_makeshift(state)
    if math.isfinite(state.incumbent.cost) or state.makeshift is None:
        return
    state.note("construction")
    _offer(state, state.makeshift)
    state.incumbent.eject_chains(*SINGLE, state.until_s)


def _search_with_core(state: _State) -> None:
    """Run chains in this thread and HiGHS on the core in another, until a proof or the time limit."""
    for _ in range(FIRST_PURSUITS):
        if state.left_s > 0:
            state.incumbent.eject_chains(*BROAD[-1], state.until_s)
    if math.isinf(state.incumbent.cost):
        _repair(state)
    _have_makeshift(state)
    _climb_knapsacks(state, KNAPSACKS_FIRST_FRAC * state.left_s)
    if state.left_s > 0:
        state.incumbent.improve(DEEP)
    share = SEARCH_FIRST_FRAC if state.bound_search is None else ASK_FIRST_FRAC
    begin_s = time.perf_counter() + share * max(state.left_s, 0.0)
    while time.perf_counter() < begin_s and not state.is_proved:
        _ask(state)
        _dive(state)
        state.incumbent.improve(DEEP)
    for width in CORE_WIDTHS:
        if state.is_proved or state.left_s <= SPARE_S:
            break
        _search_beside(state, width)
    while state.left_s > 0 and not state.is_proved:
        state.incumbent.improve(DEEP)


def _climb_knapsacks(state: _State, limit_s: float) -> None:
    """Raise the bound by resource, if there is one, until it converges or the time is over."""
    knapsacks, until_s = state.knapsacks, time.perf_counter() + limit_s
    while knapsacks and not (knapsacks.is_settled or state.is_proved) and time.perf_counter() < until_s:
        knapsacks.climb(min(state.incumbent.cost, state.bound + abs(state.bound)))
        state.raise_bound(knapsacks.value)
    state.floors = _floors(state)
    if knapsacks is not None:
        state.incumbent.order_by(state.floors)
        if state.is_integral:
            task, column = np.nonzero(state.candidates.node >= 0)
            floors = np.full(knapsacks.cost.shape, np.inf)
            floors[state.candidates.node[task, column], task] = state.floors[task, column]
            state.bound_search, state.dives = BoundSearch(knapsacks, floors), Dives(knapsacks, floors)


def _floors(state: _State) -> Floats:
    """[tasks, width] lower bound of the cost of a solution that uses a pair, by both duals."""
    candidates, knapsacks = state.candidates, state.knapsacks
    costs = reduced(candidates, state.dual.prices)
    floors = state.dual.value + costs - costs[:, :1]
    if knapsacks is not None and math.isfinite(knapsacks.value):
        state.note("dual by resource")
        pairs = knapsacks.floors()[
            np.maximum(candidates.node, 0), np.arange(candidates.node.shape[0])[:, None]
        ]
        floors = np.maximum(floors, np.where(candidates.node >= 0, pairs, np.inf))
    return np.asarray(floors)


def _ask(state: _State) -> bool:
    """Run a slice of branch and bound for the cost that the bound allows; returns whether it ran."""
    bound_search = state.bound_search
    if bound_search is None or bound_search.is_over or state.is_proved:
        return False
    state.note("branch and bound")
    _learn(state, *bound_search.search(state.bound))
    return True


def _dive(state: _State) -> bool:
    """Run a slice of branch and bound for a cost between bound and best; returns whether it ran."""
    dives = state.dives
    if dives is None or dives.is_over or state.is_proved or state.left_s < dives.longest_s:
        return False
    state.note("dives")
    _learn(state, *dives.search(state.bound, state.incumbent.cost))
    return True


def _learn(state: _State, bound: float, nodes: Ints | None) -> None:
    """Update bound and best solution from a query's result."""
    state.raise_bound(bound)
    if nodes is not None:
        state.incumbent.offer(columns_of(state.candidates, nodes, state.problem.nodes))


def _search_beside(state: _State, width: int) -> None:
    """Run HiGHS on one core to its end, and chains beside it while they may gain."""
    from trimtab.solvers.exact import CoreSearch, core_bound  # loads HiGHS, which most problems do without

    candidates, incumbent = state.candidates, state.incumbent
    kept = _kept(state, width)
    start = incumbent.best if math.isfinite(incumbent.cost) else None
    if start is not None:
        kept[np.arange(start.size), start] = True
    state.note("core by HiGHS")
    core = CoreSearch(candidates, kept, state.left_s - SPARE_S, start)
    try:
        gained_s = time.perf_counter()
        while core.is_running and state.left_s > 0 and not state.is_proved:
            is_idle = time.perf_counter() > gained_s + REST_AFTER_S
            is_asked = _ask(state) | _dive(state)
            if is_idle and state.is_within(REST_FRAC):
                time.sleep(0.0 if is_asked else REST_S)
            elif incumbent.improve(DEEP):
                gained_s = time.perf_counter()
    finally:
        core.cancel()
        result = core.result()
    if result.choice is not None:
        incumbent.offer(result.choice)
    state.raise_bound(core_bound(result, kept, state.floors, state.least_dropped))


def _kept(state: _State, width: int) -> BoolArray:
    """The pairs of the core: all that a better solution may use if they are few, else each task's best."""
    step = 1.0 - 1e-6 if state.is_integral else 0.0
    useful = np.asarray((state.candidates.node >= 0) & (state.floors <= state.incumbent.cost - step))
    if useful.sum() <= width * useful.shape[0]:
        return useful
    rank = state.floors.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return np.asarray(useful & (rank < width))
