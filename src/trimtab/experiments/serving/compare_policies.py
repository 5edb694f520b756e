"""Compares policies that serve requests, for `trimtab compare` and `trimtab.compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from trimtab.experiments.compare import Comparison, run_comparison
from trimtab.experiments.compare.task_pool import Progress
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.policies import PolicySpec


def compare(
    scenario: Scenario | str | os.PathLike[str],
    policies: PolicySpec | Sequence[PolicySpec] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    load: float | None = None,
    sweep: Sequence[float] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    mode: str = "auto",
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Comparison:
    """Run policies on common random numbers and summarise them over the seeds.

    Args:
        scenario: a Scenario, a built-in's name, or a file.
        policies: names, `file.py:Class` specs, Policy objects or classes, or one of these alone; default: the
            scenario's, else the catalogue's.
        seeds: how many, or which; default: the scenario's.
        load: offered work over capacity; default: the scenario's.
        sweep: loads for policy-against-load curves; default: the scenario's; () for none.
            Costly policies of the default comparison leave them out.
        out: folder for request records while running; an interrupted comparison goes on from there.
        jobs: processes; default: one per core.
        mode: "auto", "compiled" or "interpreted".
        progress: called with the runs done and the runs in all.
        notice: called with what takes time before the first run.

    Raises UsageError for input that cannot be used and PolicyError for a policy that fails.
    """
    return run_comparison(
        SERVING,
        scenario,
        policies,
        seeds,
        load=load,
        sweep=sweep,
        out=out,
        jobs=jobs,
        mode=mode,
        progress=progress,
        notice=notice,
    )
