"""docs/benchmarks/kubernetes.md from bench/kubernetes.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from bench.page import markdown_table

HEAD = """<!-- Made by `python -m bench.kube` from what it measured; `--docs` writes it anew. -->

# trimtab inside Kubernetes

The real etcd, kube-apiserver and kube-scheduler of Kubernetes 1.20.2, all on one machine of two cores, with 100 hollow
nodes: nobody runs the pods. Each run has a control plane of its own, and the schedulers take turns.
"""

SPEED = """## 400 pods on 100 nodes of 8 GPUs

Seconds until all pods are created, eight at a time, and bound; the median of {rounds} runs, with the least and the most.
A binding is one call, from its request to the end of its answer; at 50 calls a second most of it is the client's own wait.
"""

OPENB = """## Pods of openb: GPUs shared in thousandths

100 nodes of openb (Alibaba, 2023) with GPUs, and pods of its default list in random order until they ask for as many GPUs
as there are; nothing leaves. Mean of {seeds} samples. kube-scheduler sees shares as an extended resource of the node,
`trimtab.io/gpu-milli`, and chooses no device: afterwards each share gets, in order of creation, the fullest device that has
room. trimtab writes the device on the pod. A pod that fits no single device counts as unplaced for both.

- *unplaced*: pods that ask for GPUs and have no node, or no device on it (in brackets: bound, but on no device).
- *used*: GPU capacity in use. *stranded*: GPU capacity that is free, yet of no use to the next pod, drawn from those that
  came (the expected fragments of Weng et al., USENIX ATC 2023); both in % of all GPUs.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    measured = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['memory_gb']} GB, "
        f"load average {on['load_average']} at the start.\n"
    )
    speed, openb = results["speed"], results["openb"]
    rounds, seeds = (len(next(iter(part.values()))) for part in (speed, openb))
    parts = [HEAD, measured, SPEED.format(rounds=rounds), _speed(speed), _ratio(speed)]
    return "\n".join([*parts, OPENB.format(seeds=seeds), _openb(openb)])


def _speed(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for name, of_one in runs.items():
        cells = [
            _spread([run[key] for run in of_one if key in run])
            for key in ("bound_s", "bind_p50_ms", "bind_p95_ms")
        ]
        rows.append([name, *cells])
    return markdown_table(["scheduler", "created and bound, s", "a binding, p50 ms", "p95 ms"], rows)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def _ratio(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    theirs, ours = (
        median(run["bound_s"] for run in of_one) for name, of_one in runs.items() if "1,000" in name
    )
    return f"trimtab takes {ours / theirs:.2f} times as long as kube-scheduler where both may make 1,000 calls a second.\n"


def _openb(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for name, of_one in runs.items():
        found = {key: mean(run[key] for run in of_one) for key in of_one[0]}
        unplaced = f"{found['unplaced']:.1f} ({found['no_device']:.1f}) of {found['gpu_pods']:.0f}"
        rows.append([name, unplaced, f"{found['used_percent']:.2f}", f"{found['stranded_percent']:.2f}"])
    return markdown_table(["scheduler", "unplaced", "used, %", "stranded, %"], rows)
