"""Results of an earlier comparison are used only where nothing has changed since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import trimtab as tt

POLICY = """
import trimtab as tt

class P(tt.Policy):
    name = "mine"
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = NODE
        return 1
"""
SCENARIO = """
cluster:
  types: {big: {memory_gib: 1}, small: {memory_gib: 1, speed: 0.5}}
  nodes: [{type: big}, {type: small}]
classes: {chat: {unit_s: 1.0}}
workload: {trace: {file: trace.csv}}
"""


@pytest.fixture
def mean_s(tmp_path: Path) -> Callable[[str, str], float]:
    def compared(node: str, size: str) -> float:
        (tmp_path / "s.yaml").write_text(SCENARIO)
        (tmp_path / "trace.csv").write_text(f"arrival_s,size\n0,{size}\n")
        (tmp_path / "own.py").write_text(POLICY.replace("NODE", node))
        policy = f"{tmp_path / 'own.py'}:P"
        found = tt.compare(tmp_path / "s.yaml", [policy], 1, sweep=(), out=tmp_path / "out", jobs=1)
        return found.results[0].metrics["completion_mean_s"].mean

    return compared


def test_a_changed_policy_or_trace_is_run_anew(mean_s: Callable[[str, str], float]) -> None:
    assert mean_s("0", "1") == 1.0
    assert mean_s("1", "1") == 2.0
    assert mean_s("1", "10") == 20.0
