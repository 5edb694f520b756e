"""Assignment of tasks to nodes by optimisation: a problem in, a `Solution` with a proven bound out.

problem = assignment_problem(utility, demand, capacity, maximise=True)
solve(problem, time_limit_s=2.0).assignment
"""

from trimtab.solvers.gap_text import parse_gap
from trimtab.solvers.matching import matching_problem
from trimtab.solvers.problem import AssignmentProblem, assignment_problem
from trimtab.solvers.solution import Solution, Status
from trimtab.solvers.solve import Method, solve

__all__ = [
    "AssignmentProblem",
    "Method",
    "Solution",
    "Status",
    "assignment_problem",
    "matching_problem",
    "parse_gap",
    "solve",
]
