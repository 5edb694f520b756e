"""The page of errors."""

from __future__ import annotations

import statistics

from bench.performance_models.cases import CONVERGENCE, GRAPH, METADATA, MODULES, OPS, RUNS

HEAD = """<!-- Made by `python -m bench.performance_models` from what it computed. -->

# Performance models

How well the seconds of work are predicted that was never measured. Each model of `trimtab.training.performance` learns from a part of a published profile
and predicts the rest; the error is the mean absolute percentage error on what was held back, as a share of the measured seconds. Nothing is random but which
rows are "one in five" (seed 0), so the same command gives the same page. `make bench-performance-models` computes it anew (a minute).
"""
TEXTS = {
    RUNS: "Short runs of the job itself at some sizes. *profiled-runs* joins them by lines of logarithms, *optimus-speed* fits Optimus' formula "
    "(non-negative least squares), *pollux-throughput* the model of Pollux and Sia. *job-metadata* stands beside them: it sees the same rows as one regression "
    "over all models. Curves that fall beyond some number of GPUs are what extrapolation misses.",
    METADATA: "A regression over what a submission says: model, batch, GPUs and their type. Of a model that was never seen it knows nothing but the mean of all others.",
    GRAPH: "A regression over what the graph of a computation says of each task: degrees, bytes in and out, depth, and the kind of operator. There is one graph, "
    "so what is held back are its tasks or layers, not whole models.",
    OPS: "Operators measured by themselves, at sizes between which lines of logarithms stand; steps are sums of them. Another type of GPU follows from one "
    "measurement of each operator, or, where nothing was measured, from the ratio of memory bandwidths.",
    CONVERGENCE: "Optimus' formula for the loss, fitted to the first half of the epochs of BERT, CIFAR-10 and ImageNet runs. It was made for training losses; the "
    "profiles have accuracies of validation, of which 1 − accuracy is fitted. Steps of the learning rate are not in the formula.",
}


OF_MODULES = """
## Torch modules

Seconds of a training step (forward, backward, update) of fourteen small torch modules at batches 4, 8, 16 and 32, measured on one core of a CPU: processor
seconds, medians of fifteen runs, in float32 and one thread (`python -m bench.performance_models --measure`). Each module is held out whole: the models learn from the
other thirteen, at all four batches, and the error is that of its four steps. *metadata* sees the batch, the parameters and the bytes of a sample. *graph* sees the
exported graph, traced through the backward pass without data: calls, FLOPs and bytes of its convolutions, of its products, and of its other operators, with one weight
each; these three kinds were chosen with the modules below. *operators* sums operators that were timed one by one in the other modules. *runs* is no prediction of an unseen module: it ran this one at batches 4 and 32, and
the error is that at 8 and 16. `trimtab profile job` uses these fits; nothing was measured on a GPU or over a network.

"""


def of_modules(rows: list[dict[str, object]]) -> str:
    found = {
        (str(r["profile"]), str(r["model"])): float(str(r["error"])) for r in rows if r["way"] == MODULES
    }
    ways, names = (list(dict.fromkeys(key[k] for key in found)) for k in (1, 0))
    lines = [f"| held out | {' | '.join(ways)} |", f"| --- |{' --- |' * len(ways)}"]
    lines += [f"| {n} | {' | '.join(f'{100 * found[n, w]:.1f} %' for w in ways)} |" for n in names]
    for title, of in (("mean", statistics.mean), ("median", statistics.median)):
        cells = (f"**{100 * of([found[n, w] for n in names]):.1f} %**" for w in ways)
        lines.append(f"| **{title}** | {' | '.join(cells)} |")
    return OF_MODULES + "\n".join(lines) + "\n"


def page(rows: list[dict[str, object]]) -> str:
    parts = [HEAD]
    for way, text in TEXTS.items():
        parts.append(
            f"\n## {way}\n\n{text}\n\n| profile | held back | model | error |\n| --- | --- | --- | --- |\n"
        )
        parts += [
            f"| {r['profile']} | {r['held_back']} | {r['model']} | {100 * float(str(r['error'])):.1f} % |\n"
            for r in rows
            if r["way"] == way
        ]
    return "".join([*parts, of_modules(rows)])
