"""Compares policies that serve requests or share GPUs between training jobs, for `trimtab.compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.experiments.compare import Comparison, run_comparison
from trimtab.experiments.compare.task_pool import HERE, Progress, check_place
from trimtab.experiments.kinds import resolve
from trimtab.experiments.scenario.scenario_files import GivenScenario
from trimtab.experiments.scenario.scenario_parts import ClusterSource, Parts, TraceSource, trace_file
from trimtab.experiments.scenario.scenario_parts import cluster as cluster_of


def compare(
    scenario: GivenScenario | None = None,
    policies: Any = None,
    seeds: int | Sequence[int] | None = None,
    *,
    trace: TraceSource | None = None,
    cluster: ClusterSource | None = None,
    load: float | None = None,
    sweep: Sequence[float] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on: str = HERE,
    mode: str = "auto",
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Comparison:
    """Run policies on common random numbers and summarise them over the seeds.

    Args:
        scenario: a scenario of any kind of work, a built-in's name, a file, its YAML text, or its values as
            a dict; default: `trace` on `cluster`, or aigc-images.
        policies: names, `file.py:Class` specs, Policy or Allocator objects or classes, or one of these alone;
            default: the scenario's, else the catalogue's.
        seeds: how many, or which; default: the scenario's.
        trace: replaces the scenario's requests or jobs: a file, or for requests also a Trace or a data
            frame in canonical columns.
        cluster: replaces the scenario's nodes: a file, its YAML text, or its values as a dict.
        load: offered work over capacity; default: the scenario's.
        sweep: loads for policy-against-load curves; default: the scenario's, none above 100,000 requests or
            1,000 training jobs; () for none. Costly policies of the default comparison leave them out.
        out: folder for finished runs and records; an interrupted comparison goes on from there.
        jobs: runs at a time; default: one per core, on Ray one per CPU of the cluster.
        on: where the runs are made: "processes" of this machine, "ray", or the address of a Ray cluster,
            whose machines must find the scenario's files and the policies' under the same paths.
        mode: "auto", "compiled" or "interpreted".
        progress: called with how far it is: `done` and `total` runs, `running` ones and `left_s`.
        notice: called with what takes time before the first run, and with how long the runs will take.

    Raises UsageError for input that cannot be used, PolicyError for a policy that fails, and on Ctrl-C a
    KeyboardInterrupt whose `finished` compares what is finished.
    """
    check_place(on)
    given = {name: name for name, part in (("trace", trace), ("cluster", cluster)) if part is not None}
    parts = Parts(
        trace=None if trace is None else trace_file(trace),
        cluster=None if cluster is None else cluster_of(cluster),
        given=given,
    )
    kind, settings = resolve(scenario, parts)
    return run_comparison(
        kind,
        settings,
        policies,
        seeds,
        load=load,
        sweep=sweep,
        out=out,
        jobs=jobs,
        on=on,
        mode=mode,
        progress=progress,
        notice=notice,
        planned=None if notice is None else lambda plan: notice(str(plan)),
    )
