"""How well the time per token of a server is predicted, with and without measurements of its configuration.

The rows are those of AIConfigurator's silicon data. A configuration is a model, GPU, precision, backend and
parallelism. Where a whole configuration is held back, a Gaussian process over the others corrects a roofline.
What no prediction can get right is counted beside: rows that contradict others of their configuration, and
configurations that cannot be one engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from trimtab.profiles.fit_profile import FEWEST_ROWS, HeldBackError, fit_served
from trimtab.profiles.iteration_rows import IterationRows
from trimtab.profiles.measurement_files import ServedConfiguration, read_measurements, served_rows

Floats = NDArray[np.float64]
Served = Mapping[ServedConfiguration, IterationRows]

# Billions of parameters, of these used for a token, bytes of KV a token in 16 bits, layers: as published
SHAPES = {
    "Llama-3.1-8B": (8.03, 8.03, 131_072, 32),
    "Llama-3.1-70B": (70.55, 70.55, 327_680, 80),
    "Qwen3-32B": (32.76, 32.76, 262_144, 64),
    "Qwen3-235B": (235.0, 22.0, 192_512, 94),
    "DeepSeek-R1": (671.0, 37.0, 70_272, 61),
    "gpt-oss-120b": (117.0, 5.1, 73_728, 36),
}
WEIGHT_BYTES = {"": 2.0, "fp8": 1.0, "fp4": 0.55}
HEADS = {  # of attention: tensor parallelism gives each GPU as many
    "Llama-3.1-8B": 32,
    "Llama-3.1-70B": 64,
    "Qwen3-32B": 64,
    "Qwen3-235B": 64,
    "DeepSeek-R1": 128,
    "gpt-oss-120b": 64,
}
RELEASED = {"gpt-oss-120b": 0.55, "DeepSeek-R1": 1.0, "Qwen3-235B": 1.0}  # bytes where nothing else is said
LAYER_S, MESSAGES_S = 30e-6, 20e-6  # of a layer; more on several GPUs: the process corrects both
LENGTHS = np.array([1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])  # of the features, in logarithms
SETTINGS = [  # times LENGTHS; how like two models, GPUs, precisions and backends are that differ
    (scale, alike) for scale in (1.0, 2.0) for alike in ((0.3, 0.5, 0.5, 0.5), (0.5, 0.7, 0.7, 0.7))
]
NEAR = 1.08  # times: the goal for a median error
NOISE, OWN = 0.003, 0.01  # variances of logarithms: of a row, and of what is a configuration's own


def errors_within(served: Served, describes: Mapping[str, Any]) -> dict[str, Any]:
    """By GPU: each row predicted by `fit_served` from the other rows of its configuration."""
    measured: dict[str, list[Floats]] = {}
    predicted: dict[str, list[Floats]] = {}
    for configuration, rows in served.items():
        if len(rows) >= FEWEST_ROWS:
            measured.setdefault(configuration.gpu, []).append(rows.seconds)
            fit = fit_served(rows, describes, str(configuration))
            predicted.setdefault(configuration.gpu, []).append(fit.predicted_s)
    return {
        gpu: _told(np.concatenate(predicted[gpu]), np.concatenate(measured[gpu])) for gpu in sorted(measured)
    }


def errors_across(served: Served, systems: Path) -> dict[str, Any]:
    """By GPU: each configuration predicted from the others; settings are those best for the other GPUs.

    `models` are the errors by model.
    """
    features, kinds, of = _features(served, systems)
    seconds = np.concatenate([rows.seconds for rows in served.values()])
    base = np.exp(features[:, 6]) + np.exp(features[:, 7]) + np.exp(features[:, 8]) + np.exp(features[:, 9])
    target = np.log(seconds / base)
    tried = [_held_back(features, kinds, of, target, *setting) for setting in SETTINGS]
    gpus = kinds[:, 1]
    found = {}
    for gpu in np.unique(gpus):
        best = min(tried, key=lambda log: float(np.median(np.abs(np.expm1(log - target)[gpus != gpu]))))
        here = gpus == gpu
        found[str(gpu)] = _told((base * np.exp(best))[here], seconds[here])
        error = np.expm1(best - target)
        found[str(gpu)]["models"] = {
            str(model): _bias(error[here & (kinds[:, 0] == model)]) for model in np.unique(kinds[here, 0])
        }
    return found


def _bias(error: Floats) -> dict[str, float]:
    return {
        "rows": len(error),
        "bias": float(np.median(error)),
        "median": float(np.median(np.abs(error))),
    }


def contradictions(served: Served) -> dict[str, dict[str, int]]:
    """By GPU: rows, those of no one engine, pairs with loads next to each other, those that contradict.

    With x times the requests of the same lengths, an engine takes no less time for a token, and no more than
    x times as long: it could serve them in x turns. A pair contradicts where its times are further off than
    `NEAR`. GPUs that do not divide the heads of attention are not the tensor parallelism of an engine.
    """
    found: dict[str, dict[str, int]] = {}
    for c, rows in served.items():
        of = found.setdefault(c.gpu, dict.fromkeys(("rows", "not_one", "pairs", "contradict"), 0))
        of["rows"] += len(rows)
        heads = next(many for name, many in HEADS.items() if name in c.model)
        of["not_one"] += len(rows) if heads % int(c.tensor_parallel) else 0
        lengths = np.stack([rows.context, rows.prompt_tokens]) / rows.decoding
        order = np.lexsort((rows.seconds, rows.decoding, *lengths.round(6)))
        for a, b in pairwise(order.tolist()):
            if np.allclose(lengths[:, a], lengths[:, b]):
                slower = rows.seconds[b] / rows.seconds[a]
                of["pairs"] += 1
                is_able = 1 / NEAR <= slower <= NEAR * rows.decoding[b] / rows.decoding[a]
                of["contradict"] += not is_able
    return found


def _told(predicted: Floats, measured: Floats) -> dict[str, Any]:
    error = HeldBackError.of(predicted, measured)
    assert error is not None
    return asdict(error)


def _features(served: Served, systems: Path) -> tuple[Floats, NDArray[np.str_], NDArray[np.int64]]:
    """Logarithms of load, parallelism and parts of a roofline; names; the configuration of each row."""
    features, kinds, of = [], [], []
    for k, (c, rows) in enumerate(served.items()):
        gpu = yaml.safe_load((systems / f"{c.gpu}.yaml").read_text(encoding="utf-8"))["gpu"]
        name = next(name for name in SHAPES if name in c.model)
        total, used, kv_bytes, layers = SHAPES[name]
        weight = RELEASED.get(name, 2.0) if c.precision == "" else WEIGHT_BYTES[c.precision]
        tp, dp, ep = (
            float(max(1, int(n or 1))) for n in (c.tensor_parallel, c.data_parallel, c.expert_parallel)
        )
        gpus = max(tp * dp, ep)
        reached = used + (total - used) * -np.expm1(
            -rows.decoding * dp * used / total
        )  # by one token at least
        weights_s = reached * 1e9 * weight / gpu["mem_bw"] / gpus
        kv_s = rows.context * kv_bytes * min(1.0, 0.5 * weight) / gpu["mem_bw"] / tp
        flops = gpu["bfloat16_tc_flops"] * 2.0 / max(weight, 0.5)
        arithmetic_s = 2e9 * used * (rows.decoding + rows.prompt_tokens) * dp / flops / gpus
        fixed_s = np.full(len(rows), layers * (LAYER_S + (MESSAGES_S if gpus > 1 else 0.0)))
        each = [rows.decoding, rows.context / rows.decoding, rows.prompt_tokens + 1e-3]
        each += [np.full(len(rows), n) for n in (tp, ep, dp)]
        features.append(np.log(np.stack([*each, weights_s, kv_s, arithmetic_s, fixed_s], axis=1)))
        kinds += [(name, c.gpu, c.precision, c.backend)] * len(rows)
        of += [k] * len(rows)
    return np.concatenate(features), np.array(kinds), np.array(of)


def _held_back(
    features: Floats,
    kinds: NDArray[np.str_],
    of: NDArray[np.int64],
    target: Floats,
    scale: float,
    alike: tuple[float, ...],
) -> Floats:
    """Each configuration's rows from all others, [rows] (Rasmussen and Williams, 2006, §5.4.2)."""
    distance = sum(np.subtract.outer(x, x) ** 2 for x in (features / (scale * LENGTHS)).T)
    same = np.prod(
        [np.where(np.equal.outer(x, x), 1.0, a) for x, a in zip(kinds.T, alike, strict=True)], axis=0
    )
    parts = sum(np.subtract.outer(x, x) ** 2 for x in features[:, 6:9].T / 2.0)
    covariance = 0.5 * same * np.exp(-0.5 * distance) + 0.3 * np.exp(-0.5 * parts) + 0.1
    covariance += OWN * np.equal.outer(of, of) + NOISE * np.eye(len(of))
    inverse = np.linalg.inv(covariance)
    weights = inverse @ (target - target.mean())
    predicted = target.copy()
    for k in np.unique(of):
        rows = np.flatnonzero(of == k)
        predicted[rows] -= np.linalg.solve(inverse[np.ix_(rows, rows)], weights[rows])
    return predicted


def read_served(file: Path) -> Served:
    """Mean iterations by configuration."""
    return served_rows(read_measurements(file))
