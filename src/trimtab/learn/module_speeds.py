"""Seconds of a step of a torch module over GPUs and batches: by its runs here, or by other modules'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.errors import UsageError
from trimtab.experiments.training.job_speeds import JobSpeeds
from trimtab.learn.module_graphs import graph_of_step, inputs_of, load_module, measured_step
from trimtab.training.performance.module_steps import BUILTIN, WAYS, Link, ModuleStep, read_steps, write_steps
from trimtab.training.performance.profiled_runs import ProfiledRuns, Samples

MODULE_WAYS: Final = ("runs", *WAYS)


def speeds_of_module(
    named: str,
    way: str,
    gpus: Sequence[int],
    batches: Sequence[int],
    *,
    shapes: Sequence[str] = (),
    measured: Path | None = None,
    measure: Path | None = None,
    link: Link,
) -> JobSpeeds:
    """Of a torch module `package.module:Name`.

    `shapes` are those of `inputs_of`. `measured`: steps of other modules, None = the built-in ones of one
    core of a CPU. `measure`: a file that gets this module's steps, measured here, too. Raises UsageError and
    MissingExtra.
    """
    if way not in MODULE_WAYS:
        expected = f"one of {', '.join(MODULE_WAYS)}"
        raise UsageError("no way of a module", field="way", value=way, expected=expected)
    others = [] if way == "runs" else read_steps(measured or BUILTIN)
    module, name = load_module(named), named.rpartition(":")[2]
    local = sorted({batch // n for batch in batches for n in gpus if batch % n == 0})
    if not local:
        expected = "a multiple of one of --gpus: each has the same part of it"
        raise UsageError("no batch that GPUs can share", field="batch", value=batches, expected=expected)
    run = (
        [measured_step(module, inputs_of(module, shapes, b), name) for b in _ends(local)]
        if (way == "runs" or measure is not None)
        else []
    )
    if measure is not None:
        before = read_steps(measure) if measure.exists() else []
        write_steps(measure, [step for step in before if step.module != name] + run)
    if way == "runs":
        known = Samples(
            {"batch": np.array([s.batch for s in run]), "curve": np.zeros(len(run))}, _seconds(run)
        )
        asked = Samples(
            {"batch": np.array(local), "curve": np.zeros(len(local))}, np.full(len(local), np.nan)
        )
        alone = ProfiledRuns(along="batch").fit(known).seconds(asked)
    else:
        steps = [graph_of_step(module, inputs_of(module, shapes, b), name) for b in local]
        alone = WAYS[way](others)(steps)
    parameters = sum(each.numel() for each in module.parameters())
    by_batch = dict(zip(local, alone.tolist(), strict=True))
    seconds = [
        [by_batch.get(b // n, np.nan) + link.ring_s(parameters, n) if b % n == 0 else np.nan for n in gpus]
        for b in batches
    ]
    return JobSpeeds(name, way, tuple(batches), tuple(gpus), np.array(seconds))


def _ends(local: Sequence[int]) -> Sequence[int]:
    """The batches that are run: the least, a middle one and the largest."""
    return sorted({local[0], local[len(local) // 2], local[-1]})


def _seconds(steps: Sequence[ModuleStep]) -> Floats:
    return np.array([step.seconds for step in steps])
