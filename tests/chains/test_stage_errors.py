"""Errors of stages: which are tried again, how long their texts are, where they say they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest

from trimtab.chains import chain, run, stage
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.live.declared_types import misfit
from trimtab.live.stage_backend import ERROR_CHARS, TRACE_CHARS, StageNode

HERE = Path(__file__).name


@stage(backoff_s=0.0)
def unimportable(n: int) -> int:
    import no_such_package  # type: ignore[import-not-found]

    return int(no_such_package.of(n))


@stage(backoff_s=0.0)
def unnamed(n: int) -> int:
    return n + there_is_no_such_name  # type: ignore[name-defined,no-any-return]  # noqa: F821


@stage(backoff_s=0.0)
def mistyped(n: int) -> list[int]:
    return [n, "two"]  # type: ignore[list-item]


@stage(batch=2, backoff_s=0.0)
def mistyped_batch(numbers: list[int]) -> list[int]:
    return [str(n) for n in numbers]  # type: ignore[misc]


@stage(backoff_s=0.0)
def flaky(n: int) -> int:
    raise ConnectionError("try again")


@stage(retries=0)
def long_winded(n: int) -> int:
    raise ValueError("x" * 20_000_000)


def failure(code: Any, on: Any = None) -> Any:
    @chain
    def alone(n: int) -> Any:
        return code(n)

    (result,) = run(alone, [1], on=on or InProcess([StageNode("one")])).wait()
    return result.failure


@pytest.mark.parametrize(
    ("code", "attempts", "told"),
    [
        (unimportable, 1, "ModuleNotFoundError: No module named 'no_such_package'"),
        (unnamed, 1, "NameError: name 'there_is_no_such_name' is not defined"),
        (mistyped, 1, "TypeError: its output[1] is of another type (got str); expected int"),
        (mistyped_batch, 1, "TypeError: its output[0] is of another type (got str); expected int"),
        (flaky, 3, "ConnectionError: try again"),
    ],
)
def test_what_another_attempt_cannot_mend_is_tried_once(code: Any, attempts: int, told: str) -> None:
    found = failure(code)
    assert found.attempts == attempts
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    assert f"[0] after {times}: {told}" in str(found)


def test_an_error_says_file_and_line_of_the_stages_code_even_if_that_was_sent_by_value() -> None:
    @stage(retries=0)
    def local(text: str) -> int:
        return int(text)  # this line

    own = Path(__file__).read_text().splitlines()
    line = next(k for k, text in enumerate(own, 1) if "# this line" in text)

    @chain
    def alone(text: str) -> Any:
        return local(text)

    (result,) = run(alone, ["x"], on=Processes([StageNode("one")])).wait()
    assert f"{HERE}:{line} in local)" in str(result.failure)
    assert "return int(text)" in result.failure.error.trace


def test_long_errors_are_cut_and_say_so() -> None:
    found = failure(long_winded)
    assert "[19,998,000 characters cut]" in str(found)
    assert len(found.error.message) < ERROR_CHARS + 100
    assert len(found.error.trace) < TRACE_CHARS + 100
    assert "in long_winded" in found.error.trace


class Page(TypedDict):
    text: str


@pytest.mark.parametrize(
    ("value", "declared", "path"),
    [
        (1, int, None),
        (True, float, None),
        (np.int64(1), int, None),  # may stand for it
        (None, int | None, None),
        (None, int, ""),
        ("a", int | list[str], ""),
        (["a", 1], list[str], "[1]"),
        ({"a": [1, "b"]}, dict[str, list[int]], "['a'][1]"),
        ((1, "b"), tuple[int, int], "[1]"),
        ({"text": "a"}, Page, None),
        ([1] * 100_001 + ["x"], list[int], None),  # of long lists a part is looked at
        (["x"] * 100_000, list[int], "[0]"),
    ],
)
def test_values_fit_declared_types_with_their_items(value: Any, declared: Any, path: str | None) -> None:
    found = misfit(value, declared)
    assert (None if found is None else found.path) == path
