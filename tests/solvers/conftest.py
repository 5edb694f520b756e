"""Kernels are compiled before the first test, so that no time limit is spent on it."""

from __future__ import annotations

import pytest

from trimtab.solvers.compilation import compile_solvers


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    compile_solvers()
