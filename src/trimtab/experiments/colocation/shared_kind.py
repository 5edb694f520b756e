"""Requests and training jobs on one cluster, as a kind of work that ways of sharing are compared on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from trimtab.domain.queue_tree import QueueScheme
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.colocation.shared_run import SharedInputs, SharedRecords, run_shared
from trimtab.experiments.colocation.shared_scenario import SHARED_NODES, SharedScenario, fields_of_file
from trimtab.experiments.colocation.sharing_policies import Sharing, canonical_sharing, find_sharing
from trimtab.experiments.compare.kind import FigureChoice, Kind, Notice
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.scenario_parts import Parts, ReadingBar
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.experiments.training.training_bounds import job_table
from trimtab.metrics import Metric, compute
from trimtab.policies import find
from trimtab.training.allocator_catalogue import find_allocator, restart_cost_of
from trimtab.training.compilation import compile_planning
from trimtab.training.job_metrics import job_metrics

if TYPE_CHECKING:
    import polars as pl

_METRICS: Final = (
    Metric(
        "training_gpu_hours",
        "h",
        "GPU hours of progress of training jobs, without restarts; a guest's are what it would need alone.",
        "higher",
        True,
    ),
    Metric(
        "gained_gpu_hours",
        "h",
        "Beyond the static partition of the fewest serving nodes that attains as much, or the target.",
        "higher",
        True,
    ),
    Metric("slo_attained_frac", "frac", "Requests that finish within their objective.", "higher", True),
    Metric("completion_p99_s", "s", "99th percentile of the completion of requests.", "lower", True),
    Metric("one_gpu_hours", "h", "In which one GPU would do the work that training did.", "higher"),
    Metric(
        "idle_gpu_hours",
        "h",
        "GPU hours that requests leave where all nodes serve: the most without guests.",
        None,
    ),
    Metric("idle_used_frac", "frac", "Training over these; guests may have more than 1.", "higher"),
    Metric("lent_frac", "frac", "Mean share of nodes with jobs.", "higher"),
    Metric("returned", "1", "Times that the jobs of a node ended or were stopped.", "lower"),
    Metric("jobs_finished", "1", "Training jobs that finished by the last arrival of a request.", "higher"),
    Metric("restarts_mean", "1", "Mean number of changes of a job's GPUs after its start.", "lower"),
    Metric("job_completion_mean_s", "s", "Mean completion of the training jobs that finished.", "lower"),
    Metric(
        "queue_jain_share",
        "1",
        "Jain's index over queues of GPU time held ÷ fair share, at most 1 each; nan without queues.",
        "higher",
        True,
    ),
    Metric("taken_back", "1", "Rounds in which requests took nodes back by their guarantee.", "lower"),
)
SHARED_METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _METRICS}


@dataclass(frozen=True)
class Shared(Kind[SharedScenario, SharedInputs, SharedRecords]):
    """Nodes that serve requests, and train while they are idle.

    No load is swept, since there are two, and no bound is known. The objective of requests is a metric of its
    own, so no share that is served takes a policy its rank.
    """

    items: ClassVar[str] = "requests and jobs"
    title: ClassVar[str] = "a shared cluster"
    untaken: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("trace", "cluster", "profiles", "rows", "columns", "limit", "what_if"),
        "its own requests, jobs and cluster",
    )
    metrics: ClassVar[Mapping[str, Metric]] = SHARED_METRICS
    objective: ClassVar[str] = "training_gpu_hours"
    objective_title: ClassVar[str] = "GPU hours of training"
    figures: ClassVar[FigureChoice] = FigureChoice(
        stats=("training_gpu_hours", "gained_gpu_hours", "slo_attained_frac"),
        over_load={},
        bars={
            "gained_gpu_hours": "GPU hours beyond the static partition that attains as much.",
            "slo_attained_frac": "Requests within their objective; these come first.",
        },
        bars_title="Training beside requests",
        trade_off=("training_gpu_hours", "slo_attained_frac"),
        trade_off_text="Further right trains more, further up serves better: what each threshold trades.",
    )

    def limits(self, settings: SharedScenario) -> str:
        """What the model leaves out."""
        return "Guests have one GPU; how they slow requests is a formula, or what measured pairs of jobs say."

    def read(
        self,
        source: SharedScenario | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> SharedScenario:
        """The scenario, with every argument that is not None replaced. Raises UsageError."""
        scenario = SHARED_NODES.load(source)
        if load is not None:
            expected = "requests.workload.load and jobs.load in the file"
            raise ScenarioError("there are two loads", field="load", value=load, expected=expected)
        _refuse_unknown(scenario)
        return scenario.replaced(policies=policies, seeds=seeds)

    def with_parts(self, base: SharedScenario | None, parts: Parts) -> SharedScenario:
        """The scenario with these parts. Raises ScenarioError."""
        if base is None:
            raise ScenarioError(
                "a trace alone makes no shared cluster", expected="a scenario with kind: shared"
            )
        return self.read(base, load=parts.load, policies=parts.policies, seeds=parts.seeds)

    def read_ahead(self, settings: SharedScenario, bar: ReadingBar) -> list[str]:
        """Nothing."""
        return []

    def amounts(self, inputs: SharedInputs) -> dict[str, int]:
        """Nodes, requests and jobs."""
        requests = len(inputs.serving.requests)
        return {"nodes": inputs.n_nodes, "requests": requests, "jobs": len(inputs.training)}

    def size(self, settings: SharedScenario) -> int:
        """Requests and jobs of a run."""
        return len(self.build(settings, settings.seed_list()[0], None))

    def shortened(self, settings: SharedScenario, items: int) -> SharedScenario:
        """Fewer requests in proportion: a run ends with the last one."""
        requests = settings.requests
        n_requests = max(1, round(items * requests.n_requests() / self.size(settings)))
        return settings.model_copy(update={"requests": SERVING.shortened(requests, n_requests)})

    def own_load(self, settings: SharedScenario) -> float | None:
        """Load of the requests."""
        return settings.requests.workload.load

    def default_policies(self, settings: SharedScenario) -> tuple[str, ...]:
        """All ways but a static partition; with queues, each scheme of them."""
        if settings.queues is None:
            return ("lending", "muxflow")
        return tuple(f"queues(scheme={scheme})" for scheme in QueueScheme)

    def find(self, policy: str | Sharing) -> tuple[Sharing]:
        """The way of sharing."""
        return (find_sharing(policy),)

    def canonical(self, policy: str | Sharing) -> str:
        """Its shortest name."""
        return canonical_sharing(policy)

    def prepare(
        self,
        settings: SharedScenario,
        policies: Sequence[str | Sharing],
        mode: str,
        items: int,
        notice: Notice | None,
    ) -> str:
        """Compile what the allocator plans with."""
        compile_planning(notice)
        return mode

    def build(self, settings: SharedScenario, seed: int, load: float | None) -> SharedInputs:
        """Requests, jobs and nodes of a seed."""
        with fields_of_file():
            serving = build(settings.requests.read_from(settings.known_as), seed)
        return SharedInputs(settings, seed, serving, serving.offered_load)

    def run(self, inputs: SharedInputs, policy: str | Sharing, mode: str) -> SharedRecords:
        """Run requests and jobs."""
        return run_shared(inputs, find_sharing(policy), mode)

    def measure(self, records: SharedRecords) -> dict[str, float]:
        """All metrics of a run."""
        of_requests, hours, idle = compute(records.requests), records.gpu_hours, records.inputs.idle_gpu_hours
        started = ~np.isnan(records.jobs.start_s)
        return {
            "training_gpu_hours": hours,
            "gained_gpu_hours": hours - records.static_hours,
            "slo_attained_frac": of_requests["slo_attained_frac"],
            "completion_p99_s": of_requests["completion_p99_s"],
            "one_gpu_hours": records.one_gpu_hours,
            "idle_gpu_hours": idle,
            "idle_used_frac": hours / idle,
            "lent_frac": float(records.trains.mean()),
            "returned": float((records.trains[:-1] & ~records.trains[1:]).sum()),
            "jobs_finished": float(records.jobs.finished.sum()),
            "restarts_mean": float(records.jobs.restarts[started].mean()) if started.any() else 0.0,
            "job_completion_mean_s": job_metrics(records.jobs)["completion_mean_s"],
            "queue_jain_share": math.nan if records.division is None else records.division.jain,
            "taken_back": math.nan if records.division is None else float(records.division.taken_back),
        }

    def table(self, inputs: SharedInputs, records: SharedRecords) -> pl.DataFrame:
        """One row per training job."""
        return job_table(records.jobs)

    def notes(self, settings: SharedScenario, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        """Notes that name the reference of gains."""
        return [
            "gained_gpu_hours compares with the static partition of the fewest serving nodes that attains as "
            f"much, or {settings.slo_target_frac:.1%}"
        ]


def _refuse_unknown(scenario: SharedScenario) -> None:
    """Raise ScenarioError for names of the file that nothing has."""
    known: dict[str, Callable[[str], object]] = {
        "serve_with": find,
        "train_with": find_allocator,
        "restart": restart_cost_of,
    }
    for field, find_part in known.items():
        try:
            find_part(getattr(scenario, field))
        except UsageError as error:
            inner = "" if error.field in (None, "policy", field) else f": {error.field}"
            told: dict[str, Any] = {
                "file": scenario.known_as,
                "value": error.value,
                "expected": error.expected,
            }
            raise ScenarioError(error.problem, field=f"{field}{inner}", **told) from error


SHARED_KIND: Final[Shared] = Shared()
