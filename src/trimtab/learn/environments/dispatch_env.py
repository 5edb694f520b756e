"""`trimtab/Dispatch-v0`: one request at a time, which node serves it (early binding)."""

from __future__ import annotations

from typing import Unpack

from trimtab.experiments.scenario.scenario_parts import ScenarioSource
from trimtab.learn.environments.request_runs import (
    Family,
    RequestEnv,
    RequestRuns,
    RequestVectorEnv,
    Setting,
)


class DispatchEnv(RequestEnv):
    """Each step sends one request to a node, when it arrives or when it is offered again.

    Observation: [nodes, columns] of `observations.NODE_COLUMNS`; the rows of nodes that cannot take the
    request are zero. Action: a node; with `hold` also one more, which holds the request until something
    changes. Where no node can take a request, it is held without a question.
    """

    def __init__(
        self,
        scenario: ScenarioSource | Family = "aigc-images",
        *,
        hold: bool = False,
        nodes: int | None = None,
        **setting: Unpack[Setting],
    ) -> None:
        """An environment of a scenario, or of a function from an episode's seed to its scenario.

        `nodes`: the most that an episode has, where they differ; None = as many as the first. `setting`: see
        `Setting`. Raises ScenarioError and UsageError.
        """
        super().__init__(RequestRuns(1, scenario, nodes=nodes, holds=hold, **setting))


class DispatchVectorEnv(RequestVectorEnv):
    """`num_envs` runs of `DispatchEnv` in one call of a kernel."""

    def __init__(
        self,
        num_envs: int = 1,
        scenario: ScenarioSource | Family = "aigc-images",
        *,
        hold: bool = False,
        nodes: int | None = None,
        **setting: Unpack[Setting],
    ) -> None:
        """As `DispatchEnv`."""
        super().__init__(num_envs, RequestRuns(num_envs, scenario, nodes=nodes, holds=hold, **setting))
