"""Recorded requests: the columns of a trace in terms of a scenario's classes, models and adapters.

Stages of recorded runs become rows; runs of the same graph share a template.

Default classes and models for a trace of a known format, if no scenario or cluster file defines them.

Language models: 45 ms a token is what Llama-2-70B takes on eight A100 80 GB at batch 1 (token_time, 512 to
4,096 prompt tokens, the profile published with Splitwise, ISCA 2024); the prompt is in the size (see
`TraceOptions`). Speed 1 is therefore such a node.

Image generation: in GenTD26, the lower quartile of execution times without adapter is 14 s for one image of
30 steps and 18 s for eight on the most used model: 13.4 s + 0.019 s per step and image. Loads are medians of
its metrics: 23 s for a base model, 4.4 s for an adapter. The trace tells that a request has adapters but not
which: one of 245, as many as its sister file names, by an exponent that gives the ten most popular a third.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from trimtab.domain.chains import Chains, Flow, StageSpec, new_stage_work, templates_of
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH
from trimtab.domain.stage_graph import upward_ranks_s
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.batch_shapes import shapes_of
from trimtab.experiments.scenario.build.chain_rows import keys_of, mean_estimates_s, stage_factor
from trimtab.experiments.scenario.build.generated import (
    Members,
    RequestColumns,
    Stream,
    drawn_members,
    members_of,
)
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served, ServiceClass
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.experiments.scenario.spec.workload import TraceSpec, WorkloadSpec
from trimtab.traces import Trace, TraceOptions
from trimtab.traces.run_tables import RUN_CLASS, RUN_IDX
from trimtab.validation.names import nearest

PROMPT_TOKEN_UNITS: Final = TraceOptions().prompt_token_frac

_CHAT: Final = Served(
    {}, {}, {"chat": ServiceClass(unit_s=0.045, unit="output token", prompt_token_units=PROMPT_TOKEN_UNITS)}
)

_IMAGES: Final = Served(
    models={"checkpoint": ItemFamily(memory_gib=6.5, load_s=23.0)},
    adapters={"lora": ItemFamily(memory_gib=0.2, load_s=4.4, count=245, zipf=0.8)},
    classes={
        "image": ServiceClass(
            model="checkpoint", adapter="lora", fixed_s=13.4, unit_s=0.019, unit="step and image"
        )
    },
)

_SECONDS: Final = Served({}, {}, {"request": ServiceClass(unit_s=1.0, unit="second at speed 1")})

_OF_TOKENS: Final = (
    *("azure-llm-2023", "mooncake", "burstgpt", "litellm", "vllm", "sglang", "sglang-metrics", "otel-genai"),
)
_BY_FORMAT: Final[Mapping[str, Served]] = {**dict.fromkeys(_OF_TOKENS, _CHAT), "gentd26": _IMAGES}

ADAPTERS_NOT_NAMED: Final = frozenset({"gentd26"})
"""Formats whose adapter column tells only that there is one."""

BLOCK_TOKENS: Final[Mapping[str, float]] = {"mooncake": 512.0, "gateway": 128.0}
"""Prompt tokens of a prefix block, by format."""


def default_served(format_name: str) -> Served:
    """Classes for a trace of this format; of any other format, sizes are seconds."""
    return _BY_FORMAT.get(format_name, _SECONDS)


UNKNOWN_TENANT = "unknown"


def traced(spec: TraceSpec, trace: Trace, table: pl.DataFrame, served: Served, seed: int) -> RequestColumns:
    """The chosen rows of a trace as requests.

    Raises:
        ScenarioError: no usable size column, or rows of an unknown class.
    """
    class_idx = _class_idx(spec, table, served)
    families = [(c.model, c.adapter) for c in served.classes.values()]
    model, models = _models(table, class_idx, [m for m, _ in families], served.models, seed)
    named = _names_adapters(spec, trace.format)
    adapter, adapters = _adapters(table, class_idx, [a for _, a in families], served.adapters, seed, named)
    tenant_names, tenant_idx = _coded(table, "tenant", UNKNOWN_TENANT)
    _, session = _coded(table, "session")
    return RequestColumns(
        arrival_s=table["arrival_s"].to_numpy(),
        class_idx=class_idx,
        units=_units(spec, table),
        model=model,
        adapter=np.where(model >= 0, adapter, -1),
        models=models,
        adapters=adapters,
        tenant_idx=tenant_idx,
        tenant_names=tenant_names,
        priority=_whole_numbers(table, "priority"),
        deadline_after_s=_floats(table, "deadline_s", np.inf),
        payload_gib=_floats(table, "payload_gib", 0.0),
        session=session,
        factor=_floats(table, "factor", 1.0),
        content=_coded(table, "content")[1],
        leave_after_s=_floats(table, "leave_after_s", np.inf),
        prompt_tokens=_tokens(table, "prompt_tokens"),
        output_tokens=_tokens(table, "output_tokens"),
        shape=shapes_of(served.classes, class_idx, lambda _, rows: _numbers_of(table, rows)),
    )


def _numbers_of(table: pl.DataFrame, rows: IntArray) -> dict[str, FloatArray]:
    """Numeric column → values [rows]; 0 = not recorded."""
    numeric = [name for name in table.columns if table[name].dtype.is_numeric()]
    return {name: table[name].cast(pl.Float64).fill_null(0.0).to_numpy()[rows] for name in numeric}


def _names_adapters(spec: TraceSpec, format_name: str) -> bool:
    return spec.adapters == "named" or (spec.adapters == "auto" and format_name not in ADAPTERS_NOT_NAMED)


def _units(spec: TraceSpec, table: pl.DataFrame) -> FloatArray:
    """Work units [rows], all above 0; 0 for runs, whose stages have them."""
    if RUN_IDX in table.columns:
        return np.zeros(table.height)
    if spec.size_column not in table.columns or not table[spec.size_column].dtype.is_numeric():
        numeric = [name for name in table.columns if table[name].dtype.is_numeric()]
        raise _trace_error(spec, "size_column", spec.size_column, nearest(spec.size_column, numeric))
    units = table[spec.size_column].cast(pl.Float64).fill_null(0.0)
    if (least := units.min()) is None or not float(str(least)) > 0:
        row = int((units <= 0).arg_max() or 0)
        expected = f"a column of numbers above 0; its row {row + 1} is not"
        raise _trace_error(spec, "size_column", spec.size_column, expected)
    return units.to_numpy()


def _class_idx(spec: TraceSpec, table: pl.DataFrame, served: Served) -> IntArray:
    """Class of each row: by the name in the column, else the default."""
    names = list(served.classes)
    default = names[0] if len(names) == 1 else spec.default_class
    if spec.class_column not in table.columns:
        if default is None:
            raise ScenarioError(
                f"the scenario has {len(names)} classes, and the trace has no column {spec.class_column}",
                file=str(spec.file),
                field="workload.trace.default_class",
                expected=f"one of {', '.join(names)}, or workload.trace.class_column, in the scenario file",
            )
        return np.full(table.height, names.index(default))
    found = table[spec.class_column].cast(pl.String)
    known = {value: spec.class_of.get(value, value) for value in found.unique().drop_nulls().sort()}
    positions = {value: names.index(name) for value, name in known.items() if name in names}
    unknown = sorted(known.keys() - positions.keys())
    if default is None and (unknown or found.null_count()):
        expected = f"default_class, or the class of each of {unknown[:8]}: one of {names}"
        raise _trace_error(spec, "class_of", dict(spec.class_of), expected)
    otherwise = None if default is None else names.index(default)
    return found.replace_strict(positions, default=otherwise, return_dtype=pl.Int64).to_numpy()


def _trace_error(spec: TraceSpec, field: str, value: object, expected: str) -> ScenarioError:
    return ScenarioError(
        "does not fit the trace",
        file=str(spec.file),
        field=f"workload.trace.{field}",
        value=value,
        expected=expected,
    )


Families = Sequence[str | None]
"""Family of each class, [classes]."""


def _models(
    table: pl.DataFrame,
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
) -> tuple[IntArray, Members]:
    """Model of each row: from its column, or drawn."""
    if "model" in table.columns:
        return _named(table["model"], class_idx, of_class, families)
    everywhere = np.ones(table.height, dtype=np.bool_)
    return _drawn(everywhere, class_idx, of_class, families, seed, Stream.MODEL)


def _adapters(
    table: pl.DataFrame,
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
    named: bool,
) -> tuple[IntArray, Members]:
    """Adapter of each row; none if the trace has no such column, or null in it."""
    if "adapter" not in table.columns:
        return np.full(table.height, -1), members_of(families)
    if named:
        return _named(table["adapter"], class_idx, of_class, families)
    has_one = table["adapter"].is_not_null().to_numpy()
    return _drawn(has_one, class_idx, of_class, families, seed, Stream.ADAPTER)


def _named(
    values: pl.Series, class_idx: IntArray, of_class: Families, families: Mapping[str, ItemFamily]
) -> tuple[IntArray, Members]:
    """Item families with the names in the trace as members, each of its family's size."""
    position, members = np.full(len(values), -1), members_of(families)
    for family in families:
        classes = [c for c, name in enumerate(of_class) if name == family]
        rows = np.flatnonzero(np.isin(class_idx, classes))
        if len(rows):
            names, codes = _codes(values.gather(rows))
            position[rows], members = codes, {**members, family: names}
    return position, members


def _drawn(
    has_one: np.ndarray[tuple[int], np.dtype[np.bool_]],
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
    stream: Stream,
) -> tuple[IntArray, Members]:
    position = np.full(len(class_idx), -1)
    for c, name in enumerate(of_class):
        rows = np.flatnonzero(class_idx == c)
        if name is not None and len(rows):
            members = drawn_members(families[name], seed, stream, c, len(rows))
            position[rows] = np.where(has_one[rows], members, -1)
    return position, members_of(families)


def _codes(values: pl.Series) -> tuple[tuple[str, ...], IntArray]:
    """Distinct values in order of appearance, and the position of each row's among them; -1 = null."""
    text = values.cast(pl.String)
    names = text.drop_nulls().unique(maintain_order=True)
    codes = text.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
    return tuple(names), codes.to_numpy()


def _coded(
    table: pl.DataFrame, column: str, missing: str | None = None
) -> tuple[tuple[str, ...], IntArray | None]:
    if column not in table.columns:
        return (), None
    values = table[column].cast(pl.String)
    return _codes(values if missing is None else values.fill_null(missing))


def _whole_numbers(table: pl.DataFrame, column: str) -> IntArray | None:
    return table[column].fill_null(0).to_numpy() if column in table.columns else None


def _tokens(table: pl.DataFrame, column: str) -> IntArray | None:
    """Tokens [rows], at least 1 where they are known; 0 elsewhere."""
    if column not in table.columns or not table[column].dtype.is_numeric():
        return None
    known = table[column].is_not_null().to_numpy()
    tokens = table[column].fill_null(0).cast(pl.Int64).to_numpy()
    return np.where(known, np.maximum(tokens, 1), 0)


def _floats(table: pl.DataFrame, column: str, missing: float) -> FloatArray | None:
    return table[column].fill_null(missing).to_numpy() if column in table.columns else None


_UNIT = ServiceClass(unit_s=1.0, unit="second at speed 1")

Graph = tuple[tuple[str, tuple[str, ...], tuple[float, ...]], ...]
"""Stages in order: name, predecessors, and the shares of their outputs that it reads."""


def served_of(stages: pl.DataFrame) -> Served:
    """Classes for recorded stages of a scenario that defines none: their sizes are seconds at speed 1."""
    names = stages["class"].unique().sort().to_list()
    return Served({}, {}, dict.fromkeys(names, _UNIT))


def with_run_class(served: Served) -> Served:
    """The classes, with one for runs, which no node serves."""
    return Served(
        served.models, served.adapters, {**served.classes, RUN_CLASS: ServiceClass(fixed_s={}, unit_s={})}
    )


def traced_chains(
    stages: pl.DataFrame,
    run_idx: IntArray,
    workload: WorkloadSpec,
    served: Served,
    cluster: Cluster,
    seed: int,
) -> Chains:
    """The stages of the chosen runs. Raises ScenarioError for a class that there is not."""
    by_run = {int(key[0]): rows for key, rows in stages.partition_by("run_idx", as_dict=True).items()}
    chosen = [by_run[k] for k in run_idx.tolist()]
    graphs: dict[Graph, int] = {}
    template_idx = [graphs.setdefault(_graph_of(rows), len(graphs)) for rows in chosen]
    rows = pl.concat(chosen)
    work, truth = new_stage_work(rows.height), np.zeros(rows.height, TRUTH)
    units = rows["size"].to_numpy()
    truth["units"] = units
    work["units"] = units * stage_factor(workload.estimate_cv, seed, Stream.STAGE_ESTIMATE, 0, len(units))
    truth["factor"] = stage_factor(workload.service_cv, seed, Stream.STAGE_SERVICE, 0, len(units))
    work["class_idx"] = _named_class_idx(rows["class"], served)
    work["estimate_s"] = cluster.best_estimate_s(work["class_idx"], work["units"])
    work["key"] = keys_of(len(work))
    chains = Chains(
        templates=templates_of({f"graph-{k + 1}": _specs_of(graph) for graph, k in graphs.items()}),
        template_idx=np.array(template_idx, np.int32),
        counts=np.ones(rows.height, np.int32),
        work=work,
        truth=truth,
        output_gib=rows["output_gib"].to_numpy().copy(),
        is_skipped=np.zeros(rows.height, np.bool_),
    )
    rank_s, after = upward_ranks_s(chains, mean_estimates_s(cluster, work))
    work["rank_s"] = rank_s
    work["next_class_idx"] = np.where(after >= 0, work["class_idx"][after], -1)
    return chains


def _graph_of(rows: pl.DataFrame) -> Graph:
    columns = rows["stage"].to_list(), rows["after"].to_list(), rows["after_frac"].to_list()
    return tuple((name, tuple(after), tuple(frac)) for name, after, frac in zip(*columns, strict=True))


def _specs_of(graph: Graph) -> Mapping[str, StageSpec]:
    return {
        name: StageSpec(after=dict.fromkeys(after, Flow.ALL), frac=dict(zip(after, frac, strict=True)))
        for name, after, frac in graph
    }


def _named_class_idx(names: pl.Series, served: Served) -> IntArray:
    known = {name: c for c, name in enumerate(served.classes)}
    unknown = sorted(set(names.unique().to_list()) - known.keys())
    if unknown:
        expected = f"a class of the scenario: {nearest(unknown[0], known)}"
        raise ScenarioError("no such class", field="stages.class", value=unknown[0], expected=expected)
    return names.replace_strict(known, return_dtype=pl.Int64).to_numpy()
