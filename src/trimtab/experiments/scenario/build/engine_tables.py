"""Turns the services of node types into engines, and into what their requests are expected to take.

A request of P prompt tokens and O output tokens keeps a language model's engine for O times its share of an
iteration of a well filled batch, and for the reading of its prompt. The batch is well filled with as many
requests as the node has slots, by default as many as the KV memory holds of mean size. `load` 1.0 and the
estimates that policies see follow from that; what a request really takes comes from the iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trimtab.domain.engines import ENGINE_TABLES, ENGINE_TYPE, LANGUAGE_MODEL, SHARED, Engines
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.build.generated import RequestColumns
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec, NodeType
from trimtab.experiments.scenario.spec.node_services import (
    MeasuredSeconds,
    ModelService,
    SharedService,
    TableService,
    gap_in,
)
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.profiles import LatencyProfile, load_profile
from trimtab.profiles.measurement_files import read_table


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
        elif kind.service is None:
            tables.append({})
        elif isinstance(kind.service, TableService) and kind.service.slowdown is None:
            tables.append(_measured(types[g : g + 1], kind.service, kind.slots, columns.units))
        else:
            tables.append(_shared(types[g : g + 1], kind.service, kind.slots))
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


_NONE = dict.fromkeys(ENGINE_TABLES, np.zeros(1)) | {"slowdown": np.ones(1), "measured_s": np.zeros((1, 1))}


def _stacked(tables: Sequence[dict[str, FloatArray]], name: str) -> FloatArray:
    """Tables [types, longest along each axis], the last value repeated beyond the end of each."""
    each = [table.get(name, _NONE[name]) for table in tables]
    longest = np.max([table.shape for table in each], axis=0)
    padding = [[(0, more) for more in longest - table.shape] for table in each]
    return np.stack([np.pad(table, pad, mode="edge") for table, pad in zip(each, padding, strict=True)])


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
    if isinstance(service, SharedService):
        slowdown = np.maximum(1.0, np.arange(service.batch_max + 1) / servers)
    else:
        assert service.slowdown is not None
        slowdown = _at_every_number(service.slowdown)
    row["service"], row["batch_max"] = SHARED, len(slowdown) - 1
    return {"slowdown": slowdown}


def _at_every_number(measured: Mapping[int, float]) -> FloatArray:
    """Values at 0, 1, … to the largest measured number, [1 + that]: linear between, the first one held."""
    numbers = sorted(measured)
    return np.interp(np.arange(numbers[-1] + 1), numbers, [measured[n] for n in numbers])


def _measured(row: np.ndarray, service: TableService, slots: int, units: FloatArray) -> dict[str, FloatArray]:
    """Tables of seconds by number and size; the slowdown of the mean size, over its seconds among `slots`."""
    seconds = service.seconds if service.file is None else _seconds_of_file(service.file)
    assert seconds is not None
    sizes = np.array(sorted(next(iter(seconds.values()))))
    by_size = [_at_every_number({n: of[size] for n, of in seconds.items()}) for size in sizes]
    measured_s, most = np.stack(by_size, axis=1), max(seconds)
    row["service"], row["batch_max"], row["sizes"] = SHARED, most, len(sizes)
    mean = float(units[units > 0.0].mean()) if (units > 0.0).any() else sizes.mean()
    mean_s = np.array([np.interp(mean, sizes, among_s) for among_s in measured_s])
    slowdown = mean_s / mean_s[min(slots, most)]
    return {"slowdown": slowdown, "size_at": sizes, "measured_s": measured_s}


def _seconds_of_file(path: Path) -> MeasuredSeconds:
    """Raises UsageError for a file that cannot be used, and a size not measured at every number."""
    seconds = read_table(path)
    if gap := gap_in(seconds):
        raise ScenarioError(
            "is not measured at every number of requests",
            file=str(path),
            field="size",
            value=gap[1],
            expected=f"a row with batch {gap[0]} and this size",
        )
    return seconds


def line_through(sizes: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """(fixed_s, unit_s), neither below 0, nearest to the seconds of these sizes (least squares)."""
    apart = sizes - sizes.mean()
    unit_s = max(0.0, float((apart * seconds).sum()) / max(float((apart * apart).sum()), 1e-300))
    fixed_s = float(seconds.mean() - unit_s * sizes.mean())
    if fixed_s >= 0.0:
        return fixed_s, unit_s
    return 0.0, float((sizes * seconds).sum()) / float((sizes * sizes).sum())


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
    alone = Engines(row, **{n: _stacked([tables], n) for n in ENGINE_TABLES})
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
