"""The true times of requests, from a recording of the gateway or a log of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from trimtab.errors import TraceError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.experiments.scenario.trace_rows import chosen_rows, recorded
from trimtab.policies import canonical
from trimtab.traces.gateway_recording import open_recording


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that was recorded, and the scenario of its replays. Arrays are [requests]."""

    scenario: Scenario
    seed: int
    policy: str | None  # under which it was recorded, where that is told
    completion_s: FloatArray  # nan: not served, or not known
    arrival_s: FloatArray
    nodes: tuple[str | None, ...]  # where each was served
    rows_dropped: int = 0  # that the recorder could not write

    def positions(self, node_names: Sequence[str]) -> IntArray:
        """Position of each request's node among these; −1 where there is none of that name."""
        position = {name: idx for idx, name in enumerate(node_names)}
        return np.array([_position(name, position) for name in self.nodes], np.int64)


def live_run_of_recording(path: Path) -> LiveRun:
    """The live run of a recording of the gateway. Raises TraceError, ScenarioError."""
    recording, scenario = open_recording(path), scenario_of(path)
    assert scenario.workload.trace is not None
    table = recorded(scenario.workload.trace).table
    counts = (pl.col("outcome") == "done") & ~pl.col("is_initial")
    seed = int(recording.head["seed"])
    took_s = pl.when(counts).then(pl.col("finish_s") - pl.col("arrival_s"))
    policy = canonical(recording.head["policy"])
    return _live_run(scenario, seed, policy, table, took_s, recording.rows_dropped)


def live_run_of_log(scenario: Scenario) -> LiveRun:
    """The live run of a log of one's own, whose rows tell how long requests took. Raises TraceError."""
    spec = scenario.workload.trace
    assert spec is not None
    trace = recorded(spec)
    if "recorded_s" not in trace.table.columns:
        raise TraceError(
            "has no recorded_s, the seconds that requests took",
            file=trace.file,
            value=trace.table.columns,
            expected="--map recorded_s=COLUMN",
        )
    seed = scenario.seed_list()[0]
    return _live_run(scenario, seed, None, chosen_rows(trace, spec.options, seed), pl.col("recorded_s"))


def _live_run(
    scenario: Scenario,
    seed: int,
    policy: str | None,
    table: pl.DataFrame,
    took_s: pl.Expr,
    rows_dropped: int = 0,
) -> LiveRun:
    completion_s = table.select(took_s.cast(pl.Float64)).to_series().fill_null(float("nan")).to_numpy()
    nodes = table["node"].to_list() if "node" in table.columns else [None] * table.height
    arrival_s = table["arrival_s"].to_numpy()
    return LiveRun(scenario, seed, policy, completion_s, arrival_s, tuple(nodes), rows_dropped)


def _position(name: str | None, position: dict[str, int]) -> int:
    if name is None:
        return -1
    return position.get(name, -1)
