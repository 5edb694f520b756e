"""Single decisions about training jobs: what `trimtab allocate` and `trimtab.allocate` do.

A decision depends on its state alone, so the same state gives the same answer, in whatever order states come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trimtab.errors import PolicyError, UsageError
from trimtab.experiments.scenario import load_cluster
from trimtab.experiments.training.job_profiles import profiled_jobs
from trimtab.experiments.training.training_environment import node_offers
from trimtab.experiments.training.training_inputs import cluster_nodes, gpus_by_type
from trimtab.experiments.training.training_scenario import RulesSection
from trimtab.traces.read_jobs import JobTable, jobs_of_rows, read_jobs
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
    canonical_allocator,
    find_allocator,
    refuse_unmet,
)
from trimtab.training.one_decision import FORMAT_VERSION, decide
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked


class JobState(Spec):
    """The state of all jobs at one moment, as JSON has it."""

    format_version: Literal[1] = Field(FORMAT_VERSION, description="version of this format")
    id: str | int | None = Field(None, description="given back with the answer")
    now_s: float | None = Field(None, description="time of the decision; null = the latest submission")
    jobs: tuple[dict[str, Any], ...] = Field(description="one object a job")
    down: tuple[str, ...] = Field((), description="nodes that get nothing")


def allocate(
    jobs: str | os.PathLike[str] | Sequence[Mapping[str, Any]],
    cluster: str | os.PathLike[str],
    policy: AllocatorSpec,
    *,
    profiles: str | os.PathLike[str] | None = None,
    now_s: float | None = None,
    down: Sequence[str] = (),
) -> dict[str, Any]:
    """The allocation of a policy for each training job now.

    Args:
        jobs: file, or list of mappings, with job_id, submit_s, gpus and duration_s (or model, batch and work,
            with `profiles`); held, work_left, attained_gpu_s, run_s, restarts and profiled_gpus_max say what
            happened so far. Or a file of what `squeue` or `sacct` print.
        cluster: cluster file; accelerators = GPUs of a node.
        policy: name, `file.py:Class` spec, Allocator object or class.
        profiles: folder or throughputs.json with the speeds of the models.
        now_s: time of the decision; default: that of the state if it tells it, else the latest submission.
        down: names of nodes that get nothing.

    Returns JSON values. The same state gives the same answer. Raises UsageError and PolicyError.
    """
    table = read_jobs(Path(jobs), use="state") if isinstance(jobs, str | os.PathLike) else jobs_of_rows(jobs)
    return Decisions(cluster, policy, profiles=profiles).of(table, now_s=now_s, down=down)


class Decisions:
    """Decisions of one policy about one cluster, one state after another."""

    def __init__(
        self,
        cluster: str | os.PathLike[str],
        policy: AllocatorSpec,
        *,
        profiles: str | os.PathLike[str] | None = None,
    ) -> None:
        spec = load_cluster(Path(cluster)).cluster
        self._nodes, self._types, _ = cluster_nodes(spec)
        self._offers = node_offers(spec)
        self._node_names = tuple(node.name for node in spec.each_node())
        self._profiles = None if profiles is None else Path(profiles)
        self._policy = find_allocator(policy)
        self._lock = threading.Lock()
        self.policy = canonical_allocator(policy)

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return int(self._nodes["gpus"].sum())

    def of(self, table: JobTable, *, now_s: float | None = None, down: Sequence[str] = ()) -> dict[str, Any]:
        """The decision for a table of jobs. Raises UsageError and PolicyError."""
        with self._lock:
            types = gpus_by_type(self._nodes, self._types)
            made = profiled_jobs(table, self._profiles, RulesSection(), types)
            refuse_unmet(self._policy, made.model.provides, "these profiles", "--profiles that have it")
            return decide(
                table,
                made.workload,
                made.model,
                self._nodes,
                self._node_names,
                self._types,
                self._policy,
                now_s=table.now_s if now_s is None else now_s,
                down=down,
                offers=self._offers,
            ) | {"policy": self.policy}

    def of_state(self, state: Any) -> dict[str, Any]:
        """The decision for a state as JSON has it. Raises UsageError and PolicyError."""
        if not isinstance(state, dict):
            raise UsageError("is no state", value=_short(state), expected="an object with jobs")
        given = checked(lambda: JobState.model_validate(state), JobState, "state", UsageError)
        if given.jobs:
            answer = self.of(jobs_of_rows(given.jobs), now_s=given.now_s, down=given.down)
        else:
            answer = {"format_version": FORMAT_VERSION, "policy": self.policy, "now_s": given.now_s}
            answer |= {"gpus": self.gpus, "gpus_held": 0, "gpus_given": 0, "jobs": []}
        return answer | ({"id": given.id} if given.id is not None else {})


def error_answer(error: UsageError | PolicyError, state: Any = None) -> dict[str, Any]:
    """An error as JSON has it: what is wrong, where, with which value, and what was expected."""
    told: dict[str, Any] = {"message": str(error), "exit_code": error.exit_code}
    if isinstance(error, UsageError):
        told |= {"field": error.field, "value": _short(error.value), "expected": error.expected}
    named = {"id": state["id"]} if isinstance(state, dict) and "id" in state else {}
    return {"format_version": FORMAT_VERSION, "error": told} | named


def _short(value: Any) -> str | None:
    return None if value is None else repr(value)[:200]
