"""Instances of the generalised assignment problem in the text format of the OR-Library.

First the numbers of nodes m and tasks n, then m × n values, m × n demands and m capacities: all
separated by white space; line ends have no meaning. One instance per file; some of the library hold several,
with their number first. Source: Beasley, OR-Library (J. Operational Research Society
41(11), 1990), file gapinfo.
"""

from __future__ import annotations

import re

import numpy as np

from trimtab.errors import ProblemError
from trimtab.solvers.problem import AssignmentProblem, assignment_problem

_WORD = re.compile(r"\S+")
_COUNT = re.compile(r"0*[1-9][0-9]{0,17}")  # fits 64 bits


def parse_gap(text: str, file: str, *, maximise: bool = False) -> AssignmentProblem:
    """Read an instance: each task on exactly one node, or on at most one if values are maximised.

    Raises ProblemError, which names the line, if the text is not an instance.
    """
    words = text.split()
    if not words:
        raise ProblemError("the file is empty", file=file, expected="an instance in OR-Library format")
    nodes, tasks = (_count(text, words, k, file) for k in range(2))
    expected = 2 + 2 * nodes * tasks + nodes
    if len(words) != expected:
        raise _wrong_length(text, len(words), expected, nodes, tasks, file)
    numbers = _numbers(text, words, file)
    pairs = nodes * tasks
    value = numbers[2 : 2 + pairs].reshape(nodes, tasks).T
    demand = numbers[2 + pairs : 2 + 2 * pairs].reshape(nodes, tasks).T
    _refuse_negative(text, numbers, 2 + pairs, file)
    return assignment_problem(value, demand, numbers[2 + 2 * pairs :], maximise=maximise)


def _count(text: str, words: list[str], k: int, file: str) -> int:
    name = ("number of nodes", "number of tasks")[k]
    word = words[k] if k < len(words) else None
    if word is None or not _COUNT.fullmatch(word):
        where = f"line {_line(text, k)}" if word is not None else None
        raise ProblemError(
            f"no {name}", file=file, field=where, value=word, expected="a whole number of at least 1"
        )
    return int(word)


def _wrong_length(text: str, got: int, expected: int, nodes: int, tasks: int, file: str) -> ProblemError:
    lines = text.count("\n") + (not text.endswith("\n"))
    where = f"line {_line(text, expected) if got > expected else lines}"
    problem = "numbers left over" if got > expected else "the file ends too early"
    only = "one instance a file: " if got > expected else ""
    needed = f"{expected} numbers for {nodes} nodes and {tasks} tasks: two sizes, {nodes * tasks} values, "
    return ProblemError(
        problem,
        file=file,
        field=where,
        value=f"{got} numbers",
        expected=f"{only}{needed}{nodes * tasks} demands, {nodes} capacities",
    )


def _numbers(text: str, words: list[str], file: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        numbers = np.array(words, dtype=np.float64)
    except ValueError:
        k = next(k for k, word in enumerate(words) if not _is_number(word))
        raise _no_number(text, words[k], k, file) from None
    broken = np.flatnonzero(~np.isfinite(numbers))
    if broken.size:
        raise _no_number(text, words[broken[0]], int(broken[0]), file)
    return numbers


def _no_number(text: str, word: str, k: int, file: str) -> ProblemError:
    where = f"line {_line(text, k)}"
    return ProblemError("no number", file=file, field=where, value=word[:40], expected="a finite number")


def _refuse_negative(
    text: str, numbers: np.ndarray[tuple[int], np.dtype[np.float64]], begin: int, file: str
) -> None:
    negative = np.flatnonzero(numbers[begin:] < 0)
    if negative.size:
        k = begin + int(negative[0])
        where, expected = f"line {_line(text, k)}", "demands and capacities of at least 0"
        raise ProblemError("negative", file=file, field=where, value=float(numbers[k]), expected=expected)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _line(text: str, k: int) -> int:
    """Line number of the k-th word, from 1."""
    for number, match in enumerate(_WORD.finditer(text)):
        if number == k:
            return text.count("\n", 0, match.start()) + 1
    return text.count("\n") + 1
