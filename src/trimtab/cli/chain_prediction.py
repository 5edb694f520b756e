"""`trimtab chain run --on simulated`: what a run would take, in virtual time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from trimtab.cli.output import note, show
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.chains.graph import Chain
    from trimtab.chains.input_files import InputFile
    from trimtab.chains.results import Result
    from trimtab.chains.run_costs import ChainCosts
    from trimtab.chains.session import RunHandle
    from trimtab.live.stage_backend import StageNode

SIMULATED: Final = "simulated"  # the value of `--on`


class Prediction(NamedTuple):
    """Options of a prediction."""

    cluster: Path | None
    workers: str
    items: Sequence[str]  # STAGE=COUNT
    like: str  # a recorded run with the costs
    journal: str | None  # of that run


def check_prediction(asked: Prediction, on: str, refused: Mapping[str, object]) -> None:
    """Raise UsageError for options that go with `--on simulated` only, or not with it."""
    from trimtab.errors import UsageError

    if on != SIMULATED:
        given: dict[str, object] = {"--cluster": asked.cluster, "--items": asked.items, "--like": asked.like}
        for option, value in given.items():
            if value:
                raise UsageError("is for predictions", field=option, expected=f"--on {SIMULATED} with it")
        return
    for option, value in refused.items():
        if value not in (None, ""):
            raise UsageError("does not apply to a prediction", field=option, expected=f"no {option}")
    if asked.cluster is not None and asked.workers != "0":
        raise UsageError("says what --cluster says", field="--workers", expected="one of the two")


def predict(
    chain: Chain, given: InputFile, asked: Prediction, out: Path | None, options: Mapping[str, Any], *,
    quiet: bool,
) -> int:  # fmt: skip
    """Run a chain's inputs in virtual time: when each would be over, and what each stage would take.

    Returns how many inputs failed: their sizes cannot be read.
    """
    from trimtab.chains.run_costs import workers_by_cost
    from trimtab.chains.session import Session

    nodes, speeds = _nodes(asked)
    backend = workers_by_cost(chain, nodes, speeds, _costs(chain, asked))
    with Session(chain, on=backend, in_flight=len(given.values), **options) as session:
        handle = session.run(chain, given.values)
        results = handle.wait()
    if out is not None:
        with out.open("w") as file:
            _write(results, file)
    show(_table(handle, results, sum(node.slots for node in nodes)))
    failed = [result for result in results if not result.is_ok]
    for result in failed:
        note(f"input of line {given.lines[result.index]}: {result.failure}", quiet=quiet)
    note("predicted: no stage ran", quiet=quiet)
    return len(failed)


def _costs(chain: Chain, asked: Prediction) -> ChainCosts:
    from dataclasses import replace

    from trimtab.chains.run_costs import ChainCosts
    from trimtab.chains.run_reports import costs_of_run
    from trimtab.errors import UsageError

    items = {}
    for text in asked.items:
        name, _, count = text.partition("=")
        if not (name and count.isdecimal()):
            raise UsageError("not a count of items", field="--items", value=text, expected="STAGE=COUNT")
        items[name] = int(count)
    costs = costs_of_run(chain, asked.journal, asked.like) if asked.like else ChainCosts()
    return replace(costs, items={**costs.items, **items})


def _nodes(asked: Prediction) -> tuple[list[StageNode], dict[str, float]]:
    """The nodes, and their speeds by name."""
    import os

    from trimtab.clusters.backends import worker_counts
    from trimtab.errors import UsageError
    from trimtab.live.stage_backend import StageNode

    if asked.cluster is not None:
        return _nodes_of(asked.cluster)
    try:
        least, most = worker_counts(asked.workers)
    except ValueError as error:
        raise UsageError(
            "not a number of workers", field="--workers", value=asked.workers, expected=str(error)
        ) from None
    if least != most:
        raise UsageError(
            "simulated pools do not grow", field="--workers", value=asked.workers, expected="a number"
        )
    return [StageNode("local", slots=most or os.cpu_count() or 1)], {}


def _nodes_of(file: Path) -> tuple[list[StageNode], dict[str, float]]:
    """The nodes of a cluster file: slots, accelerators as GPUs, and speed of each."""
    from trimtab.experiments.scenario.loader import load_cluster
    from trimtab.live.stage_backend import StageNode

    cluster = load_cluster(file).cluster
    nodes, speeds = [], {}
    for name, group in cluster.each_node():
        kind = cluster.types[group.type]
        capacity = {"memory_gib": kind.memory_gib}
        if kind.accelerator == "gpu":
            capacity["gpu"] = kind.accelerators
        if "cpu_cores" in kind.resources:
            capacity["cpu"] = kind.resources["cpu_cores"]
        nodes.append(
            StageNode(
                name, slots=group.slots or kind.slots, capacity=capacity,
                labels={"accelerator": group.type}, type=group.type, machine=group.zone or "local",
            )
        )  # fmt: skip
        speeds[name] = kind.speed
    return nodes, speeds


def _write(results: Sequence[Result], file: TextIO) -> None:
    for result in results:
        told = {"input": result.index, "state": result.state.value, "elapsed_s": result.elapsed_s}
        print(json.dumps(told), file=file)


def _table(handle: RunHandle, results: Sequence[Result], slots: int) -> Any:
    from rich.table import Table

    completions_s = [result.elapsed_s for result in results if result.is_ok] or [math.nan]
    makespan_s = handle.elapsed_s
    busy_s = sum(counts.busy_s for counts in handle.counts.values())
    caption = (
        f"{counted(len(results), 'input')}: mean {fmean(completions_s):.4g} s, "
        f"median {median(completions_s):.4g} s, "
        f"all over after {makespan_s:.4g} s; {slots} slots are busy for "
        f"{100 * busy_s / max(1e-9, slots * makespan_s):.0f} % of it"
    )
    table = Table(caption=caption, caption_justify="left")
    table.add_column("stage")
    for heading in ("served", "mean service (s)", "service in all (s)"):
        table.add_column(heading, justify="right")
    for name, counts in handle.counts.items():
        mean_s = counts.busy_s / max(1, counts.done)
        table.add_row(name, f"{counts.done:,}", f"{mean_s:.4g}", f"{counts.busy_s:.4g}")
    return table
