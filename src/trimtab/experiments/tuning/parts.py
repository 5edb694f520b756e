"""Parts of a workload by time, as kinds of work: what comes before a part is served, but not counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.experiments.compare.kind import Notice, PolicySpec
from trimtab.experiments.machine import cores
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.serving.run import prepared_mode
from trimtab.experiments.serving.serving_kind import Serving, ServingInputs
from trimtab.experiments.tuning.request_values import FAMILIES, LEAST, family_of, measured_names, statistic
from trimtab.metrics import Records

TRAINED, VALIDATED = 0.5, 0.75  # where parts end, as shares of the requests by arrival; the rest is the test
LEAST_REQUESTS: Final = round(LEAST / (1.0 - VALIDATED))


@dataclass(frozen=True)
class Part(Serving):
    """The requests from one share of a workload to another, by arrival.

    A run serves all from the first request to the part's end, so that queues and memory of nodes are those of
    a run that goes on. Later requests do not arrive: nothing of them reaches the figures.
    """

    begin_frac: float = 0.0
    end_frac: float = 1.0
    families: tuple[str, ...] = ()  # whose value of each request is kept

    def prepare(
        self,
        settings: Scenario,
        policies: Sequence[PolicySpec],
        mode: str,
        items: int,
        notice: Notice | None,
    ) -> str:
        """Compile the kernels of all runs; there are no bounds."""
        return prepared_mode(policies, mode, items, cores(), notice)

    def build(self, settings: Scenario, seed: int, load: float | None) -> ServingInputs:
        """The requests up to the part's end. The load is that of the whole workload."""
        made = super().build(settings, seed, load)
        requests = made.run.requests.first(round(self.end_frac * len(made)))
        return replace(made, run=replace(made.run, requests=requests))

    def measure(self, records: Records) -> dict[str, float]:
        """The metrics of the part's requests that single requests have."""
        values = {name: values[self._begin(records) :] for name, values in _values(records, FAMILIES).items()}
        return {name: statistic(name, values[family_of(name)]) for name in measured_names()}

    def remarks(self, inputs: ServingInputs, policy: PolicySpec, records: Records) -> dict[str, Any]:
        """Family → the value of each of the part's requests."""
        begin = self._begin(records)
        return {name: values[begin:] for name, values in _values(records, self.families).items()}

    def batch_ci95(self, records: Records) -> dict[str, float]:
        """None: intervals are those of differences."""
        return {}

    def _begin(self, records: Records) -> int:
        return round(self.begin_frac / self.end_frac * len(records.requests.arrival_s))


def check_length(scenario: Scenario) -> None:
    """Raise UsageError for a workload that is too short to split, or that has runs of chains."""
    if scenario.has_chains():
        raise UsageError(
            "is of runs of chains",
            field="scenario",
            value=scenario.name,
            expected="requests: the parts of a workload are cut by arrival",
        )
    requests = scenario.n_requests()
    if requests < LEAST_REQUESTS:
        raise UsageError(
            "too short to split",
            field="requests",
            value=requests,
            expected=f"at least {LEAST_REQUESTS:,}, for a part to train on, one to choose by, one to test",
        )


def _values(records: Records, families: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    return {name: FAMILIES[name](records) for name in families}
