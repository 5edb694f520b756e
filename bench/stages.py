"""A million stages of chains beside as many requests without stages: rate of the loop, and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import yaml

from bench.figures import Benchmark, Effort, Measured, at_least, at_most, figure, in_turns, per_second, ratios
from bench.work import timed
from trimtab.domain.requests import Requests
from trimtab.engine.layout import rows_with_runs
from trimtab.experiments.scenario import builtin_text, parse_scenario
from trimtab.experiments.scenario.build import RunInputs, build

RUNS, NODES, POLICY = 160_000, (20, 54, 26), "least-connections"
STATE = ("work", "truth", "requests", "stages", "groups", "runs", "copies", "held_rows", "held_at")


def multimodal(n_runs: int, *, links: bool) -> RunInputs:
    """The built-in scenario on a hundred nodes."""
    content = yaml.safe_load(builtin_text("multimodal"))
    content["workload"]["generate"]["requests"] = n_runs
    for group, count in zip(content["cluster"]["nodes"], NODES, strict=True):
        group["count"] = count
        if not links:
            del group["nic_gib_per_s"]
    if not links:
        del content["workload"]["payload_gib"]
        for chain in content["chains"].values():
            for stage in chain["stages"].values():
                stage.pop("output_gib", None)
    return build(parse_scenario(yaml.safe_dump(content)), 0)


def without_stages(inputs: RunInputs) -> RunInputs:
    """The stages as requests of their own, spread evenly over the same time."""
    chains = inputs.requests.chains
    assert chains is not None
    rows = rows_with_runs(inputs.requests, inputs.cluster.n_nodes, splits=False).requests
    work, span_s = rows.work[len(inputs.requests) :], inputs.requests.work["arrival_s"][-1]
    work["serial"], work["payload_gib"] = np.arange(len(work)), 0.0
    work["arrival_s"] = np.sort(np.random.default_rng(0).uniform(0.0, span_s, len(work)))
    work["run_arrival_s"], work["deadline_s"] = work["arrival_s"], np.inf
    return dataclasses.replace(
        inputs, requests=Requests(work, chains.truth.copy(), inputs.requests.tenant_names)
    )


def measure(effort: Effort) -> Iterator[Measured]:
    for links, least in ((False, 0.3), (True, 0.15)):
        inputs = multimodal(effort.requests(RUNS), links=links)
        chains, plain = inputs.requests.chains, without_stages(inputs)
        assert chains is not None
        n = len(chains.work) + int((chains.template_idx < 0).sum())
        stages_s, plain_s = in_turns(
            effort.repetitions,
            lambda inputs=inputs: timed(inputs, POLICY).loop_s,
            lambda plain=plain: timed(plain, POLICY).loop_s,
        )
        rates, plain_rates = per_second(n, stages_s), per_second(len(plain.requests), plain_s)
        case = "with links" if links else "without links"
        yield figure(rates, "million stages/s", case=case, figure="stages")
        yield figure(
            ratios(rates, plain_rates), "× requests", at_least(least), case=case, figure="of requests"
        )
        if not links:
            state = timed(inputs, POLICY).driver.state
            bytes_per_row = sum(getattr(state, name).nbytes for name in STATE) / len(state.work)
            yield figure(
                [bytes_per_row], "bytes a row", at_most(350), case=case, figure="memory of the state"
            )


BENCHMARK = Benchmark(
    "stages",
    "Stages of chains",
    f"The built-in scenario multimodal with {RUNS:,} runs and requests on 100 nodes, about a million stages, "
    f"policy {POLICY}, beside the same stages as requests of their own.",
    measure,
    pivot=("figure", "case"),
)
