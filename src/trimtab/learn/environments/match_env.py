"""`trimtab/Match-v0`: pairs of held request and idle node, which starts next (late binding)."""

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


class MatchEnv(RequestEnv):
    """Each step starts one request on an idle node, or waits.

    Observation: [pairs, columns] of `observations.PAIR_COLUMNS`. Pairs come in the order in which requests
    are offered, each with the idle nodes that it can start on; of nodes that are alike, with the first. The
    rows after the last pair are zero. An arrival is asked about alone, as of a policy; when a slot is free,
    up to 128 held requests are. Action: a pair; or `pairs`, which waits until something changes.
    """

    def __init__(
        self,
        scenario: ScenarioSource | Family = "aigc-images",
        *,
        pairs: int = 128,
        **setting: Unpack[Setting],
    ) -> None:
        """An environment of a scenario, or of a function from an episode's seed to its scenario.

        `pairs`: the most that are shown. `setting`: see `Setting`. Raises ScenarioError and UsageError.
        """
        super().__init__(RequestRuns(1, scenario, pairs=pairs, **setting))


class MatchVectorEnv(RequestVectorEnv):
    """`num_envs` runs of `MatchEnv` in one call of a kernel."""

    def __init__(
        self,
        num_envs: int = 1,
        scenario: ScenarioSource | Family = "aigc-images",
        *,
        pairs: int = 128,
        **setting: Unpack[Setting],
    ) -> None:
        """As `MatchEnv`."""
        super().__init__(num_envs, RequestRuns(num_envs, scenario, pairs=pairs, **setting))
