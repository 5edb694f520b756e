"""Problems and files that can't be used: the message names the place."""

from __future__ import annotations

import math

import pytest

from trimtab.domain.errors import ProblemError
from trimtab.solvers import assignment_problem, parse_gap

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
        (GOOD.replace("5", "5x"), ["no number", "line 3", "5x"]),
        (GOOD.replace("5", "nan"), ["no number", "line 3", "nan"]),
        (GOOD.replace("3 4\n", "3\n"), ["ends too early", "line 6", "16 numbers for 2 nodes and 3 tasks"]),
        (GOOD + "9\n", ["left over", "line 7"]),
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
    ],
)
def test_numbers_that_make_no_problem(value, demand, capacity, part):
    with pytest.raises(ProblemError) as caught:
        assignment_problem(value, demand, capacity)
    assert part in str(caught.value)
