"""The mode "auto" on a cold cache: short runs are interpreted, all others are compiled in parallel."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trimtab.compiled.parallel import Job, Notice
from trimtab.engine import calls, compilation
from trimtab.experiments.bounds import compile_bounds
from trimtab.experiments.serving.run import prepared_mode
from trimtab.policies import find

LIMIT = calls.INTERPRET_UP_TO


@pytest.fixture(autouse=True)
def _cold_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "is_compiled", lambda *kernel: False)
    monkeypatch.setattr(compilation, "is_compiled", lambda *kernel: False)


@pytest.mark.parametrize(
    ("policies", "requests", "processes", "compiled"),
    [
        (["random"], LIMIT, 1, False),
        (["random"], LIMIT + 1, 1, True),
        (["random", "round-robin"], 2 * LIMIT, 2, False),
        (["random", "round-robin"], 2 * LIMIT + 1, 2, True),
        (["random", "auto"], 1, 8, True),  # auto needs rollouts, which are long
    ],
)
def test_the_rule(policies: list[str], requests: int, processes: int, compiled: bool) -> None:
    assert calls.are_runs_compiled([find(p) for p in policies], requests, processes) is compiled


def test_a_warm_cache_is_used_for_runs_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "is_compiled", lambda *kernel: True)
    assert calls.are_runs_compiled([find("random")], 1)


def test_kernels_of_long_runs_are_compiled_in_parallel_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[Job]] = []
    loaded: list[str] = []

    def compile_apart(jobs: Sequence[Job], notice: Notice | None = None) -> None:
        begun.append(list(jobs))
        assert notice is not None
        notice("progress")

    def compile_all(policies: object) -> None:
        assert begun, "in this process kernels are loaded once the cache has them"
        loaded.append("all")

    monkeypatch.setattr(compilation, "compile_apart", compile_apart)
    monkeypatch.setattr(compilation, "compile_all", compile_all)
    lines: list[str] = []
    assert prepared_mode(["random", "auto"], "auto", 1, 1, lines.append) == "compiled"
    assert begun[0][0] is compilation.compile_loop, "the longest job begins first"
    assert begun[0][-1] is compile_bounds
    assert (len(begun), lines, loaded) == (1, ["progress"], ["all"])
    assert prepared_mode(["random"], "auto", 1, 1, lines.append) == "interpreted"
    assert len(begun) == 1
