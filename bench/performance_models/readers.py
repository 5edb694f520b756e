"""Profiles as samples."""

from __future__ import annotations

import csv
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.golden.cases import DATA
from trimtab.traces.application_profiles import SIA_RESTART_S, read_applications
from trimtab.traces.gavel_jobs import read_gavel_rates
from trimtab.traces.scaling_profiles import read_scaling_profiles
from trimtab.training.performance.profiled_runs import Samples
from trimtab.training.performance.task_graphs import task_samples

ACCURACIES = {"bert": 100.0, "cifar10": 1.0, "imagenet": 1.0}  # application → its full accuracy


@cache
def elasticflow(gpu: str) -> Samples:
    """Seconds of an iteration."""
    table, models = read_scaling_profiles(DATA / "elasticflow_profiles" / f"throughputs_{gpu}")
    rows = [
        (models[m], float(table.batches[b]), int(n), float(table.rate_per_s[0, c, k]), int(c))
        for (m, b), c in np.ndenumerate(table.curve_idx)
        for k, n in enumerate(table.levels)
        if c >= 0 and table.rate_per_s[0, c, k] > 0
    ]
    model, batch, gpus, rate, curve = (np.array(column) for column in zip(*rows, strict=True))
    return Samples({"model": model, "batch": batch, "gpus": gpus, "curve": curve}, 1.0 / rate)


@cache
def sia(kind: str) -> Samples:
    """Seconds of a step by placement."""
    rows = []
    names = tuple(SIA_RESTART_S)
    for profile in read_applications(DATA / "sia_profiles", (kind,), {}, names):
        for k, (placement, (batches, times)) in enumerate(profile.steps[0].placements.items()):
            for local, (step_s, sync_s) in zip(batches, times, strict=True):
                if step_s > sync_s:
                    rows.append(
                        (profile.name, len(placement), sum(placement), local, step_s - sync_s, step_s, k)
                    )
    names_, nodes, gpus, local, grad_s, step_s, place = (np.array(c) for c in zip(*rows, strict=True))
    columns = {"curve": names_, "nodes": nodes, "gpus": gpus, "local_batch": local, "grad_s": grad_s}
    return Samples(columns | {"placement": place}, step_s.astype(np.float64))


@cache
def gavel() -> Samples:
    """Seconds of a step of jobs alone."""
    rows = [
        (model, float(max(batch, 1)), gpus, kind, rate)
        for kind in ("k80", "p100", "v100")
        for (model, batch, gpus), rate in read_gavel_rates(
            DATA / "gavel_throughputs" / "simulation_throughputs.json.gz", kind
        ).items()
        if rate > 0
    ]
    model, batch, gpus, gpu, rate = (np.array(column) for column in zip(*rows, strict=True))
    return Samples({"model": model, "batch": batch, "gpus": gpus, "gpu": gpu}, 1.0 / rate)


@cache
def gpt2() -> tuple[Samples, Any]:
    """Tasks of the graph, and the layer of each; −1 = of none."""
    file = DATA / "gpt2_tensor_dag" / "gpt2_tensor_sh12_prefill_graph.json.gz"
    graph = json.loads(gzip.decompress(file.read_bytes()))["task_graph"]
    seconds = {task["name"]: task["cost"] / 1000 for task in graph["tasks"]}
    kinds = {name: re.sub(r"_?\d+", "", name) for name in seconds}
    edges = [(d["source"], d["target"], d["size"]) for d in graph["dependencies"]]
    layer = [int(found[0]) if (found := re.findall(r"_(\d+)", name)) else -1 for name in seconds]
    return task_samples(seconds, kinds, edges), np.array(layer)


@cache
def operators(gpu: str) -> Samples:
    """Operators of Llama-3.1-8B by size; attention by keys of decodes, a curve for each number of them."""
    stem = DATA / "llm_op_profiles" / f"{gpu}__meta-llama__Llama-3.1-8B__bf16__tp1"
    rows: list[tuple[str, float, float]] = []
    for kind, size in (("dense", "tokens"), ("per_sequence", "sequences")):
        rows += [(r["layer"], float(r[size]), float(r["time_us"])) for r in _rows(f"{stem}__{kind}.csv.gz")]
    for r in _rows(f"{stem}__attention.csv.gz"):
        if r["prefill_chunk"] == "0" and int(r["n_decode"]) > 0:
            rows.append((f"attention of {r['n_decode']} decodes", float(r["kv_decode"]), float(r["time_us"])))
    name, size_of, time_us = (np.array(column) for column in zip(*rows, strict=True))
    rank = np.zeros(len(rows), np.int64)
    for operator in np.unique(name):
        own = np.flatnonzero(name == operator)
        rank[own[np.argsort(size_of[own], kind="stable")]] = np.arange(len(own))
    return Samples({"operator": name, "size": size_of, "rank": rank}, time_us * 1e-6)


@cache
def token_times(source: str, target: str) -> tuple[Any, Any]:
    """Mean time per output token of equal settings on both types."""
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}
    keys = ("model_path", "backend", "precision", "isl", "osl", "batch_size", "tp_size", "pp_size")
    keys += ("attention_dp_size", "moe_tp_size", "moe_ep_size")
    for r in _rows(str(DATA / "llm_silicon_latency" / "silicon_sample.csv.gz")):
        if r["mode"] == "agg" and r["silicon_tpot_ms"]:
            times = found.setdefault(tuple(r[k] for k in keys), {})
            times.setdefault(r["system"], []).append(float(r["silicon_tpot_ms"]))
    both = [times for times in found.values() if source in times and target in times]
    return (np.array([np.mean(times[s]) for times in both]) for s in (source, target))


@cache
def bandwidth(system: str) -> float:
    """Of the memory, bytes per second."""
    text = (DATA / "gpu_system_specs" / f"{system}.yaml").read_text(encoding="utf-8")
    return float(yaml.safe_load(text)["gpu"]["mem_bw"])


@cache
def convergence() -> list[tuple[Any, Any]]:
    """Iterations and 1 − accuracy by epoch, of every batch with at least eight epochs."""
    curves = []
    for application, full in ACCURACIES.items():
        for file in sorted((DATA / "sia_profiles" / application).glob("validation-*.csv")):
            rows = list(csv.DictReader(file.open(encoding="utf-8")))
            if len(rows) >= 8:
                steps = np.array([float(r["iteration"]) for r in rows])
                curves.append((steps, 1.0 - np.array([float(r["metric"]) for r in rows]) / full))
    return curves


def _rows(file: str) -> list[dict[str, str]]:
    with gzip.open(Path(file), "rt", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
