"""Published figures, computed here. `--full` runs those that take long too."""

from __future__ import annotations

from typing import Any

import pytest
from bench.golden import gavel
from bench.golden.cases import DATA, Golden
from bench.golden.conic import is_installed
from bench.golden.registry import all_goldens

GOLDENS = all_goldens()


def cases() -> list[Any]:
    return [pytest.param(g, id=f"{g.study}: {g.name}", marks=marks_of(g)) for g in GOLDENS]


def marks_of(golden: Golden) -> list[Any]:
    marks = [] if golden.is_fast else [pytest.mark.full]
    if golden.study in (gavel.MAKESPAN, gavel.COMPLETION):
        marks.append(pytest.mark.xdist_group(f"golden {golden.name}"))  # figures of the same run
    if golden.extra:
        marks.append(pytest.mark.skipif(not is_installed(), reason=f"needs the extra {golden.extra}"))
    missed = pytest.mark.xfail(strict=True, raises=AssertionError, reason="known to miss; see the page")
    return [*marks, missed] if golden.is_missed else marks


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="the recorded traces are not beside the checkout")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("golden", cases())
def test_a_published_figure_is_reproduced(golden: Golden) -> None:
    figure = golden.run()
    assert golden.holds(figure), f"{figure:g} here, {golden.published:g} published ({golden.kind})"


def test_names_are_unique() -> None:
    names = [(golden.study, golden.name) for golden in GOLDENS]
    assert len(set(names)) == len(names)
