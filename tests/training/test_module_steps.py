"""Seconds of steps of modules that were never run, from steps whose seconds follow a known law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import TraceError
from trimtab.training.performance.module_steps import (
    BUILTIN,
    WAYS,
    Link,
    ModuleStep,
    Operator,
    held_out_errors,
    read_steps,
    write_steps,
)

LAW = {"convolution": (4e-6, 1e-10, 0.0), "mm": (2e-6, 2e-11, 0.0), "relu": (1e-6, 0.0, 3e-10)}


def steps(modules: int = 12) -> list[ModuleStep]:
    """Of random operators, each of which takes θ0 + θ1 FLOPs + θ2 bytes."""
    rng, made = np.random.default_rng(3), []
    for m in range(modules):
        shape = [(kind, int(rng.integers(1, 6)), *rng.uniform(1e4, 1e6, 2)) for kind in LAW]
        for batch in (4, 8, 16):
            operators = []
            for kind, times, flop, moved in shape:
                size = 0.0 if kind == "relu" else flop * batch, moved * batch
                seconds = LAW[kind][0] + LAW[kind][1] * size[0] + LAW[kind][2] * size[1]
                operators.append(Operator(kind, *size, times, seconds))
            total = sum(each.times * each.seconds for each in operators)
            made.append(ModuleStep(f"m{m}", batch, 1000 * (m + 1), 100, tuple(operators), total))
    return made


@pytest.mark.parametrize("way", ["graph", "operators"])
def test_a_law_is_found_from_other_modules(way: str) -> None:
    assert max(held_out_errors(steps(), way).values()) < 1e-6


def test_metadata_know_no_operators() -> None:
    assert np.mean(list(held_out_errors(steps(), "metadata").values())) > 0.05


def test_an_operator_that_was_never_measured_counts_as_the_mean_of_all() -> None:
    predict = WAYS["operators"](steps())
    (unknown,) = predict([ModuleStep("new", 4, 10, 10, (Operator("fft", 0.0, 1e6, 1, np.nan),), np.nan)])
    assert 1e-6 < unknown < 1e-3


def test_measured_steps_are_written_and_read(tmp_path: Path) -> None:
    write_steps(tmp_path / "s.json", steps(2))
    (first, *_), (made, *_) = read_steps(tmp_path / "s.json"), steps(2)
    assert (first.module, first.batch, first.operators[0].kind) == (made.module, made.batch, "convolution")
    assert first.seconds == pytest.approx(made.seconds, rel=1e-3)
    (tmp_path / "s.json").write_text('{"steps": [{"module": "m"}]}')
    with pytest.raises(TraceError, match="no measured steps"):
        read_steps(tmp_path / "s.json")


def test_the_built_in_steps_predict_modules_held_out_within_a_third() -> None:
    measured = read_steps(BUILTIN)
    assert len({step.module for step in measured}) >= 12
    assert np.median(list(held_out_errors(measured, "graph").values())) < 1 / 3


def test_a_ring_passes_twice_the_gradients() -> None:
    link = Link(bytes_per_s=1e9, latency_s=1e-3)
    assert link.ring_s(1000, 1) == 0
    assert link.ring_s(250_000_000, 2) == pytest.approx(1.0 + 2e-3)
    assert link.ring_s(250_000_000, 1000) == pytest.approx(2 * 0.999 + 2 * 0.999, rel=1e-3)
