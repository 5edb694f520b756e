"""Compiles the solvers' kernels in advance by using each once, so that a time limit covers solving only."""

from __future__ import annotations

import numpy as np

from trimtab.compiled.compiling import compile_by_use, is_compiled
from trimtab.solvers import construction, dual, knapsack, rounding
from trimtab.solvers.bounded_search import BoundSearch
from trimtab.solvers.branching import explore
from trimtab.solvers.candidate_pairs import CandidatePairs, _nearest
from trimtab.solvers.dual import Dual
from trimtab.solvers.ejection_chains import search
from trimtab.solvers.ejection_search import eject_chains
from trimtab.solvers.knapsack import knapsacks_of
from trimtab.solvers.primal_heuristic import Incumbent
from trimtab.solvers.problem import assignment_problem
from trimtab.solvers.smoothing import DEEP, solve_by_dual

_EXCHANGES = (search,)
_BRANCHING = (explore, knapsack._climb, knapsack._forced)
_PRICES = (
    eject_chains,
    _nearest,
    dual._least,
    dual._look,
    dual._move,
    rounding._share,
    rounding._settle,
    construction._least_share,
    construction._place,
    construction._make_way,
)


def are_solvers_compiled() -> bool:
    """Whether the kernels are in the cache: compiling them takes longer than most problems."""
    return all(map(is_compiled, (*_EXCHANGES, *_BRANCHING, *_PRICES)))


def compile_exchanges() -> None:
    """Compile the search by exchanges, unless it is in the cache."""
    compile_by_use(_EXCHANGES, _use_exchanges)


def compile_branching() -> None:
    """Compile branch and bound, unless it is in the cache."""
    compile_by_use(_BRANCHING, _use_branching)


def compile_prices() -> None:
    """Compile prices, rounding, construction and ejection chains, unless they are in the cache."""
    compile_by_use(_PRICES, _use_prices)


COMPILATIONS = (compile_exchanges, compile_prices, compile_branching)  # the longest first


def compile_solvers() -> None:
    """Compile all kernels here and now, unless they are in the cache."""
    for compilation in COMPILATIONS:
        compilation()


def _four_tasks() -> CandidatePairs:
    """Four tasks, two nodes, and the node of no capacity that stands for being left out."""
    node = np.tile(np.arange(3, dtype=np.int32), (4, 1))
    cost, demand = np.ones(node.shape), np.ones((*node.shape, 1))
    return CandidatePairs(node, cost, demand, np.array([[2.0], [2.0], [0.0]]), np.full(4, np.inf))


def _use_exchanges() -> None:
    candidates, free = _four_tasks(), Dual(np.zeros((3, 1)), 0.0, 1.0)
    incumbent = Incumbent(candidates, free, np.zeros(4, np.int32), np.random.default_rng(0))
    incumbent.improve(DEEP, turns=1)


def _use_branching() -> None:
    knapsacks = knapsacks_of(_four_tasks(), np.zeros((3, 1)))
    assert knapsacks is not None  # one resource, whole demands
    knapsacks.climb(4.0)
    BoundSearch(knapsacks, knapsacks.floors()).search(4.0)


def _use_prices() -> None:
    free = np.zeros((3, 1))
    dual.climb(_four_tasks(), free)
    for kind in (np.float32, np.float64):
        problem = assignment_problem(np.ones((4, 2), kind), np.ones((4, 2), kind), [2.0, 2.0])
        solve_by_dual(problem, time_limit_s=0.0)
        packed = assignment_problem(np.ones((3, 2), kind), np.full((3, 2), 2, kind), [3.0, 3.0])
        construction.construct_assignment(packed, free)  # one task too many: it goes all the way
