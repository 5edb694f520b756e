"""Replays a recording, or a log on a cluster, in the simulator and compares it with the live run.

The agreement between the live run and the replay of the recorded policy shows how far a replay of another
policy can be trusted. All figures cover the requests that were served live and arrived during the recording,
optionally after an initial period: the live run was still learning its estimates then, but a replay uses the
final estimates from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from trimtab.engine import simulator
from trimtab.errors import TraceError, UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.experiments.scenario.trace_rows import chosen_rows, recorded
from trimtab.metrics import Estimate, paired_difference_ci95
from trimtab.metrics.statistics import mean, percentiles
from trimtab.policies import canonical, find
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


BATCHES: Final = 10  # of the recorded window: few, so that they are long
HIDDEN_ABOVE_FRAC: Final = 0.10  # error against the live run from which a difference means nothing


@dataclass(frozen=True, slots=True)
class Completions:
    """Completion times of one run, in seconds."""

    mean_s: float
    p50_s: float
    p99_s: float

    def error_against(self, live: Completions) -> Completions:
        """Relative errors, in the same fields; nan where the live value is 0."""
        pairs = zip(asdict(self).values(), asdict(live).values(), strict=True)
        return Completions(*(own / of - 1.0 if of else float("nan") for own, of in pairs))


@dataclass(frozen=True, slots=True)
class ReplayedPolicy:
    """Result of the replay of one policy."""

    policy: str
    completions: Completions
    error_frac: Completions  # against the live run; a difference between policies where it is another policy
    same_node_frac: float | None  # of the requests whose node is known, those that went there again
    served: int  # of the requests that were served live
    difference_s: Estimate | None  # mean completion, this − the first policy's; None for the first


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording's live figures and its replays."""

    recording: str
    live_policy: str | None  # None: the log does not tell it, the first policy stands for it
    live: Completions
    requests: int  # that the figures are of
    rows_dropped: int  # that the recorder could not write
    policies: tuple[ReplayedPolicy, ...]

    @property
    def is_hidden(self) -> bool:
        """Whether differences between policies mean nothing: the first replay is too far from the live run.

        They are meaningful only if the first policy is the recorded one.
        """
        first = self.policies[0]
        agrees = abs(first.error_frac.mean_s) <= HIDDEN_ABOVE_FRAC
        return not (agrees and self.live_policy in (first.policy, None))

    def to_dict(self) -> dict[str, Any]:
        """The output of `trimtab replay --json`."""
        policies = [
            {**asdict(run), "difference_s": run.difference_s and run.difference_s._asdict()}
            for run in self.policies
        ]
        return {**asdict(self), "policies": policies, "is_hidden": self.is_hidden}


def replay(
    path: str | os.PathLike[str],
    policies: Sequence[str] | None = None,
    *,
    scenario: Scenario | None = None,
    after_s: float = 0.0,
    mode: str = "auto",
) -> Replay:
    """Replay a recording with these policies; default: the one it was recorded under.

    The whole recording is replayed; figures leave out requests that arrived in its first `after_s` seconds.
    A log of one's own needs a scenario, of its trace on the cluster that served it, and the policy.

    Raises:
        TraceError: the recording cannot be read, or nothing was served while it recorded, or after that.
        UsageError: a log that tells no policy is to be replayed with none.
        PolicyNotFound, PolicyError: as for simulations.
    """
    run = live_run_of_recording(Path(path)) if scenario is None else live_run_of_log(scenario)
    if not policies and run.policy is None:
        expected = "--policy NAME: the policy that chose the nodes, or the one most like it"
        raise UsageError("a log does not tell its policy", field="--policy", expected=expected)
    is_counted = ~np.isnan(run.completion_s) & (run.arrival_s >= after_s)
    if not is_counted.any():
        after = f" after its first {after_s:g} s" if after_s else ""
        raise TraceError(f"no request was served while it recorded{after}", file=str(path))
    built = build(run.scenario, run.seed)
    went_to = run.positions(built.cluster.node_names)
    live = _completions(run.completion_s[is_counted])

    def replayed(policy: str) -> tuple[FloatArray, float | None]:
        driver = simulator.run(
            built.cluster, built.requests, built.options, find(policy), seed=run.seed, mode=mode
        )
        rows = driver.state.requests[: len(built.requests)]
        completion_s = rows["finish_s"] - built.requests.work["arrival_s"]  # nan: not served
        known = is_counted & (went_to >= 0)
        same = float((rows["node_idx"] == went_to)[known].mean()) if known.any() else None
        return np.where(is_counted, completion_s, np.nan), same

    names = [canonical(policy) for policy in policies or filter(None, [run.policy])]
    runs = [replayed(name) for name in names]
    found = tuple(
        ReplayedPolicy(
            policy=name,
            completions=(figures := _completions(served := completion_s[~np.isnan(completion_s)])),
            error_frac=figures.error_against(live),
            same_node_frac=same,
            served=len(served),
            difference_s=None if k == 0 else paired_by_batches(completion_s, runs[0][0]),
        )
        for k, (name, (completion_s, same)) in enumerate(zip(names, runs, strict=True))
    )
    return Replay(str(path), run.policy, live, int(is_counted.sum()), run.rows_dropped, found)


def paired_by_batches(a_s: FloatArray, b_s: FloatArray, batches: int = BATCHES) -> Estimate:
    """Mean of a − b over requests in order of arrival, [requests] each; nan in either: left out.

    Completions of neighbours depend on each other, hence batch means: the mean differences of equally many
    consecutive requests are taken as independent. Source: A. M. Law, "Simulation Modeling and Analysis",
    §9.5.3 (batch means) with the paired-t interval of §10.2.1.
    """
    paired = ~(np.isnan(a_s) | np.isnan(b_s))
    difference_s = (a_s - b_s)[paired]
    if len(difference_s) < 2 * batches:
        return Estimate(float(difference_s.mean()) if len(difference_s) else float("nan"), None)
    per_batch = difference_s[: len(difference_s) // batches * batches].reshape(batches, -1).mean(axis=1)
    interval = paired_difference_ci95(per_batch, np.zeros(batches))
    return Estimate(float(difference_s.mean()), interval.ci95)


def _completions(seconds: FloatArray) -> Completions:
    return Completions(mean(seconds), *percentiles(seconds, 50, 99))
