"""What hosts learn of stages: lines through measurements, and the sizes that inputs tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trimtab.chains import chain, stage
from trimtab.chains.inputs import sizes
from trimtab.chains.run_costs import Line


@stage(size="steps")
def draw(text: str, steps: int) -> str:
    return text


@stage(size="text")
def read(text: str) -> str:
    return text


@chain
def film(text: str, steps: int) -> Any:
    return read(draw(read(text), steps))


def test_a_line_through_its_measurements() -> None:
    line = Line()
    for size in (1.0, 2.0, 5.0, 3.0):
        line.add(size, 0.5 + 2.0 * size)
    assert line.fitted() == (pytest.approx(0.5), pytest.approx(2.0))


def test_measurements_of_one_size_are_proportional_to_it() -> None:
    line = Line()
    for service_s in (1.0, 3.0):
        line.add(4.0, service_s)
    fixed_s, unit_s = line.fitted()
    assert fixed_s == 0.0
    assert unit_s == pytest.approx((0.98 * 1.0 + 3.0) / 1.98 / 4.0)  # the first has faded to 0.98


def test_recent_measurements_count_more(rng: np.random.Generator) -> None:
    line = Line()
    for size in rng.uniform(1.0, 2.0, 300):
        line.add(size, 10.0 * size)
    for size in rng.uniform(1.0, 2.0, 300):
        line.add(size, size)
    fixed_s, unit_s = line.fitted()
    assert math.isclose(fixed_s + 1.5 * unit_s, 1.5, rel_tol=0.05)


def test_no_estimate_is_negative() -> None:
    line = Line()
    for size, service_s in ((1.0, 0.1), (2.0, 2.0), (3.0, 4.0)):
        line.add(size, service_s)
    fixed_s, unit_s = line.fitted()
    assert fixed_s == 0.0
    assert unit_s > 0.0


def test_sizes_are_known_where_the_chains_inputs_tell_them() -> None:
    assert sizes(film, {"text": "abcde", "steps": 30}) == [5.0, 30.0, 1.0]
