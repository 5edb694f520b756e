"""A scenario of requests and training jobs that share nodes, as one checked value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.scenario_files import ScenarioFiles
from trimtab.experiments.scenario.spec.scenario import PolicyName, Seeds
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
from trimtab.experiments.training.training_scenario import NO_PAIRS, JobsSection
from trimtab.validation.base import Frac, NonNegative, Positive
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.queue_section import Queues, unknown_tenants


class SharedScenario(ScenarioFile):
    """One scenario file with `kind: shared`."""

    kind: Literal["shared"] = Field("shared", description="requests and training jobs")
    name: str = Field("shared", min_length=1, description="short name, for tables and reports")
    description: str = Field("", description="description, for reports")
    requests: Scenario = Field(description="cluster, models, classes and workload of the requests")
    serve_with: str = Field("least-connections", description="policy of the requests")
    jobs: JobsSection = Field(description="training jobs")
    train_with: str = Field("weighted-goodput", description="allocator of the jobs")
    restart: str = Field("flat(seconds_s=30)", description="what a change of a job's GPUs costs")
    round_s: Positive = Field(60.0, description="nodes are lent and asked back so often")
    return_s: NonNegative = Field(30.0, description="after which a node that was asked back serves again")
    slo_target_frac: Frac = Field(0.99, description="of requests; gains are compared where both attain it")
    request_busy_frac: Frac = Field(
        0.6,
        description="of a GPU that a request keeps busy; jobs that are its guests slow it and are slowed",
    )
    request_measured_as: str = Field(
        "",
        description="job type in jobs.generate.pairs that a request is; empty = by its busy share",
    )
    queues: Queues | None = Field(
        None,
        description="name → queue, for `queues(scheme=…)`; their tenants are classes and chains of the "
        "requests, and tenants of the jobs",
    )
    policies: tuple[PolicyName, ...] = Field(
        (), description="ways of sharing; empty = lending and muxflow, or each scheme where there are queues"
    )
    seeds: Seeds = Field(3, description="number of seeds (0, 1, …), or a list of seeds")
    sort_by: str = Field("training_gpu_hours", description="metric that the comparison is sorted by")

    @model_validator(mode="after")
    def _has_jobs(self) -> SharedScenario:
        generate = self.jobs.generate
        if generate is None and self.jobs.trace is None:
            raise_field_errors([FieldError(("jobs",), None, "generate or trace in it")], "shared scenario")
        if self.request_measured_as and (generate is None or generate.pairs is None):
            wrong = FieldError(("request_measured_as",), self.request_measured_as, NO_PAIRS)
            raise_field_errors([wrong], "shared scenario")
        if self.queues is not None and generate is not None:
            tenants = [*self.requests.served.classes, *(generate.tenants or ("",))]
            found = unknown_tenants(self.queues, tenants)
            errors = (error._replace(path=("queues", *error.path)) for error in found)
            raise_field_errors(errors, "shared scenario")
        return self


@contextmanager
def fields_of_file() -> Iterator[None]:
    """Context that names fields of the requests in ScenarioErrors as the file does: `requests.classes…`."""
    try:
        yield
    except ScenarioError as error:
        if re.split(r"[.\[]", error.field or "")[0] not in Scenario.model_fields:
            raise
        told: dict[str, Any] = {"file": error.file, "value": error.value, "expected": error.expected}
        raise ScenarioError(error.problem, field=f"requests.{error.field}", **told) from error


SHARED_NODES: Final = ScenarioFiles(SharedScenario, "trimtab.experiments.colocation", "requests and jobs")
