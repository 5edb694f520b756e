"""Problems and files that can't be used: the message names the place."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from trimtab.errors import ProblemError
from trimtab.solvers import assignment_problem, parse_gap, solve

GOOD = "2 3\n1 2 3\n4 5 6\n1 1 1\n2 2 2\n3 4\n"


def test_a_file_is_read_node_by_node():
    problem = parse_gap(GOOD, "x")
    assert problem.value.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert problem.demand[..., 0].tolist() == [[1, 2]] * 3
    assert problem.capacity[:, 0].tolist() == [3, 4]
    assert not problem.optional.any()
    assert parse_gap(GOOD, "x", maximise=True).optional.all()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty"]),
        ("x 3\n", ["number of nodes", "line 1"]),
        ("2\n-3\n", ["number of tasks", "line 2"]),
        ("²\n3\n", ["number of nodes", "line 1"]),
        ("2\n" + 5000 * "9", ["number of tasks", "line 2"]),
        (GOOD.replace("5", "5x"), ["no number", "line 3", "5x"]),
        (GOOD.replace("5", "nan"), ["no number", "line 3", "nan"]),
        (GOOD.replace("3 4\n", "3\n"), ["ends too early", "line 6", "16 numbers for 2 nodes and 3 tasks"]),
        (GOOD + "9\n", ["left over", "line 7"]),
        ("2\n" + 2 * GOOD, ["left over", "one instance a file"]),
        (GOOD.replace("2 2 2", "2 -2 2"), ["negative", "line 5"]),
    ],
)
def test_a_broken_file_names_the_line(text, parts):
    with pytest.raises(ProblemError) as caught:
        parse_gap(text, "file.txt")
    for part in ["file.txt", *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("value", "demand", "capacity", "part"),
    [
        ([[1.0, math.nan]], [[1.0, 1.0]], [1.0, 1.0], "value[0, 1]"),
        ([[1.0, -math.inf]], [[1.0, 1.0]], [1.0, 1.0], "value[0, 1]"),
        ([[1.0, 1.0]], [[1.0, -1.0]], [1.0, 1.0], "demand[0, 1, 0]"),
        ([[1.0, 1.0]], [[1.0, 1.0]], [1.0, math.inf], "capacity[1, 0]"),
        ([[1.0, 1.0]], [[1.0]], [1.0, 1.0], "demand"),
        ([[1.0, 1.0]], [[1.0, 1.0]], [1.0], "capacity"),
        ([], [], [], "value"),
        ([["a", 1.0]], [[1.0, 1.0]], [1.0, 1.0], "value: no array of numbers"),
        ([[1.0, 1.0]], [[1.0, 1.0], [1.0]], [1.0, 1.0], "demand: no array of numbers"),
    ],
)
def test_numbers_that_make_no_problem(value, demand, capacity, part):
    with pytest.raises(ProblemError) as caught:
        assignment_problem(value, demand, capacity)
    assert part in str(caught.value)


@pytest.mark.parametrize("field", ["optional", "skip_value"])
def test_what_is_said_of_tasks_is_said_of_all_or_of_each(field):
    with pytest.raises(ProblemError, match=rf"{field}: wrong shape \(got \(3,\)\).*\(2,\): tasks"):
        assignment_problem([[1.0], [1.0]], [[1.0], [1.0]], [2.0], **{field: [1.0, 1.0, 1.0]})


def test_a_time_limit_that_is_no_number():
    with pytest.raises(ProblemError, match="time_limit_s"):
        solve(assignment_problem([[1.0]], [[1.0]], [1.0]), time_limit_s=math.nan)


def test_a_start_with_prices_that_are_none():
    problem = assignment_problem([[1.0]], [[1.0]], [1.0])
    start = replace(solve(problem), prices=np.array([[math.nan]]))
    with pytest.raises(ProblemError, match=r"start\.prices"):
        solve(problem, start=start)
