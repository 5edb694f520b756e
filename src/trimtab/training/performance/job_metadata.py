"""Job meta-data: what a submission says, such as model, batch, GPUs and their type, and no run of the job.

Idea: the logarithm of the seconds is linear in the logarithms of numbers and in the categories, each category
with slopes of its own; a penalty on the squares keeps what few rows say near the mean of all. Numbers beyond
those that were seen count as the nearest of them.
Source: the survey's second way; the form is a log-linear regression with ridge penalty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.training_jobs import Floats
from trimtab.forecast.arima import least_squares
from trimtab.training.performance.profiled_runs import Samples


@dataclass(frozen=True)
class JobMetadata:
    """A log-linear model of these columns."""

    name: ClassVar[str] = "job-metadata"
    numbers: tuple[str, ...] = ("batch", "gpus")
    categories: tuple[str, ...] = ("model",)
    ridge: float = 1e-2

    def fit(self, samples: Samples) -> LogLinear:
        """Least squares, with one more row for each weight."""
        known = tuple(tuple(sorted(set(samples.columns[name].tolist()))) for name in self.categories)
        logs = np.stack([_log(samples.columns[name]) for name in self.numbers])
        seen = np.stack([logs.min(axis=1), logs.mean(axis=1), logs.max(axis=1)])
        terms = _terms(self, samples, known, seen)
        target = _log(samples.seconds)
        weight = np.full(terms.shape[1], (self.ridge * len(samples) ** 0.5) ** 0.5)
        weight[0] = 1e-6  # the mean is free
        rows = np.concatenate([terms, np.diag(weight)])
        fitted, _ = least_squares(rows.T, np.append(target, np.zeros(len(weight))))
        return LogLinear(self, known, seen, fitted)


@dataclass(frozen=True)
class LogLinear:
    """Fitted weights."""

    model: JobMetadata
    known: tuple[tuple[str, ...], ...]
    seen: Floats  # [3, numbers] least, mean and most logarithm
    weights: Floats

    def seconds(self, samples: Samples) -> Floats:
        """A category that was never seen counts as the mean of all."""
        terms = _terms(self.model, samples, self.known, self.seen)
        return elementwise(math.exp, (terms * self.weights).sum(axis=1))


def _terms(model: JobMetadata, samples: Samples, known: tuple[tuple[str, ...], ...], seen: Floats) -> Floats:
    n = len(samples)
    logs = np.column_stack([_log(samples.columns[name]) for name in model.numbers])
    logs = np.clip(logs, seen[0], seen[2]) - seen[1]
    base = np.column_stack([np.ones(n), logs, logs**2])
    parts = [base]
    for name, values in zip(model.categories, known, strict=True):
        is_value = np.stack([samples.columns[name] == value for value in values], axis=1).astype(np.float64)
        parts += [
            is_value[:, :, None][:, :, 0],
            *(is_value * logs[:, k : k + 1] for k in range(logs.shape[1])),
        ]
    return np.concatenate(parts, axis=1)


def _log(values: object) -> Floats:
    return elementwise(math.log, np.asarray(values, np.float64))
