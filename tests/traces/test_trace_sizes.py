from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from support.trace_files import written
from trimtab.errors import TraceError
from trimtab.traces import SizeSpec
from trimtab.traces.generators import sizes_exponential, sizes_lognormal, sizes_pareto

N = 200_000
ADAPTER: TypeAdapter[SizeSpec] = TypeAdapter(SizeSpec)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def empirical(tmp_path: Path, **more: str) -> SizeSpec:
    path = written(tmp_path, "t.csv", "arrival_s,size,images,tenant\n0,1,0,a\n1,2,3,b\n2,2,4,c\n")
    path.write_text(path.read_text().replace("1,0,a", "1,,a"))
    return ADAPTER.validate_python({"distribution": "empirical", "file": path, **more})


def test_lognormal_mean_and_variation() -> None:
    sizes = sizes_lognormal(rng(), 12.0, 1.5, N)
    assert sizes.mean() == pytest.approx(12.0, rel=0.02)
    assert sizes.std() / sizes.mean() == pytest.approx(1.5, rel=0.05)
    assert stats.normaltest(np.log(sizes)).pvalue > 0.01


@pytest.mark.parametrize("alpha", [1.5, 2.5])
def test_pareto_tail_and_mean(alpha: float) -> None:
    sizes = sizes_pareto(rng(), 12.0, alpha, N)
    smallest = 12.0 * (alpha - 1) / alpha
    assert stats.kstest(sizes, stats.pareto(alpha, scale=smallest).cdf).pvalue > 0.01
    assert stats.pareto(alpha, scale=smallest).mean() == pytest.approx(12.0)


def test_exponential_and_constant() -> None:
    assert stats.kstest(sizes_exponential(rng(), 3.0, N), stats.expon(scale=3.0).cdf).pvalue > 0.01
    constant = ADAPTER.validate_python({"distribution": "constant", "value": 2.5})
    assert constant.draw(rng(), 3).tolist() == [2.5, 2.5, 2.5]


def test_empirical_sizes_come_from_the_file_as_often_as_they_stand_there(tmp_path: Path) -> None:
    values, counts = np.unique(empirical(tmp_path).draw(rng(), 30_000), return_counts=True)
    assert values.tolist() == [1.0, 2.0]
    assert counts[1] / 30_000 == pytest.approx(2 / 3, abs=0.011)  # four standard errors


def test_empirical_sizes_of_another_column_without_its_gaps(tmp_path: Path) -> None:
    assert set(empirical(tmp_path, column="images").draw(rng(), 100)) == {3.0, 4.0}


def test_empirical_column_must_hold_numbers(tmp_path: Path) -> None:
    for column in ("tenant", "sizes"):
        with pytest.raises(TraceError, match=column):
            empirical(tmp_path, column=column).draw(rng(), 1)
    with pytest.raises(TraceError, match="greater than 0"):
        empirical(tmp_path, column="arrival_s").draw(rng(), 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"distribution": "weibull", "mean": 1.0},
        {"distribution": "lognormal", "mean": -1.0, "cv": 1.0},
        {"distribution": "lognormal", "mean": 1.0, "cv": 0.0},
        {"distribution": "pareto", "mean": 1.0, "alpha": 1.0},
        {"distribution": "exponential", "mean": 1.0, "cv": 1.0},
        {"distribution": "constant", "value": float("inf")},
    ],
)
def test_bad_distributions(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(bad)
