"""Seconds of a training step of a module that was never run, from modules that were.

Three ways learn from measured steps of other modules, and predict those of a module by what is known of it:

- `metadata`: the batch, the number of parameters and the bytes of a sample: a regression of logarithms.
- `graph`: all operators of its graph together. Seconds = Σ weight · feature, features being calls, FLOPs and
  bytes of convolutions, of products with attention, and of the others; weights by non-negative least squares
  of relative errors.
- `operators`: each operator by itself. Seconds = Σ seconds of an operator, which by its kind are
  θ0 + θ1 · FLOPs + θ2 · bytes, fitted to operators that were timed one by one.

With more GPUs each has its part of the batch, and a ring adds the gradients, as in Patarasuk and Yuan,
Bandwidth optimal all-reduce algorithms, 2009: 2 (n − 1) / n of the bytes of the parameters pass each link, in
2 (n − 1) messages. Nothing overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from trimtab.domain.training_jobs import Floats
from trimtab.errors import TraceError
from trimtab.training.performance.job_metadata import JobMetadata
from trimtab.training.performance.profiled_runs import Samples, percentage_error

BUILTIN: Final = Path(__file__).parent / "cpu-core.json"
"""Measured steps of the modules of bench/performance_models/modules.py, on one core of a CPU."""

_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Operator:
    """An operator of a step, as often as it is called with the same shapes."""

    kind: str  # of ATen, such as convolution_backward
    flop: float  # of a call
    bytes: float  # read and written by a call
    times: int  # calls in a step
    seconds: float  # of a call; nan = not measured


@dataclass(frozen=True)
class ModuleStep:
    """A training step of a module: forward, backward, update."""

    module: str
    batch: int
    parameters: int
    sample_bytes: int  # of the inputs of one sample
    operators: tuple[Operator, ...]
    seconds: float  # nan = not measured


Predict = Callable[[Sequence[ModuleStep]], Floats]


def by_metadata(measured: Sequence[ModuleStep]) -> Predict:
    """What a submission says of the job."""
    fitted = JobMetadata(("batch", "parameters", "sample_bytes"), ()).fit(_samples(measured))
    return lambda steps: fitted.seconds(_samples(steps))


def _samples(steps: Sequence[ModuleStep]) -> Samples:
    columns = {
        name: np.array([getattr(step, name) for step in steps], np.float64)
        for name in ("batch", "parameters", "sample_bytes")
    }
    return Samples(columns, np.array([step.seconds for step in steps]))


def by_graph(measured: Sequence[ModuleStep]) -> Predict:
    """The operators of the graph together."""
    seconds = np.array([step.seconds for step in measured])
    weight, _ = nnls(_features(measured) / seconds[:, None], np.ones(len(seconds)))
    return lambda steps: np.asarray((_features(steps) * weight).sum(axis=1), np.float64)


def _features(steps: Sequence[ModuleStep]) -> Floats:
    return np.array([_features_of(step) for step in steps])


def _features_of(step: ModuleStep) -> list[float]:
    convolved, multiplied, other = np.zeros(3), np.zeros(3), np.zeros(3)
    for each in step.operators:
        part = other
        if each.kind.startswith("convolution"):
            part = convolved
        elif each.kind in _PRODUCTS or "attention" in each.kind:
            part = multiplied
        part += each.times * np.array([1.0, each.flop, each.bytes])  # in place
    return [*convolved, *multiplied, *other]


def by_operators(measured: Sequence[ModuleStep]) -> Predict:
    """Each operator by itself; one whose kind was never measured counts as the mean of all kinds."""
    rows: dict[str, list[Operator]] = {"": []}
    for step in measured:
        for each in step.operators:
            rows.setdefault(each.kind, []).append(each)
            rows[""].append(each)
    theta = {kind: _theta(each) for kind, each in rows.items()}

    def predict(steps: Sequence[ModuleStep]) -> Floats:
        return np.array(
            [
                sum(
                    each.times * float(_terms([each])[0].dot(theta.get(each.kind, theta[""])))
                    for each in step.operators
                )
                for step in steps
            ]
        )

    return predict


def _theta(rows: Sequence[Operator]) -> Floats:
    seconds = np.maximum([each.seconds for each in rows], 1e-9)
    found: Floats = nnls(_terms(rows) / seconds[:, None], np.ones(len(rows)))[0]
    return found


def _terms(rows: Sequence[Operator]) -> Floats:
    return np.array([[1.0, each.flop, each.bytes] for each in rows])


WAYS: Final[Mapping[str, Callable[[Sequence[ModuleStep]], Predict]]] = {
    "metadata": by_metadata,
    "graph": by_graph,
    "operators": by_operators,
}


def held_out_errors(measured: Sequence[ModuleStep], way: str) -> dict[str, float]:
    """Module → mean absolute percentage error of its steps, as a fraction, by a fit of the other modules."""
    errors = {}
    for name in dict.fromkeys(step.module for step in measured):
        own = [step for step in measured if step.module == name]
        predicted = WAYS[way]([step for step in measured if step.module != name])(own)
        errors[name] = percentage_error(predicted, np.array([step.seconds for step in own]))
    return errors


@dataclass(frozen=True)
class Link:
    """What joins a GPU to the next one."""

    bytes_per_s: float
    latency_s: float

    def ring_s(self, parameters: int, gpus: int) -> float:
        """Seconds in which a ring of so many GPUs adds gradients of four bytes each."""
        return 2 * (gpus - 1) * (4.0 * parameters / gpus / self.bytes_per_s + self.latency_s)


def read_steps(path: Path) -> list[ModuleStep]:
    """Measured steps of modules, as `write_steps` wrote them. Raises TraceError."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["steps"]
        return [
            ModuleStep(
                row["module"], row["batch"], row["parameters"], row["sample_bytes"],
                tuple(Operator(*each) for each in row["operators"]), row["seconds"],
            )
            for row in rows
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"can't be read: {error.strerror}" if isinstance(error, OSError) else "no measured steps"
        expected = "measured steps that `trimtab profile job --measure FILE` wrote"
        raise TraceError(problem, file=str(path), expected=expected) from None


def write_steps(path: Path, steps: Sequence[ModuleStep]) -> None:
    """Write measured steps, one a line."""
    rows = [
        vars(step)
        | {"operators": [_rounded(each) for each in step.operators], "seconds": _short(step.seconds)}
        for step in steps
    ]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f'{{"steps":[\n{lines}\n]}}\n', encoding="utf-8")


def _rounded(operator: Operator) -> list[Any]:
    kind, flop, moved, times, seconds = astuple(operator)
    return [kind, int(flop), int(moved), times, _short(seconds)]


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")
