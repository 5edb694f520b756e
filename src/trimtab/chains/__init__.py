"""Chains that run: stages as functions, chains of them, and runs over many inputs.

    from trimtab.chains import chain, run, stage

    @stage
    def double(x: int) -> int:
        return 2 * x

    @chain
    def twice(x: int):
        return double(double(x))

    for result in run(twice, inputs=[1, 2, 3]):
        print(result.index, result.value)

Names are loaded when they are first used: worker processes import this package with the code of stages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.chains.building import chain
    from trimtab.chains.data_tables import blocks
    from trimtab.chains.graph import Chain
    from trimtab.chains.optimised_models import optimised
    from trimtab.chains.results import Result, StageFailed
    from trimtab.chains.run_state import State
    from trimtab.chains.session import RunHandle, Session
    from trimtab.chains.single_run import run
    from trimtab.chains.stages import Stage, stage
    from trimtab.live.shared_state import shared
    from trimtab.live.stage_backend import StageNode
    from trimtab.live.stage_execution import StageContext

_HOME = {
    "Chain": "trimtab.chains.graph",
    "Result": "trimtab.chains.results",
    "RunHandle": "trimtab.chains.session",
    "Session": "trimtab.chains.session",
    "Stage": "trimtab.chains.stages",
    "StageContext": "trimtab.live.stage_execution",
    "StageFailed": "trimtab.chains.results",
    "StageNode": "trimtab.live.stage_backend",
    "State": "trimtab.chains.run_state",
    "blocks": "trimtab.chains.data_tables",
    "chain": "trimtab.chains.building",
    "optimised": "trimtab.chains.optimised_models",
    "run": "trimtab.chains.single_run",
    "shared": "trimtab.live.shared_state",
    "stage": "trimtab.chains.stages",
}

__all__ = [
    "Chain",
    "Result",
    "RunHandle",
    "Session",
    "Stage",
    "StageContext",
    "StageFailed",
    "StageNode",
    "State",
    "blocks",
    "chain",
    "optimised",
    "run",
    "shared",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return found
