"""Private output lengths are near the true curve, and tell noisy counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from trimtab.errors import UsageError
from trimtab.learn.private_lengths import private_lengths
from trimtab.learn.private_training import Descent
from trimtab.traces import read_trace


def write(path: Path, n: int, classes: tuple[str, ...] = ("chat",)) -> Path:
    draw = np.random.default_rng(n)
    prompt = draw.integers(64, 4096, n)
    columns = {
        "arrival_s": np.arange(n, dtype=float),
        "prompt_tokens": prompt,
        "output_tokens": np.maximum(1, (100 + prompt / 8 + 30 * draw.normal(size=n)).astype(int)),
        "class": [classes[k % len(classes)] for k in range(n)],
    }
    pl.DataFrame(columns).write_csv(path)
    return path


def test_the_curve_is_learned_and_counts_are_noisy(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "trace.csv", 4_000, ("chat", "batch")))
    found = private_lengths(trace, ["chat", "*"], epsilon=4.0, delta=1e-5, descent=Descent(80), seed=0)
    for name in ("chat", "other"):
        curve = found.estimates.length(name)
        assert curve is not None
        for prompt in (512, 1024, 3000):
            assert curve.at(prompt) == pytest.approx(100 + prompt / 8, rel=0.2)
    told = found.fits["chat"]
    assert told["rows"] != 2_000  # noise of one row and more on each knot
    assert abs(told["rows"] - 2_000) < 400
    assert told["epsilon"] <= 0.9 * 4.0


def test_a_trace_without_lengths_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("arrival_s,size\n0,1\n1,2\n")
    with pytest.raises(UsageError, match="says nothing of output lengths"):
        private_lengths(
            read_trace(tmp_path / "plain.csv"), ["*"], epsilon=1.0, delta=1e-3, descent=Descent(2)
        )
