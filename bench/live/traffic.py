"""The traffic of a live comparison, and its simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench.policy_cases import DATA
from trimtab.domain.requests import Requests
from trimtab.engine import simulator
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.build.run_inputs import RunInputs
from trimtab.gateway.decide.dispatch_rules import LOOKAHEAD
from trimtab.policies import find
from trimtab.traces import read_trace
from trimtab.traces.gateway_recording import open_recording, read_requests

TRACE: Final = DATA / "alibaba_genai_2026" / "lora_request_trace.csv.gz"
SPEEDS: Final = {"fast": 2.0, "slow": 0.5}
NODES: Final = ("slow", "fast", "slow") * 4
TIME_SCALE: Final = 1 / 25  # of the seconds that the trace's own fit has
FIXED_S, UNIT_S = 13.4 * TIME_SCALE, 0.019 * TIME_SCALE  # at speed 1; a unit is a step of an image
MEAN_S: Final = FIXED_S + UNIT_S * 85.0  # of the trace's mean size
LOAD: Final = 0.25  # of the capacity; the trace comes in bursts far above it
FIRST_ROW, STEP_ROWS = 5_000, 1_500  # of the trace, where segments begin
OTHER_S: Final = 0.1  # so far off it is another request: some come at one time, and are recorded in any order
GAP_S: Final = 60.0  # between segments where they are simulated: all work is done long before

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """One request of the traffic."""

    images: int
    steps: int
    factor: float = 1.0  # what it takes over its estimate; no policy is told
    extra_bytes: int = 0  # of its body, which no backend reads


class Traffic(Protocol):
    """Requests and when they come."""

    @property
    def arrival_s(self) -> Floats:
        """When they come, from the begin."""

    @property
    def asked(self) -> Sequence[Asked]:
        """The requests."""


@dataclass(frozen=True)
class Segment:
    """Requests in a row of the trace, and the nodes that serve them."""

    inputs: RunInputs
    rows: pl.DataFrame  # of the trace, one per request

    @property
    def arrival_s(self) -> Floats:
        """When requests come, from the begin."""
        return np.asarray(self.inputs.requests.work["arrival_s"])

    @property
    def factor(self) -> Floats:
        """The ratio of each request's service time to its estimate; no policy sees it."""
        return np.asarray(self.inputs.requests.truth["factor"])

    @property
    def asked(self) -> list[Asked]:
        """The requests."""
        rows = self.rows["images"].to_list(), self.rows["steps"].to_list(), self.factor.tolist()
        return [Asked(*row) for row in zip(*rows, strict=True)]


def segment(number: int, requests: int, trace: pl.DataFrame | None = None) -> Segment:
    """The `number`-th segment. Its hidden factors are those of the recorded execution times.

    Recorded times over the fit's, scaled to a mean of 1: they hold all that steps and images do not tell.
    """
    table = read_trace(TRACE).table if trace is None else trace
    start_s = float(table["arrival_s"][FIRST_ROW + number * STEP_ROWS])
    rows = table.filter(pl.col("arrival_s") >= start_s).head(requests)
    built = build(_scenario(start_s, requests), 0)
    factor = (rows["recorded_s"] / (13.4 + 0.019 * rows["size"])).to_numpy()
    truth = built.requests.truth.copy()
    truth["factor"] = factor / factor.mean()
    told = Requests(built.requests.work, truth, built.requests.tenant_names)
    return Segment(replace(built, requests=told), rows)


def _scenario(start_s: float, requests: int) -> Scenario:
    """As the gateway treats nodes: as many places as slots, and what finds none waits in its own queue."""
    parts: dict[str, Any] = {
        "name": "live",
        "cluster": {
            "types": {name: {"memory_gib": 1, "speed": speed} for name, speed in SPEEDS.items()},
            "nodes": [{"type": name, "slots": 1, "queue_max": 0} for name in NODES],
        },
        "classes": {"image": {"fixed_s": FIXED_S, "unit_s": UNIT_S, "unit": "step and image"}},
        "workload": {
            "trace": {"file": str(TRACE), "options": {"start_s": start_s, "limit": requests}},
            "load": LOAD,
        },
        "serving": {"lookahead": LOOKAHEAD, "lane_per_class": True},
    }
    return Scenario.model_validate(parts)


def overhead_s(of: Segment, recording: Path, before: int) -> float:
    """Mean seconds that a request took beyond its service, as recorded; `before` came before these."""
    rows, _ = read_requests(open_recording(recording))
    served = rows.slice(before, len(of.rows))
    speed = np.array([SPEEDS[name.partition("-")[0]] for name in served["node"]])
    service_s = (FIXED_S + UNIT_S * served["size"].to_numpy()) * of.factor / speed
    beyond_s = served["recorded_s"].to_numpy() - service_s
    return float(beyond_s[np.abs(beyond_s) < OTHER_S].mean())


def counted_since_s(recording: Path, before: int) -> float:
    """When the first request came, since the recording began, after so many that are in no figure."""
    rows, _ = read_requests(open_recording(recording))
    return float(rows["arrival_s"][before])


def predicted_s(
    segments: Sequence[Segment], policy: str, overhead_s: float, mode: str = "auto"
) -> list[Floats]:
    """Completion seconds [requests] of each by the simulator, one segment after the other in one run.

    Each request takes so much longer for being sent.
    """
    built = segments[0].inputs
    cluster = replace(built.cluster, fixed_s=built.cluster.fixed_s + overhead_s)
    requests = _strung([of.inputs.requests for of in segments])
    driver = simulator.run(cluster, requests, built.options, find(policy), seed=0, mode=mode)
    finish_s = driver.state.requests["finish_s"][: len(requests)]
    ends = np.cumsum([len(of.rows) for of in segments])[:-1]
    return np.split(np.asarray(finish_s - requests.work["arrival_s"]), ends)


def _strung(parts: Sequence[Requests]) -> Requests:
    """All of them in a row, with a gap between the end of one and the begin of the next."""
    works, begins_s = [], 0.0
    for part in parts:
        work = part.work.copy()
        work["arrival_s"] += begins_s
        begins_s = float(work["arrival_s"][-1]) + GAP_S
        work["tenant_idx"] = 0  # the parts number theirs each for itself
        works.append(work)
    work = np.concatenate(works)
    work["serial"] = np.arange(len(work))
    return Requests(work, np.concatenate([part.truth for part in parts]))
