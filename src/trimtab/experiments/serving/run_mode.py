"""The mode of runs, compiled or interpreted, and their kernels."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.compiled.parallel import Notice
from trimtab.engine.calls import are_runs_compiled
from trimtab.engine.compilation import compile_kernels
from trimtab.experiments.bounds import compile_bounds
from trimtab.policies import PolicySpec, find


def prepared_mode(
    policies: Sequence[PolicySpec], mode: str, requests: int, processes: int, notice: Notice | None
) -> str:
    """The mode in place of "auto" for runs of so many requests in all; compiles the kernels of compiled runs.

    On a cold cache the kernels of the bounds are compiled beside. Raises PolicyError.
    """
    if mode == "auto":
        deciders = [find(policy) for policy in policies]
        mode = "compiled" if are_runs_compiled(deciders, requests, processes) else "interpreted"
    if mode == "compiled":
        compile_kernels(policies, notice, [compile_bounds])
    return mode
