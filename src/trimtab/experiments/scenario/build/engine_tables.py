"""Turns the services of node types into engines, and into what their requests are expected to take.

A request of P prompt tokens and O output tokens keeps a language model's engine for O times its share of an
iteration of a well filled batch, and for the reading of its prompt. The batch is well filled with as many
requests as the node has slots, by default as many as the KV memory holds of mean size. `load` 1.0 and the
estimates that policies see follow from that; what a request really takes comes from the iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trimtab.domain.engines import ENGINE_TABLES, ENGINE_TYPE, LANGUAGE_MODEL, SHARED, Engines
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.build.generated import RequestColumns
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec, NodeType
from trimtab.experiments.scenario.spec.node_services import ModelService, SharedService, TableService
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.profiles import LatencyProfile, load_profile


class Tokens(NamedTuple):
    """Mean tokens of requests."""

    prompt: float
    output: float

    @property
    def held(self) -> float:
        """Tokens that a request holds in the KV memory, in the mean over its time."""
        return self.prompt + 0.5 * self.output


class BuiltEngines(NamedTuple):
    """Engines of the node types, and their slots where the scenario gives none."""

    engines: Engines
    slots: IntArray  # [types]


def build_engines(spec: ClusterSpec, columns: RequestColumns) -> BuiltEngines | None:
    """The engines of a cluster; None if all nodes serve a request a slot.

    Raises ScenarioError for a profile that cannot be used, and requests without tokens.
    """
    kinds = list(spec.types.values())
    if all(kind.service is None for kind in kinds):
        return None
    mean = _mean_tokens(spec, columns)
    types = np.zeros(len(kinds), ENGINE_TYPE)
    tables: list[dict[str, FloatArray]] = []
    slots = np.array([kind.slots for kind in kinds])
    for g, (name, kind) in enumerate(spec.types.items()):
        if isinstance(kind.service, ModelService):
            profile = _profile(name, kind.service.profile)
            assert mean is not None
            tables.append(_model(types[g : g + 1], name, kind, kind.service, profile, mean, slots[g : g + 1]))
        elif kind.service is not None:
            tables.append(_shared(types[g : g + 1], kind.service, kind.slots))
        else:
            tables.append({})
    return BuiltEngines(Engines(types, **{n: _stacked(tables, n) for n in ENGINE_TABLES}), slots)


def _profile(type_name: str, given: str) -> LatencyProfile:
    """The profile of a node type. Raises ScenarioError, with the type, for one that is not there."""
    try:
        return load_profile(given)
    except UsageError as error:
        if error.file is not None:  # the profile's own file says where
            raise
        field = f"cluster.types.{type_name}.service.profile"
        raise ScenarioError(error.problem, field=field, value=given, expected=error.expected) from error


def _stacked(tables: Sequence[dict[str, FloatArray]], name: str) -> FloatArray:
    """Tables [types, longest], the last value repeated beyond the end of each."""
    each = [table.get(name, np.ones(1) if name == "slowdown" else np.zeros(1)) for table in tables]
    longest = max(len(row) for row in each)
    return np.stack([np.concatenate([row, np.full(longest - len(row), row[-1])]) for row in each])


def _mean_tokens(spec: ClusterSpec, columns: RequestColumns) -> Tokens | None:
    models = [name for name, kind in spec.types.items() if isinstance(kind.service, ModelService)]
    if not models:
        return None
    if columns.prompt_tokens is None or columns.output_tokens is None:
        raise ScenarioError(
            "serves language models, but the requests have no tokens",
            field=f"cluster.types.{models[0]}.service",
            value="llm",
            expected="a trace with the columns prompt_tokens and output_tokens, or generated sizes that are "
            "a sum of prompt_tokens and output_tokens",
        )
    has_tokens = columns.output_tokens > 0
    if not has_tokens.any():
        return Tokens(1.0, 1.0)
    return Tokens(
        max(1.0, float(columns.prompt_tokens[has_tokens].mean())),
        float(columns.output_tokens[has_tokens].mean()),
    )


def _shared(row: np.ndarray, service: SharedService | TableService, servers: int) -> dict[str, FloatArray]:
    most = service.batch_max
    row["service"], row["batch_max"] = SHARED, most
    rows = np.arange(most + 1)
    if isinstance(service, SharedService):
        return {"slowdown": np.maximum(1.0, rows / servers)}
    sizes = sorted(service.slowdown)
    return {"slowdown": np.interp(rows, sizes, [service.slowdown[size] for size in sizes])}


def _model(
    row: np.ndarray,
    name: str,
    kind: NodeType,
    service: ModelService,
    profile: LatencyProfile,
    mean: Tokens,
    slots: IntArray,
) -> dict[str, FloatArray]:
    batch_max = service.batch_max or profile.batch_max
    budget = max(service.token_budget or profile.token_budget, batch_max)
    kv_tokens = service.kv_tokens or profile.kv_capacity
    if kv_tokens <= 0:
        raise ScenarioError(
            "does not hold the model of its profile",
            field=f"cluster.types.{name}.service.profile",
            value=service.profile,
            expected="a GPU with more memory than the model's weights, or kv_tokens",
        )
    tables = dict(vars(profile.tables(batch_max, budget)))
    row["service"], row["batch_max"], row["token_budget"] = LANGUAGE_MODEL, batch_max, budget
    for field in ("mixed_s", "mixed_row_s", "mixed_context_s", "mixed_token_s", "pair_s"):
        row[field] = getattr(profile, field)
    row["kv_bytes_per_token"] = profile.kv_bytes_per_token * profile.tensor_parallel
    row["kv_tokens"], row["kv_kept"] = kv_tokens, int(service.watermark_frac * kv_tokens)
    row["adapters_max"], row["by_priority"] = service.adapters_max or 0, service.preempt == "priority"
    if kind.slots == 1:
        slots[0] = max(1, min(batch_max, int(kv_tokens / mean.held)))
    return tables | {"slowdown": _slowdown(row, tables, mean, int(slots[0]))}


def _slowdown(row: np.ndarray, tables: dict[str, FloatArray], mean: Tokens, slots: int) -> FloatArray:
    """Seconds of a mean request in a batch of so many, over those in a batch of `slots`, [rows]."""
    alone = Engines(row, **{name: table[None] for name, table in tables.items()}, slowdown=np.ones((1, 1)))
    rows = np.arange(int(row["batch_max"][0]) + 1)
    reading_s = float(alone.prompt_s(0, np.array([mean.prompt]))[0])
    seconds = alone.decode_s(0, rows, rows * mean.held) + rows * reading_s / mean.output
    factors: FloatArray = seconds / seconds[min(slots, len(seconds) - 1)]
    factors[0] = factors[1]
    return factors


def mean_service_s(
    engines: Engines, g: int, slots: int, prompt: float, output: float, role: str = ""
) -> float:
    """Seconds that a request of so many tokens takes a slot of type g, in a well filled batch.

    `role`: only the reading of its prompt ("prefill"), or only what follows ("decode").
    """
    held = prompt + 0.5 * output
    making_s = output * float(np.asarray(engines.decode_s(g, slots, slots * held)))
    reading_s = slots * float(engines.prompt_s(g, np.array([prompt]))[0])
    return (0.0 if role == "prefill" else making_s) + (0.0 if role == "decode" else reading_s)
