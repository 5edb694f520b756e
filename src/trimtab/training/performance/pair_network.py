"""Speeds of two jobs on one GPU, predicted by a small network from what is known of both.

Idea: inputs are the profile of each job alone, what each keeps and inflicts in the mean over the pairs that
were measured, and the share that proportional sharing would leave. A layer of softsign units beside a
straight path (`compiled/dense.py`) gives the share of its speed that the first keeps. Gradient descent by
Adam on the squared error with weight decay, all pairs in each step, in plain loops: the same bits everywhere.
Source: Zhao et al., MuxFlow, arXiv:2303.13803, 2023, predicts so, by a multi-layer perceptron for each type
of GPU; Kingma and Ba, Adam, ICLR 2015.
Deviations: the source profiles utilisation and activity of the GPU, which Gavel's table lacks; the share of a
GPU that a job keeps busy, its speed and its batch stand for them. One hidden layer of few units, since there
are hundreds of pairs, not thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.dense import forward, n_weights
from trimtab.compiled.kernel import kernel
from trimtab.domain.service_loads import PairSpeeds, proportional_sharing
from trimtab.domain.training_jobs import Flags, Floats

_MEAN_SCALE = 5.0  # of the means' deviations, so that they vary about as much as the others


@dataclass(frozen=True)
class PairNetwork:
    """A network of this size, trained so long."""

    name: ClassVar[str] = "pair-network"
    hidden: int = 8
    steps: int = 500
    rate: float = 0.01
    decay: float = 0.01
    seed: int = 0

    def kept(self, kept_frac: Floats, known: Flags, busy_frac: Floats, profile: Floats) -> Floats:
        """Predicted share of its speed that each curve keeps beside each other, [curves, curves].

        Args:
            kept_frac: [curves, curves] as measured; 0 = can't share; nan = unmeasured.
            known: [curves, curves] pairs to learn from.
            busy_frac: [curves] share of a GPU that each keeps busy alone.
            profile: [curves, numbers] what is known of each alone.
        """
        learns = known & (kept_frac > 0)
        inputs = _inputs(np.where(learns, kept_frac, np.nan), busy_frac, profile)
        n = inputs.shape[-1]
        flat = np.ascontiguousarray(inputs.reshape(-1, n))
        rows = np.flatnonzero(learns.ravel())
        drawn = np.random.default_rng([self.seed, 19]).random(n_weights(n, self.hidden))
        weights = (drawn - 0.5) * (2.0 / math.sqrt(n))
        weights[-n:] = 0.0
        weights[-n] = float(kept_frac[learns].mean()) if learns.any() else 1.0
        if len(rows):
            target = np.ascontiguousarray(kept_frac.ravel()[rows])
            train(weights, flat[rows], target, self.hidden, self.steps, self.rate, self.decay)
        found = np.zeros(len(flat))
        predict(weights, flat, self.hidden, found)
        return np.clip(found, 0.0, 1.0).reshape(kept_frac.shape)

    def filled(self, pairs: PairSpeeds, known: Flags, profile: Floats) -> PairSpeeds:
        """The pairs with predictions for those that are not known; whether two can share at all is known."""
        kept = pairs.kept_frac.copy()
        for by_level in kept:
            for table in by_level:
                guess = self.kept(table, known, pairs.busy_frac, profile)
                table[:] = np.where(known | (table == 0) | np.isnan(table), table, guess)
        return replace(pairs, kept_frac=kept)


def predicted_pairs(pairs: PairSpeeds, profile: Floats, profiled_frac: float, seed: int = 0) -> PairSpeeds:
    """The pairs as told where so many of them, drawn, were profiled; each job beside its like always was."""
    curves = len(profile)
    drawn = np.triu(np.random.default_rng([seed, 23]).random((curves, curves)))
    known = (drawn + drawn.T < profiled_frac) | np.eye(curves, dtype=bool)
    return PairNetwork().filled(pairs, known, profile)


def _inputs(kept: Floats, busy_frac: Floats, profile: Floats) -> Floats:
    """What the network sees of each pair, [curves, curves, inputs]; `kept` is nan where it is not known."""
    curves = len(kept)
    spread = profile.std(axis=0)
    own = (profile - profile.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    seen = ~np.isnan(kept)
    values = np.where(seen, kept, 0.0)
    mean = float(values.sum()) / max(int(seen.sum()), 1)
    keeps = (values.sum(axis=1) + mean) / (seen.sum(axis=1) + 1) - mean
    inflicts = (values.sum(axis=0) + mean) / (seen.sum(axis=0) + 1) - mean
    told = np.column_stack([own, _MEAN_SCALE * keeps, _MEAN_SCALE * inflicts])
    shape = (curves, curves, told.shape[1])
    both = (np.broadcast_to(told[:, None], shape), np.broadcast_to(told[None], shape))
    formula = proportional_sharing(busy_frac[:, None], busy_frac[None, :]) - mean
    return np.concatenate([np.ones((curves, curves, 1)), formula[..., None], *both], axis=2)


@kernel
def predict(weights: Any, values: Any, hidden: int, found: Any) -> None:
    """The output for each row of `values`."""
    inputs = values.shape[1]
    flat = values.ravel()
    for i in range(values.shape[0]):
        found[i] = forward(weights, 0, flat, i * inputs, inputs, hidden)


@kernel
def train(weights: Any, values: Any, target: Any, hidden: int, steps: int, rate: float, decay: float) -> None:
    """Adam on the mean squared error, in place; the layout is that of `compiled/dense.py`."""
    n, inputs = values.shape
    size = weights.size
    gradient, first, second = np.zeros(size), np.zeros(size), np.zeros(size)
    bias = hidden * inputs
    out, skip = bias + hidden, bias + 2 * hidden
    unit = np.zeros(hidden)
    left_first, left_second = 1.0, 1.0
    for _ in range(steps):
        for k in range(size):
            gradient[k] = decay * weights[k]
        for h in range(hidden):
            gradient[bias + h] = 0.0
        gradient[skip] = 0.0
        for i in range(n):
            output = 0.0
            for k in range(inputs):
                output += weights[skip + k] * values[i, k]
            for h in range(hidden):
                total = weights[bias + h]
                for k in range(inputs):
                    total += weights[h * inputs + k] * values[i, k]
                unit[h] = total
                output += weights[out + h] * (total / (1.0 + abs(total)))
            error = (output - target[i]) / n
            for k in range(inputs):
                gradient[skip + k] += error * values[i, k]
            for h in range(hidden):
                slope = 1.0 + abs(unit[h])
                gradient[out + h] += error * (unit[h] / slope)
                inner = error * weights[out + h] / (slope * slope)
                gradient[bias + h] += inner
                for k in range(inputs):
                    gradient[h * inputs + k] += inner * values[i, k]
        left_first *= 0.9
        left_second *= 0.999
        for k in range(size):
            first[k] = 0.9 * first[k] + 0.1 * gradient[k]
            second[k] = 0.999 * second[k] + 0.001 * gradient[k] * gradient[k]
            root = math.sqrt(second[k] / (1.0 - left_second))
            weights[k] -= rate * (first[k] / (1.0 - left_first)) / (root + 1e-8)
