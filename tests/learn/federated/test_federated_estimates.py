"""Estimates learned together: against least squares of all rows at once, and against what made the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from trimtab.domain.artifact import Artifact
from trimtab.domain.learned_estimates import KNOTS, LearnedEstimates, place
from trimtab.domain.output_estimate import OutputEstimate
from trimtab.errors import UsageError
from trimtab.learn.federated.estimates import (
    SMOOTH_ROWS,
    TOKENS,
    EstimatesProblem,
    EstimatesSite,
    Layout,
    Moments,
    curve_places,
    descended,
)
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.learn.federated.site_data import site_rows
from trimtab.traces import Trace, read_trace

CLUSTER = """
cluster:
  types: {a100: {memory_gib: 80}, h100: {memory_gib: 80}}
  nodes: [{type: a100, count: 1}, {type: h100, count: 1}]
classes: {chat: {unit_s: 1, demand: {}}}
"""


def rows(seed: int, n: int = 3_000, level: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs whose mean is 30 + prompt / 10, times a level."""
    rng = np.random.default_rng(seed)
    prompt = np.minimum(16 + rng.lognormal(6, 1, n).astype(np.int64), 100_000)
    return prompt, np.maximum(1, np.rint(level * rng.gamma(4.0, 0.25, n) * (30 + prompt / 10))).astype(
        np.int64
    )


def trace(prompt: np.ndarray, output: np.ndarray, **more: object) -> Trace:
    table = {"arrival_s": np.arange(len(prompt)) * 1.0, "prompt_tokens": prompt, "output_tokens": output}
    return read_trace(pl.DataFrame({**table, **more}))


def together(problem: EstimatesProblem, data: list[Moments]) -> LearnedEstimates:
    sites = {f"site{k}": EstimatesSite(problem, moments) for k, moments in enumerate(data)}
    done = learned_together(Federation(problem, Terms(tuple(sites))), sites)
    return LearnedEstimates.of(Artifact.parsed(done.result()[1], "learned"))


def dense(prompt: np.ndarray) -> np.ndarray:
    """The features of a curve, [rows, KNOTS], by interpolation between the knots' token counts."""
    knots = [2.0**k * step for k in range(4, 18) for step in (1.0, 1.5)][:KNOTS]
    return np.array([np.interp(prompt, knots, unit) for unit in np.eye(KNOTS)]).T


def test_a_place_is_that_of_linear_interpolation_between_half_octaves() -> None:
    prompt = np.array([1.0, 16.0, 20.0, 24.0, 28.0, 33.0, 1_000.0, 131_071.0, 131_072.0, 1e7])
    at, part = curve_places(prompt)
    found = np.zeros((len(prompt), KNOTS))
    found[np.arange(len(prompt)), at] += 1.0 - part
    found[np.arange(len(prompt)), at + 1] += part
    np.testing.assert_allclose(found, dense(prompt), atol=1e-12)
    assert place(0.0) == (0, 0.0)


@pytest.mark.parametrize("mu", [0.0, 5.0])
def test_sites_come_to_the_least_squares_of_all_their_rows(mu: float) -> None:
    """FedAvg and FedProx on like sites, against numpy's least squares of the rows put together."""
    data = [rows(seed) for seed in range(4)]
    layout = Layout(("*",), ())
    found = together(
        EstimatesProblem(n_rounds=30, mu=mu), [site_rows(trace(*d), layout).moments for d in data]
    )
    features = np.concatenate([dense(p) for p, _ in data])
    output = np.concatenate([y for _, y in data])
    best, *_ = np.linalg.lstsq(features, output, rcond=None)
    error, least = (((features @ w - output) ** 2).mean() for w in (found.lengths[0], best))
    start = ((200.0 - output) ** 2).mean()
    assert error - least < 0.01 * (start - least)


def test_one_site_learns_its_own_least_squares() -> None:
    """With further rows that ask for equal knots: the penalty on differences."""
    prompt, output = rows(1)
    moments = site_rows(trace(prompt, output), Layout(("*",), ())).moments
    w = descended(moments, np.full(len(moments.square), 1.0), 2_000, 0.0)
    seen = np.flatnonzero(dense(prompt).sum(axis=0) > 0)
    pairs = [k for k in seen[:-1] if k + 1 in seen]
    alike = SMOOTH_ROWS**0.5 * (np.eye(KNOTS)[pairs] - np.eye(KNOTS)[np.add(pairs, 1)])
    features = np.concatenate([dense(prompt), alike])
    best, *_ = np.linalg.lstsq(features[:, seen], np.concatenate([output, np.zeros(len(pairs))]), rcond=None)
    np.testing.assert_allclose(TOKENS * w[:KNOTS][seen], best, rtol=1e-3)


def test_a_curve_goes_on_where_nobody_has_rows_and_a_class_without_rows_has_none() -> None:
    problem = EstimatesProblem(("chat", "code"))
    prompt, output = np.full(50, 1_000), np.full(50, 70)
    named = trace(prompt, output, **{"class": ["small/chat"] * 50})
    found = together(problem, [site_rows(named, problem.layout).moments])
    curve = found.length("any/chat")
    assert curve is not None
    assert curve.at(20) == pytest.approx(curve.at(90_000), abs=25)
    assert found.length("code") is None
    assert found.length("other") is None


def test_seconds_of_service_and_demand_are_learned_by_type(tmp_path: Path) -> None:
    """One site has only A100, the other only H100: each gets the other's line."""
    problem = EstimatesProblem(("chat",), ("a100", "h100"), n_rounds=40)
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    data = []
    for node, fixed_s, unit_s in (("a100", 2.0, 0.05), ("h100", 1.0, 0.02)):
        size = np.linspace(10.0, 900.0, 60)
        made = trace(np.full(60, 50), np.full(60, 50), size=size, node=[node] * 60)
        table = made.table.with_columns(recorded_s=fixed_s + unit_s * pl.Series(size))
        data.append(site_rows(read_trace(table), problem.layout, cluster=file).moments)
    found = together(problem, data)
    assert found.line("x/chat", "a100") == pytest.approx((2.0, 0.05), rel=1e-3)
    assert found.line("chat", "h100") == pytest.approx((1.0, 0.02), rel=1e-3)
    assert found.line("chat", "l4") is None


def test_a_sites_own_estimates_lie_between_the_common_ones_and_its_rows() -> None:
    problem = EstimatesProblem()
    moments = [
        site_rows(trace(*rows(k, 3_000, level)), problem.layout).moments for k, level in enumerate((1, 3))
    ]
    common = together(problem, moments)
    few = site_rows(trace(*rows(9, 200, 3.0)), problem.layout).moments
    own = EstimatesSite(problem, few).own_estimates(common)
    at = {name: each.length("*").at(400) for name, each in (("common", common), ("own", own))}  # type: ignore[union-attr]
    assert at["common"] < at["own"] < 3.0 * 70.0 * 1.1


def test_what_was_learned_gives_shape_and_what_is_observed_gives_the_level() -> None:
    problem = EstimatesProblem()
    learned = together(problem, [site_rows(trace(*rows(1)), problem.layout).moments]).length("*")
    assert learned is not None
    estimate = OutputEstimate(learned)
    assert estimate.predict(1_000) == pytest.approx(learned.at(1_000))
    for _ in range(500):
        estimate.observe(100, 0, 80.0)  # twice what the curve expects of such prompts
    assert estimate.predict(3_000) / learned.at(3_000) == pytest.approx(80.0 / learned.at(100), rel=0.15)
    assert estimate.predict(100) == pytest.approx(80.0, rel=0.02)
    assert estimate.predict(3_000, 40) == 40


def test_files_of_other_content_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    good = together(EstimatesProblem(), [site_rows(trace(*rows(1)), Layout(("*",), ())).moments]).artifact(
        "l"
    )
    path = tmp_path / "learned.safetensors"
    path.write_bytes(good.content())
    assert LearnedEstimates.read(str(path)).classes == ("*",)
    for meta, arrays, said in (
        ({"version": "0"}, {}, "version"),
        ({"format": "weights"}, {}, "format"),
        ({"classes": "[1]"}, {}, "classes"),
        ({}, {"lengths": -np.ones((1, KNOTS))}, "below 0"),
        ({}, {"lengths": np.ones((2, KNOTS))}, "wrong shape"),
    ):
        path.write_bytes(Artifact("x", {**good.arrays, **arrays}, {**good.meta, **meta}).content())
        with pytest.raises(UsageError, match=said):
            LearnedEstimates.read(str(path))


def test_a_trace_that_says_nothing_is_refused() -> None:
    empty = read_trace(pl.DataFrame({"arrival_s": [0.0, 1.0], "size": [1.0, 2.0]}))
    with pytest.raises(UsageError, match="says nothing of what is learned"):
        site_rows(empty, Layout(("*",), ()))
