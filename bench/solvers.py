"""`python -m bench.solvers`: instances within their time, some by HiGHS and CP-SAT too; its page.

Published instances are read from ../shared/data/gap beside the checkout; without them generated ones run.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.machine import machine
from bench.page_command import page_parser, write_page
from bench.results import write_whole
from bench.solver_instances import instance
from bench.solvers_page import page
from bench.startup import ROOT
from trimtab.solvers import (
    AssignmentProblem,
    Solution,
    assignment_problem,
    matching_problem,
    parse_gap,
    solve,
)
from trimtab.solvers.compilation import compile_solvers
from trimtab.solvers.matching import match, places_of
from trimtab.solvers.smoothing import solve_by_dual
from trimtab.solvers.solve import solve_exact

RESULTS, PAGE = ROOT / "bench" / "solvers.json", ROOT / "docs" / "benchmarks" / "solvers.md"
DATA = ROOT.parent / "shared" / "data" / "gap"
LIMIT_S = 5.0
GENERATED = [
    (kind, nodes, tasks) for kind in "cde" for nodes, tasks in ((5, 200), (20, 200), (40, 400), (80, 1600))
]
LARGE = [(100, 10_000, 5.0), (300, 30_000, 15.0), (1_000, 100_000, 60.0)]
OTHERS_S = 10.0  # of HiGHS and CP-SAT on the smallest of these
MATCHINGS = [
    (kind, nodes, tasks) for nodes, tasks in ((100, 2_000), (1_000, 1_000)) for kind in ("d", "scheduler")
]
MATCHING_S = 20.0
LARGE_KINDS = ("d", "scheduler")
BESIDE = ("c05100", "c20100", "d05100", "d20100", "e20100", "e15900")  # also by the others


def published(name: str) -> AssignmentProblem:
    """An instance of ../shared/data/gap by the name in best_known.csv."""
    file = DATA / name
    content = (file if file.exists() else file.with_name(file.name + ".gz")).read_bytes()
    return parse_gap((gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode(), name)


def cp_sat_value(problem: AssignmentProblem, limit_s: float) -> tuple[float | None, float]:
    """(value, seconds) by CP-SAT on one thread; None where it finds nothing."""
    from ortools.sat.python import cp_model

    begun_s, model = time.perf_counter(), cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(problem.nodes)] for _ in range(problem.tasks)]
    for row in x:
        model.add_exactly_one(row)
    for i in range(problem.nodes):
        demand = problem.demand[:, i, 0].astype(int).tolist()
        model.add(sum(d * row[i] for d, row in zip(demand, x, strict=True)) <= int(problem.capacity[i, 0]))
    costs = problem.value.astype(int).tolist()
    model.minimize(sum(c * v for cs, row in zip(costs, x, strict=True) for c, v in zip(cs, row, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = limit_s
    status = solver.solve(model)
    value = solver.objective_value if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return value, time.perf_counter() - begun_s


def _row(group: str, name: str, problem: AssignmentProblem, solution: Solution) -> dict[str, Any]:
    is_feasible = problem.is_feasible(solution.assignment)
    return {
        "group": group,
        "name": name,
        "nodes": problem.nodes,
        "tasks": problem.tasks,
        "is_feasible": is_feasible,
        "status": solution.status.value,
        "value": solution.objective if is_feasible else None,
        "bound": solution.bound,
        "proven_gap_frac": solution.gap_frac if is_feasible else None,
        "time_s": round(solution.time_s, 3),
        "method": solution.method,
    }


def _measure_published() -> Iterator[dict[str, Any]]:
    if not DATA.exists():
        return
    with (DATA / "best_known.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for known in rows:
        problem, best = published(known["instance"]), float(known["verified_best"])
        is_easy = problem.tasks < 100 or known["instance"].split("/")[1][0] in "ab"
        limit_s = 2 * LIMIT_S if is_easy else LIMIT_S
        solution = solve(problem, time_limit_s=limit_s)
        row = _row("published", known["instance"], problem, solution)
        gap = None if row["value"] is None else row["value"] / best - 1
        yield {
            **row,
            "limit_s": limit_s,
            "best_known": best,
            "gap_frac": gap,
            **_beside(problem, row["name"]),
        }


def _beside(problem: AssignmentProblem, name: str) -> dict[str, Any]:
    if name.split("/")[1] not in BESIDE:
        return {}
    highs = solve_exact(problem, time_limit_s=LIMIT_S)
    cp_value, cp_s = cp_sat_value(problem, LIMIT_S)
    return {
        "highs_value": highs.objective if highs.has_assignment else None,
        "highs_s": round(highs.time_s, 3),
        "cp_sat_value": cp_value,
        "cp_sat_s": round(cp_s, 3),
    }


def _measure_generated() -> Iterator[dict[str, Any]]:
    for kind, nodes, tasks in GENERATED:
        problem = instance(kind, nodes, tasks, seed=0)
        solution = solve(problem, time_limit_s=LIMIT_S)
        yield {**_row("generated", f"{kind}{nodes:02}{tasks}", problem, solution), "limit_s": LIMIT_S}


def _measure_large() -> Iterator[dict[str, Any]]:
    for nodes, tasks, limit_s in LARGE:
        for kind in LARGE_KINDS:
            problem = instance(kind, nodes, tasks, seed=0)
            cold = solve(problem, time_limit_s=limit_s)
            changed = _changed(problem)
            del problem
            warm = solve(changed, time_limit_s=limit_s, start=cold)
            row = _row("large", f"{kind} {nodes} × {tasks:,}", changed, warm)
            yield {
                **row,
                "limit_s": limit_s,
                "time_s": round(cold.time_s, 3),
                "proven_gap_frac": cold.gap_frac if cold.has_assignment else None,
                "warm_s": round(warm.time_s, 3),
                "warm_gap_frac": warm.gap_frac if warm.has_assignment else None,
            }


def _measure_others() -> Iterator[dict[str, Any]]:
    """The smallest large instances by ours, HiGHS, and where costs are whole CP-SAT."""
    nodes, tasks, limit_s = LARGE[0]
    for kind in LARGE_KINDS:
        problem = instance(kind, nodes, tasks, seed=0)
        ours = solve(problem, time_limit_s=limit_s)
        highs = solve_exact(problem, time_limit_s=OTHERS_S)
        row = _row("others", f"{kind} {nodes} × {tasks:,}", problem, ours)
        row |= {"limit_s": OTHERS_S, "highs_value": highs.objective if highs.has_assignment else None}
        row |= {"highs_s": round(highs.time_s, 3)}
        if (problem.value == np.rint(problem.value)).all():
            value, took_s = cp_sat_value(problem, OTHERS_S)
            row |= {"cp_sat_value": value, "cp_sat_s": round(took_s, 3)}
        yield row


def _measure_matching() -> Iterator[dict[str, Any]]:
    """Tasks of one size, nodes with as many places as there are tasks: by three ways to the same optimum."""
    for kind, nodes, tasks in MATCHINGS:
        problem = matching_problem(
            instance(kind, nodes, tasks, seed=0).value.astype(np.float64), tasks // nodes
        )
        places = places_of(problem)
        assert places is not None
        ways = {
            "linear": match(problem, places),
            "dual": solve_by_dual(problem, time_limit_s=OTHERS_S),
            "highs": solve_exact(problem, time_limit_s=MATCHING_S),
        }
        row: dict[str, Any] = {"name": f"{kind} {nodes} × {tasks:,}", "chosen": solve(problem).method}
        for way, solution in ways.items():
            gap_frac = solution.gap_frac if solution.has_assignment else None
            row |= {f"{way}_s": round(solution.time_s, 3), f"{way}_gap_frac": gap_frac}
        yield row


def _changed(problem: AssignmentProblem) -> AssignmentProblem:
    """The same with a hundredth of the tasks replaced by others' copies."""
    tasks = np.random.default_rng(1).choice(problem.tasks, problem.tasks // 100, replace=False)
    value, demand = problem.value.copy(), problem.demand.copy()
    value[tasks], demand[tasks] = value[np.roll(tasks, 1)], demand[np.roll(tasks, 1)]
    return assignment_problem(value, demand, problem.capacity)


PARTS = {
    "published": _measure_published,
    "generated": _measure_generated,
    "large": _measure_large,
    "others": _measure_others,
    "matching": _measure_matching,
}


def main() -> int:
    """Measure, save, write the page."""
    parser = page_parser("bench.solvers", __doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure; all by default")
    arguments = parser.parse_args()
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"parts": {}}
    if not arguments.docs:
        compile_solvers()
        for part in arguments.parts or PARTS:
            on, rows = machine(), []
            for row in PARTS[part]():
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
            saved["parts"][part] = {"measured": time.strftime("%Y-%m-%d %H:%M"), "machine": on, "rows": rows}
            text = json.dumps(saved, indent=1, ensure_ascii=False, allow_nan=False)
            write_whole(RESULTS, text + "\n")  # what is done is kept
    write_page(PAGE, page(saved))
    return 0


if __name__ == "__main__":
    sys.exit(main())
