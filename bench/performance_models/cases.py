"""The cases: which profile, what is held back, and the error of each model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from bench.performance_models import readers
from trimtab.training.performance.job_metadata import JobMetadata
from trimtab.training.performance.module_steps import BUILTIN, WAYS, held_out_errors, read_steps
from trimtab.training.performance.optimus_convergence import fit_loss
from trimtab.training.performance.profiled_runs import (
    ProfiledRuns,
    Samples,
    held_back_error,
    percentage_error,
)
from trimtab.training.performance.task_graphs import OPERATORS, Step, graph_features, step_seconds
from trimtab.training.performance.throughput_formulas import OptimusSpeed, PolluxThroughput

RUNS, METADATA, GRAPH, OPS = "Profiled runs", "Job meta-data", "Graph features", "Composable operators"
CONVERGENCE, MODULES = "Convergence", "Torch modules"


@dataclass(frozen=True)
class Case:
    way: str
    profile: str
    held_back: str
    model: str
    error: Callable[[], float]


def without_gpus(gpu: str, counts: tuple[int, ...], model: object) -> float:
    samples = readers.elasticflow(gpu)
    return held_back_error(model, samples, np.isin(samples.columns["gpus"], counts))


def on_several_nodes(kind: str) -> float:
    """Fitted to one node, as a job that has never spread."""
    samples = readers.sia(kind)
    spread = samples.columns["nodes"] > 1
    return held_back_error(PolluxThroughput(), samples, spread)


def placements(kind: str) -> float:
    """Every third placement."""
    samples = readers.sia(kind)
    return held_back_error(PolluxThroughput(), samples, samples.columns["placement"] % 3 == 2)


def some_rows(samples: Samples, share: float = 0.2) -> np.ndarray:
    return np.random.default_rng(0).random(len(samples)) < share


def gavel_rows() -> float:
    samples = readers.gavel()
    return held_back_error(GAVEL, samples, some_rows(samples))


def gavel_each(column: str, model: JobMetadata) -> float:
    """The mean over the values of a column, each held back in turn."""
    samples = readers.gavel()
    values = np.unique(samples.columns[column])
    return float(np.mean([held_back_error(model, samples, samples.columns[column] == v) for v in values]))


def gavel_pairs_of(first: str, second: str) -> float:
    """Each model on each type of GPU held back, the model known from the other types."""
    samples = readers.gavel()
    errors = []
    for a in np.unique(samples.columns[first]):
        for b in np.unique(samples.columns[second]):
            both = (samples.columns[first] == a) & (samples.columns[second] == b)
            errors.append(held_back_error(GAVEL, samples, both))
    return float(np.mean(errors))


GAVEL = JobMetadata(("batch", "gpus"), ("model", "gpu"))


def of_graph(with_kind: bool, held_back: str) -> float:
    samples, layer = readers.gpt2()
    rows = layer >= 8 if held_back == "layers" else some_rows(samples)
    return held_back_error(graph_features(with_kind=with_kind), samples, rows)


def graph_sum() -> float:
    """The sum over the tasks of four layers."""
    samples, layer = readers.gpt2()
    test = samples.of(layer >= 8)
    predicted = graph_features().fit(samples.of(layer < 8)).seconds(test)
    return abs(float(predicted.sum()) / float(test.seconds.sum()) - 1)


def operator_rows(gpu: str) -> float:
    samples = readers.operators(gpu)
    return held_back_error(OPERATORS, samples, samples.columns["rank"] % 4 == 2)


def operator_steps(gpu: str) -> float:
    """Sums over the operators of a layer at sizes that are held back for all of them."""
    samples = readers.operators(gpu)
    dense = samples.of(~np.char.startswith(samples.columns["operator"].astype(str), "attention"))
    sizes = [s for s in np.unique(dense.columns["size"])[2::4] if s >= 4]
    held_back = np.isin(dense.columns["size"], sizes)
    curves = OPERATORS.fit(dense.of(~held_back))
    test = dense.of(held_back)
    names = np.unique(dense.columns["operator"])
    complete = [
        s for s in sizes if set(test.columns["operator"][test.columns["size"] == s]) == set(names.tolist())
    ]
    steps = [Step(tuple(names.tolist()), (s,) * len(names), (1,) * len(names)) for s in complete]
    truth = np.array([test.seconds[test.columns["size"] == s].sum() for s in complete])
    return percentage_error(step_seconds(curves, steps), truth)


def other_gpu() -> float:
    """Operators of an RTX 4090 from those of an RTX PRO 6000 and one measurement of each."""
    here, there = readers.operators("RTXPRO6000"), readers.operators("RTX4090")
    curves = OPERATORS.fit(here)
    predicted = curves.seconds(there)
    operator, size = there.columns["operator"], there.columns["size"]
    factor, known = np.full(len(there), np.nan), np.zeros(len(there), np.bool_)
    for name in np.unique(operator):
        rows = np.flatnonzero(operator == name)
        middle = rows[np.argsort(size[rows])[len(rows) // 2]]
        factor[rows], known[middle] = there.seconds[middle] / predicted[middle], True
    return percentage_error((predicted * factor)[~known], there.seconds[~known])


def by_bandwidth(source: str, target: str) -> float:
    """Time per output token of a serving node, from another type by the ratio of memory bandwidths."""
    first, second = readers.token_times(source, target)
    ratio = readers.bandwidth(source) / readers.bandwidth(target)
    return percentage_error(first * ratio, second)


def losses(horizon: str) -> float:
    """Fitted to the first half of the epochs."""
    errors = []
    for steps, loss in readers.convergence():
        half = len(steps) // 2
        curve = fit_loss(steps[:half], loss[:half])
        at = slice(half, None) if horizon == "all" else slice(len(steps) - 1, None)
        errors.append(percentage_error(curve.loss(steps[at]), loss[at]))
    return float(np.mean(errors))


@cache
def module_errors(way: str) -> dict[str, float]:
    """Module → error. Runs are those of the module at its least and its largest batch."""
    steps = read_steps(BUILTIN)
    if way != "runs":
        return held_out_errors(steps, way)
    columns = {"batch": np.array([s.batch for s in steps]), "curve": np.array([s.module for s in steps])}
    samples = Samples(columns, np.array([s.seconds for s in steps]))
    between = ~np.isin(columns["batch"], (columns["batch"].min(), columns["batch"].max()))
    return {
        name: held_back_error(ProfiledRuns(along="batch"), samples.of(own), between[own])
        for name in dict.fromkeys(s.module for s in steps)
        for own in [columns["curve"] == name]
    }


def cases() -> Iterator[Case]:
    models = (ProfiledRuns(), OptimusSpeed(), JobMetadata(categories=("model",)))
    for gpu in ("A100", "T4"):
        for text, counts in (("2, 8 and 32 GPUs", (2, 8, 32)), ("16 GPUs and more", (16, 32, 64))):
            for model in models:
                error = partial(without_gpus, gpu, counts, model)
                yield Case(RUNS, f"`elasticflow_profiles`, {gpu}", text, model.name, error)
    for kind in ("aws", "rtx", "dgx-ext"):
        name = f"`sia_profiles`, {kind}"
        yield Case(RUNS, name, "every third placement", "pollux-throughput", partial(placements, kind))
        yield Case(RUNS, name, "all on several nodes", "pollux-throughput", partial(on_several_nodes, kind))
    name = "`gavel_throughputs`"
    yield Case(METADATA, name, "one row in five", "job-metadata", gavel_rows)
    yield Case(
        METADATA, name, "a model on a type of GPU", "job-metadata", partial(gavel_pairs_of, "model", "gpu")
    )
    yield Case(METADATA, name, "all rows of a model", "job-metadata", partial(gavel_each, "model", GAVEL))
    for with_kind in (True, False):
        model_name = "graph-features" if with_kind else "graph-features, operators unnamed"
        yield Case(
            GRAPH, "`gpt2_tensor_dag`", "one task in five", model_name, partial(of_graph, with_kind, "rows")
        )
        yield Case(
            GRAPH, "`gpt2_tensor_dag`", "layers 8 to 11", model_name, partial(of_graph, with_kind, "layers")
        )
    yield Case(GRAPH, "`gpt2_tensor_dag`", "the sum of layers 8 to 11", "graph-features", graph_sum)
    for gpu in ("RTX4090", "RTXPRO6000"):
        name = f"`llm_op_profiles`, {gpu}"
        yield Case(OPS, name, "one size in four of each operator", "operators", partial(operator_rows, gpu))
        yield Case(OPS, name, "sums of a layer at sizes held back", "operators", partial(operator_steps, gpu))
    yield Case(
        OPS,
        "`llm_op_profiles`, RTX4090",
        "all but one row of each operator",
        "operators of RTXPRO6000",
        other_gpu,
    )
    for source, target in (("h100_sxm", "h200_sxm"), ("h100_sxm", "b200_sxm"), ("h200_sxm", "b200_sxm")):
        text = "all of the second type"
        name = f"`llm_silicon_latency`, {source} → {target}"
        yield Case(
            OPS, name, text, "memory bandwidth of `gpu_system_specs`", partial(by_bandwidth, source, target)
        )
    yield Case(
        CONVERGENCE,
        "`sia_profiles`, 1 − accuracy",
        "second half of the epochs",
        "optimus",
        partial(losses, "all"),
    )
    yield Case(
        CONVERGENCE, "`sia_profiles`, 1 − accuracy", "the last epoch", "optimus", partial(losses, "last")
    )
    for way in ("runs", *WAYS):
        held_back = "batches between" if way == "runs" else "the module"
        for name in dict.fromkeys(step.module for step in read_steps(BUILTIN)):
            error = partial(lambda way, name: module_errors(way)[name], way, name)
            yield Case(MODULES, name, held_back, way, error)
