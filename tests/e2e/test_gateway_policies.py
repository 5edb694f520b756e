"""Policies of a user's own in a running gateway: plans from another process, and a policy that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway_process import Served, admin, ask, client, configuration, serving
from trimtab.runtime.gateway.demo import Options, launched

GATE = '''
import multiprocessing
from dataclasses import dataclass
import numpy as np
from trimtab.domain.policy import Policy
from trimtab.domain.view import empty_plan


@dataclass(frozen=True)
class Gate(Policy):
    """Holds everything until a plan, made in another process, says which node."""

    plan_period_s: float = 0.25

    def plan(self, view, history, waiting, rehearse):
        if multiprocessing.parent_process() is None or not len(waiting):
            return None
        return empty_plan()._replace(params=np.array([1.0]))

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if not len(plan.params):
            return 0
        ranking[0] = int(plan.params[0])
        return 1
'''
BROKEN = '''
from trimtab.domain.policy import Policy


class Broken(Policy):
    """Raises about every second request."""

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if work.serial % 2:
            raise ArithmeticError("no answer")
        ranking[0] = 2
        return 1
'''
QUICK = [Options(name=f"b{k}", base_s=0.001, output_s=0.001) for k in range(3)]


def served_by(folder: Path, policy: str, n: int) -> tuple[list[Any], str]:
    """Receipts of n requests one after the other, and the metrics."""

    async def main(served: Served) -> tuple[list[Any], str]:
        async with client() as session:
            assert [await ask(session, served, 1, i) for i in range(n)] == [200] * n
        receipts = [await admin(served, f"/admin/requests/r{i}") for i in range(n)]
        return receipts, await admin(served, "/metrics")

    with (
        launched(*QUICK) as started,
        serving(folder, configuration(started, policy=policy)) as served,
    ):
        return asyncio.run(main(served))


def test_plans_come_from_another_process(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    receipts, _ = served_by(tmp_path, "gate.py:Gate", 3)
    assert [r["node"] for r in receipts] == ["b1"] * 3
    assert not any(r["decision"]["fallback"] for r in receipts)


def test_least_connections_decides_where_a_policy_raises(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    receipts, text = served_by(tmp_path, "broken.py:Broken", 6)
    assert [r["decision"]["fallback"] for r in receipts] == [False, True] * 3
    assert [r["node"] for r in receipts[::2]] == ["b2"] * 3
    failures = [line for line in text.splitlines() if line.startswith("trimtab_policy_failures_total{")]
    assert [float(line.split()[-1]) for line in failures] == [3.0]
    assert (tmp_path / "said").read_text().count("least connections decides instead") == 2  # the 1st, the 2nd
