"""examples/federated comes to the quality of trimtab's own loop on the same data.

Flower lives in an environment of its own: FLOWER_PYTHON names its Python, else this test is skipped.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from trimtab.learn.federated.estimates import EstimatesProblem, EstimatesSite, Moments, descended
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.learn.federated.site_data import site_rows
from trimtab.traces import read_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"
PYTHON = os.environ.get("FLOWER_PYTHON", "")


def loss(moments: Moments, w: np.ndarray) -> float:
    beside = (moments.beside[:-1] * w[:-1] * w[1:]).sum()
    return float(0.5 * (moments.square * w * w).sum() + beside - (moments.target * w).sum())


@pytest.mark.skipif(
    not PYTHON, reason="flwr is not in trimtab's environment: FLOWER_PYTHON names one with it"
)
def test_flower_comes_to_the_same_quality(tmp_path: Path) -> None:
    problem, data = EstimatesProblem(n_rounds=20), {}
    (tmp_path / "sites").mkdir()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        prompt = 16 + rng.lognormal(6, 1, 3_000).astype(np.int64)
        output = np.maximum(1, rng.gamma(3.0, 1 / 3, 3_000) * (1 + seed) * (30 + prompt / 10)).astype(
            np.int64
        )
        table = {"arrival_s": np.arange(3_000) * 1.0, "prompt_tokens": prompt, "output_tokens": output}
        data[f"s{seed}"] = site_rows(read_trace(pl.DataFrame(table)), problem.layout).moments
        np.savez(tmp_path / "sites" / f"s{seed}.npz", **data[f"s{seed}"]._asdict())
    command = [PYTHON, EXAMPLE / "flower_app.py", tmp_path / "sites", tmp_path / "w.npy", "20"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(command, check=True, timeout=250, env=env)
    sites = {name: EstimatesSite(problem, moments) for name, moments in data.items()}
    done = learned_together(Federation(problem, Terms(tuple(sites))), sites)
    total = Moments(*(np.sum(columns, axis=0) for columns in zip(*data.values(), strict=True)))
    start, best = problem.numbers([]), descended(total, problem.numbers([]), 500, 0.0)
    found = {"flower": np.load(tmp_path / "w.npy"), "trimtab": problem.numbers(done.history)}
    left = {
        name: (loss(total, w) - loss(total, best)) / (loss(total, start) - loss(total, best))
        for name, w in found.items()
    }
    print(left)
    assert left["trimtab"] < 0.01
    assert abs(left["flower"] - left["trimtab"]) < 0.01
