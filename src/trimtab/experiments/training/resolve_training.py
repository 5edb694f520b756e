"""Which training scenario a command line means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.loader import cluster_part
from trimtab.experiments.scenario.parts import Parts
from trimtab.experiments.training.training_scenario import JobsSection, JobTrace, TrainingScenario


def resolve_training(base: TrainingScenario | None, parts: Parts) -> TrainingScenario:
    """The scenario, else the trace on the cluster, with these parts. Raises UsageError."""
    cluster = None if parts.cluster is None else cluster_part(parts.cluster).cluster
    if base is None:
        assert parts.trace is not None
        if cluster is None:
            expected = "a cluster file (--cluster FILE); accelerators = GPUs of a node"
            raise ScenarioError("a trace alone makes no scenario", field="cluster", expected=expected)
        jobs = JobsSection(trace=JobTrace(file=parts.trace, profiles=parts.profiles))
        name = parts.trace.name.removesuffix(".gz").rsplit(".", 1)[0]
        base = TrainingScenario(name=name, cluster=cluster, jobs=jobs)
    elif parts.trace is not None or parts.profiles is not None:
        base = base.model_copy(update={"jobs": _with_trace(base, parts.trace, parts.profiles)})
    return base.with_overrides(
        load=parts.load, policies=parts.policies, seeds=parts.seeds, cluster=cluster, limit=parts.limit
    )


def _with_trace(base: TrainingScenario, trace: Path | None, profiles: Path | None) -> JobsSection:
    old = base.jobs.trace
    file = trace or (None if old is None else old.file)
    if file is None:
        raise UsageError("generated jobs have no profiles", field="profiles", expected="--trace FILE too")
    changed: dict[str, Any] = {"file": file, "profiles": profiles or (None if old is None else old.profiles)}
    return base.jobs.model_copy(update={"generate": None, "trace": JobTrace(**changed), "load": None})
