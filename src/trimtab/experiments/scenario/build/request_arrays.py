"""Turns columns into the arrays of a run: WORK, visible to policies, and TRUTH, hidden from them.

Among them the inputs of caches: prompt prefixes for nodes' prefix caches, contents for the result cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from trimtab.domain.cluster import Cluster
from trimtab.domain.learned_estimates import LearnedEstimates, LengthCurve
from trimtab.domain.output_estimate import OutputEstimate
from trimtab.domain.requests import TRUTH, Prefixes, Requests
from trimtab.domain.view import new_work
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.cluster_arrays import first_positions
from trimtab.experiments.scenario.build.generated import Members, RequestColumns, Stream, generator
from trimtab.experiments.scenario.build.serving_options import parts_max
from trimtab.experiments.scenario.build.traced import BLOCK_TOKENS
from trimtab.experiments.scenario.spec.amounts import Amount
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.serving import ResultCacheSpec
from trimtab.experiments.scenario.spec.shared_types import (
    FloatArray,
    IntArray,
    choose,
    fractions,
    zipf_fractions,
)
from trimtab.experiments.scenario.spec.workload import (
    ContentSpec,
    DeadlineSpec,
    Popularity,
    PromptSpec,
    TraceSpec,
    WorkloadSpec,
)
from trimtab.traces.generators import sizes_lognormal


def build_requests(
    spec: WorkloadSpec,
    served: Served,
    columns: RequestColumns,
    cluster: Cluster,
    seed: int,
    path_s: FloatArray | None = None,
) -> Requests:
    """Requests of one seed, not yet scaled to a load.

    `path_s` [requests] is the estimate of runs of chains; nan for other requests.
    """
    n, c = len(columns.arrival_s), columns.class_idx
    truth, work = np.zeros(n, TRUTH), new_work(n)
    truth["units"], truth["factor"] = columns.units, _factor(spec.service_cv, seed, Stream.SERVICE, n)
    names = tenant_names(spec, columns)
    work["serial"], work["arrival_s"], work["class_idx"] = np.arange(n), columns.arrival_s, c
    error = output_error(spec, columns, seed, served.classes)
    work["units"] = columns.units * error
    if spec.output_estimate == "online-mean" and columns.output_tokens is not None:
        of_models, more = columns.output_tokens > 0, (error - 1.0) * columns.output_tokens
        work["units"][of_models] = np.maximum(columns.units + more, 1e-9)[of_models]
    _set_tokens(work, truth, columns, error)
    work["parts_max"] = parts_max(served, c, work["units"])
    best_s = cluster.best_estimate_s(c, work["units"])
    true_best_s = cluster.best_estimate_s(c, columns.units)
    if path_s is not None:
        is_run = ~np.isnan(path_s)
        best_s[is_run] = true_best_s[is_run] = path_s[is_run]
    best_s[~_fits_nodes(cluster, columns)] = np.inf
    work["estimate_s"] = work["rank_s"] = best_s
    work["deadline_s"] = columns.arrival_s + _deadline_after_s(spec, columns, true_best_s, seed)
    work["payload_gib"] = _payload_gib(spec, columns, seed)
    work["model_idx"], work["adapter_idx"] = _item_idx(served, columns)
    work["tenant_idx"] = _tenant_idx(spec, columns, len(names), seed)
    weight = _tenant_weight(spec, names)
    work["cost"] = work["units"] / weight[work["tenant_idx"]]
    work["priority"] = _priority(spec, columns, seed)
    work["zone_idx"] = _zone_idx(spec, cluster, seed, n)
    work["key"] = _keys(work, _session(spec, columns, seed))
    result_gib = None if cluster.network is None else _drawn_gib(spec.result_gib, seed, Stream.RESULT, n)
    return Requests(work, truth, names, tenant_weight=weight, result_gib=result_gib)


def _set_tokens(
    work: npt.NDArray[np.void], truth: npt.NDArray[np.void], columns: RequestColumns, error: FloatArray
) -> None:
    """Prompt tokens, and output tokens with the error of the estimated size."""
    if columns.prompt_tokens is None or columns.output_tokens is None:
        return
    work["input_tokens"], truth["output_tokens"] = columns.prompt_tokens, columns.output_tokens
    expected = np.rint(columns.output_tokens * error)
    work["output_tokens"] = np.where(columns.output_tokens > 0, np.maximum(1, expected), 0)


def _fits_nodes(cluster: Cluster, columns: RequestColumns) -> npt.NDArray[np.bool_]:
    """Whether a node that serves a request's class can serve its size and tokens, [requests]."""
    tokens = np.zeros(len(columns.arrival_s), np.int64)
    if columns.prompt_tokens is not None and columns.output_tokens is not None:
        tokens = columns.prompt_tokens + columns.output_tokens
    fits = cluster.fits_engines(columns.class_idx, columns.units, tokens)
    return fits | ~np.isfinite(cluster.fixed_s[columns.class_idx]).any(axis=1)


def output_error(
    spec: WorkloadSpec, columns: RequestColumns, seed: int, classes: Iterable[str] = ()
) -> FloatArray:
    """Factor on the output tokens that are expected of each request, or else on its size, [requests].

    `classes` are their names by position. Raises UsageError for a file of learned estimates that is none.
    """
    n, output = len(columns.arrival_s), columns.output_tokens
    drawn: FloatArray = np.ones(n) * _factor(spec.estimate_cv, seed, Stream.ESTIMATE, n)
    if spec.output_estimate == "drawn" or output is None or columns.prompt_tokens is None:
        return drawn
    learned = None if spec.learned is None else LearnedEstimates.read(str(spec.learned.file))
    curves = [learned.length(name) if learned is not None else None for name in classes]
    expected = _online_means(columns.class_idx, columns.prompt_tokens, output, curves)
    return np.where(output > 0, expected / np.maximum(output, 1), drawn)


def _online_means(
    class_idx: IntArray, prompt: IntArray, output: IntArray, curves: Sequence[LengthCurve | None]
) -> FloatArray:
    """Expected output by the earlier requests of a class, whether or not they have ended, [requests].

    `curves` [classes]: what each class begins with; a class that has none there begins with nothing.
    """
    of_class, expected = defaultdict[int, OutputEstimate](OutputEstimate), np.empty(len(output))
    of_class |= {c: OutputEstimate(curve) for c, curve in enumerate(curves)}
    rows = zip(class_idx.tolist(), prompt.tolist(), output.tolist(), strict=True)
    for k, (c, prompt_tokens, output_tokens) in enumerate(rows):
        estimate = of_class[c]
        expected[k] = estimate.predict(prompt_tokens)
        estimate.observe(prompt_tokens, 0.0, output_tokens)
    return expected


def _factor(cv: float, seed: int, stream: Stream, n: int) -> FloatArray | float:
    """Lognormal of mean 1, [n]; its normal numbers do not depend on `cv`."""
    return sizes_lognormal(generator(seed, stream), 1.0, cv, n) if cv else 1.0


def tenant_names(spec: WorkloadSpec, columns: RequestColumns) -> tuple[str, ...]:
    """Names of the tenants: the trace's, else the scenario's."""
    if columns.tenant_idx is not None:
        return columns.tenant_names
    if isinstance(spec.tenants, Popularity):
        return tuple(f"tenant-{k}" for k in range(1, spec.tenants.count + 1))
    return tuple(spec.tenants)


def check_tenants(field: str, given: Iterable[str], names: tuple[str, ...]) -> None:
    """Raise ScenarioError for a tenant that there is not."""
    strangers = sorted(set(given) - set(names))
    if strangers:
        expected = f"one of {', '.join(names)}"
        raise ScenarioError("no such tenant", field=field, value=strangers[0], expected=expected)


def _tenant_weight(spec: WorkloadSpec, names: tuple[str, ...]) -> FloatArray:
    """Due share of each tenant [tenants], relative. Raises ScenarioError for a tenant that there is not."""
    check_tenants("workload.tenant_weights", spec.tenant_weights, names)
    return np.array([spec.tenant_weights.get(name, 1.0) for name in names])


def _tenant_idx(spec: WorkloadSpec, columns: RequestColumns, count: int, seed: int) -> IntArray | int:
    if columns.tenant_idx is not None:
        return columns.tenant_idx
    if count == 1:
        return 0
    if isinstance(spec.tenants, Popularity):
        frac = zipf_fractions(count, spec.tenants.zipf)
    else:
        frac = fractions(list(spec.tenants.values()))
    return choose(generator(seed, Stream.TENANT), frac, len(columns.arrival_s))


def _priority(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> IntArray:
    if columns.priority is not None:
        return columns.priority
    values, frac = np.array(list(spec.priorities)), fractions(list(spec.priorities.values()))
    return values[choose(generator(seed, Stream.PRIORITY), frac, len(columns.arrival_s))]


def _deadline_after_s(
    spec: WorkloadSpec, columns: RequestColumns, best_s: FloatArray, seed: int
) -> FloatArray | float:
    if columns.deadline_after_s is not None:
        return columns.deadline_after_s
    return np.inf if spec.deadline is None else _drawn_deadline_s(spec.deadline, best_s, seed)


def _drawn_deadline_s(spec: DeadlineSpec, best_s: FloatArray, seed: int) -> FloatArray:
    """Seconds from arrival to the deadline; `best_s` is the service on the best type, [requests] both."""
    n = len(best_s)
    after_s = np.zeros(n)
    if spec.factor is not None:
        after_s += best_s * spec.factor.draw(generator(seed, Stream.DEADLINE_FACTOR), n)
    if spec.seconds is not None:
        after_s += spec.seconds.draw(generator(seed, Stream.DEADLINE_SECONDS), n)
    has_one = generator(seed, Stream.HAS_DEADLINE).random(n) < spec.share_frac
    return np.where(has_one, after_s, np.inf)


def _payload_gib(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> FloatArray | float:
    if columns.payload_gib is not None:
        return columns.payload_gib
    drawn = _drawn_gib(spec.payload_gib, seed, Stream.PAYLOAD, len(columns.arrival_s))
    return 0.0 if drawn is None else drawn


def _drawn_gib(amount: Amount | None, seed: int, stream: Stream, n: int) -> FloatArray | None:
    return None if amount is None else amount.draw(generator(seed, stream), n)


def _zone_idx(spec: WorkloadSpec, cluster: Cluster, seed: int, n: int) -> IntArray | int:
    if spec.origin is None:
        return 0
    zones = np.array([cluster.zone_names.index(zone) for zone in spec.origin])
    return zones[choose(generator(seed, Stream.ORIGIN), fractions(list(spec.origin.values())), n)]


def _item_idx(served: Served, columns: RequestColumns) -> tuple[IntArray, IntArray]:
    """Positions of model and adapter among all items, [requests] each; -1 = none."""
    n_models = sum(map(len, columns.models.values()))
    classes = served.classes.values()
    model_families, adapter_families = [s.model for s in classes], [s.adapter for s in classes]
    first = _first_of_class(columns.models, 0, model_families)[columns.class_idx]
    first_adapter = _first_of_class(columns.adapters, n_models, adapter_families)[columns.class_idx]
    model = np.where(columns.model >= 0, first + columns.model, -1)
    return model, np.where(columns.adapter >= 0, first_adapter + columns.adapter, -1)


def _first_of_class(members: Members, start: int, families: list[str | None]) -> IntArray:
    """Position of the first item of each class's family, [classes]."""
    first = first_positions(members, start)
    return np.array([-1 if name is None else first[name] for name in families])


def _session(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> IntArray | None:
    if columns.session is not None or spec.sessions is None:
        return columns.session
    frac = zipf_fractions(spec.sessions.count, spec.sessions.zipf)
    return choose(generator(seed, Stream.SESSION), frac, len(columns.arrival_s))


def _keys(work: npt.NDArray[np.void], session: IntArray | None) -> IntArray:
    """Affinity keys: the session, else model and adapter, else a key of the request's own."""
    pair = ((work["model_idx"].astype(np.int64) + 1) << 24) + work["adapter_idx"] + 1
    content = np.where(work["model_idx"] >= 0, _mixed(pair, 1), _mixed(work["serial"], 2))
    return content if session is None else np.where(session >= 0, _mixed(session, 3), content)


def _mixed(values: npt.NDArray[np.integer], kind: int) -> IntArray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as numbers of 63 bits."""
    z = values.astype(np.uint64) + np.uint64(kind << 56)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def recorded_prefixes(spec: TraceSpec, format_name: str, table: pl.DataFrame) -> Prefixes | None:
    """Prompts of a trace; None without a column `prefix_blocks`.

    Raises ScenarioError if neither trace nor scenario gives the tokens of a block.
    """
    if "prefix_blocks" not in table.columns:
        return None
    block_tokens = spec.block_tokens or BLOCK_TOKENS.get(format_name)
    if block_tokens is None:
        expected = f"the prompt tokens of a block; known only of {', '.join(BLOCK_TOKENS)}"
        raise ScenarioError(
            "is missing", file=str(spec.file), field="workload.trace.block_tokens", expected=expected
        )
    blocks = table["prefix_blocks"]
    counts = blocks.list.len().fill_null(0).to_numpy().astype(np.int64)
    ids = blocks.filter(counts > 0).explode().to_numpy()
    _, numbers = np.unique(ids, return_inverse=True)
    tokens = _prompt_tokens(table, counts.astype(np.float64) * float(block_tokens))
    return Prefixes(numbers.astype(np.int32), _firsts(counts), tokens, float(block_tokens))


def _prompt_tokens(table: pl.DataFrame, at_most: FloatArray) -> FloatArray:
    """Tokens of each prompt that its blocks cover, [requests]."""
    if "prompt_tokens" not in table.columns:
        return at_most
    tokens: FloatArray = table["prompt_tokens"].fill_null(0).cast(pl.Float64).to_numpy()
    return np.minimum(tokens, at_most)


def _firsts(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)])


def with_prompts(
    workload: WorkloadSpec, spec: PromptSpec, columns: RequestColumns, served: Served, seed: int
) -> RequestColumns:
    """The requests with drawn prompts; the work of the prompts is added to their units."""
    n = len(columns.arrival_s)
    beginning = choose(generator(seed, Stream.PROMPT), zipf_fractions(spec.count, spec.zipf), n)
    shared = np.floor(spec.shared_tokens.draw(generator(seed, Stream.SHARED_TOKENS), spec.count))
    own = np.floor(spec.own_tokens.draw(generator(seed, Stream.OWN_TOKENS), n))
    per_token = np.array([service.prompt_token_units for service in served.classes.values()])
    if spec.turns_max > 1:
        conversation = _conversations(spec, _session(workload, columns, seed))
        beginning = beginning[conversation.first]
        own = _with_history(own, columns.output_tokens, conversation)
    tokens = shared[beginning] + own
    units = columns.units + per_token[columns.class_idx] * tokens
    if columns.output_tokens is not None:
        columns = replace(columns, prompt_tokens=np.maximum(1, tokens).astype(np.int64))
    prefixes = drawn_prefixes(beginning, shared, tokens, spec.block_tokens)
    if spec.turns_max > 1:
        whole = (shared[beginning] // spec.block_tokens).astype(np.int64)
        prefixes = _of_conversations(prefixes, conversation, whole)
    return replace(columns, units=units, prefixes=prefixes)


class _Conversations(NamedTuple):
    """The conversations that requests are turns of, [requests] each."""

    number: IntArray
    first: IntArray  # row of the first turn
    turn: IntArray  # from 0 on
    order: IntArray  # rows, conversation by conversation, turn by turn


def _conversations(spec: PromptSpec, session: IntArray | None) -> _Conversations:
    """Requests of a session, in order of arrival, as conversations of at most `turns_max` turns."""
    if session is None:
        expected = "sessions, whose requests are turns"
        raise ScenarioError(
            "have none", field="workload.prompts.turns_max", value=spec.turns_max, expected=expected
        )
    order = np.argsort(session, kind="stable")
    _, start, length = np.unique(session[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(start, length)
    turn = np.where(session[order] >= 0, place % spec.turns_max, 0)
    number = np.cumsum(turn == 0) - 1
    first = order[np.flatnonzero(turn == 0)][number]
    columns = [np.empty(len(order), np.int64) for _ in range(3)]
    for column, values in zip(columns, (number, first, turn), strict=True):
        column[order] = values
    return _Conversations(columns[0], columns[1], columns[2], order)


def _with_history(own: FloatArray, output: IntArray | None, of: _Conversations) -> FloatArray:
    """Tokens of each prompt behind its shared beginning: all turns so far, and the answers between them."""
    answers = np.zeros(len(own)) if output is None else output.astype(np.float64)
    begins = of.turn[of.order] == 0
    total = np.cumsum(own[of.order] + np.where(begins, 0.0, np.roll(answers[of.order], 1)))
    before = (total - own[of.order])[np.flatnonzero(begins)][of.number[of.order]]
    history = np.empty(len(own))
    history[of.order] = total - before
    return history


def _of_conversations(prefixes: Prefixes, of: _Conversations, n_shared: IntArray) -> Prefixes:
    """The prompts, whole blocks behind the shared ones being those of the conversation."""
    counts = np.diff(prefixes.first)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - prefixes.first[row]
    whole = (prefixes.prompt_tokens // prefixes.block_tokens).astype(np.int64)
    longest = np.zeros(int(of.number.max(initial=0)) + 1, np.int64)
    np.maximum.at(longest, of.number, counts)
    begin = prefixes.n_blocks + np.cumsum(longest) - longest
    is_told = (place >= n_shared[row]) & (place < whole[row])
    number = np.where(is_told, begin[of.number[row]] + place, prefixes.block_idx)
    _, numbers = np.unique(number, return_inverse=True)
    return replace(prefixes, block_idx=numbers.astype(np.int32))


def drawn_prefixes(
    beginning: IntArray, shared_tokens: FloatArray, tokens: FloatArray, block_tokens: float
) -> Prefixes:
    """Prompts of `tokens` [requests], each starting with the tokens of a shared `beginning` [requests].

    `shared_tokens` [beginnings]; their whole blocks are shared, all other blocks are a request's own.
    """
    shared = (shared_tokens // block_tokens).astype(np.int64)
    counts = np.ceil(tokens / block_tokens).astype(np.int64)
    n_shared = np.minimum(shared[beginning], counts)
    first, row = _firsts(counts), np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - first[row]
    is_shared = place < n_shared[row]
    own_number = shared.sum() + np.cumsum(~is_shared) - 1
    number = np.where(is_shared, _firsts(shared)[beginning[row]] + place, own_number)
    return Prefixes(number.astype(np.int32), first, tokens, block_tokens)


def with_contents(spec: ContentSpec, columns: RequestColumns, seed: int) -> RequestColumns:
    """The requests with drawn contents; equal content means equal class, size, model and adapter."""
    n = len(columns.arrival_s)
    content = choose(generator(seed, Stream.CONTENT), zipf_fractions(spec.count, spec.zipf), n)
    is_repeatable = generator(seed, Stream.REPEATABLE).random(n) < spec.repeatable_frac
    like = np.arange(n)
    rows = np.flatnonzero(is_repeatable)
    _, first, which = np.unique(content[rows], return_index=True, return_inverse=True)
    like[rows] = rows[first[which]]
    return replace(
        columns,
        class_idx=columns.class_idx[like],
        units=columns.units[like],
        model=columns.model[like],
        adapter=columns.adapter[like],
        content=np.where(is_repeatable, content, -1),
    )


def content_numbers(
    spec: ResultCacheSpec, content: IntArray | None, tenant_idx: IntArray, tenant_names: tuple[str, ...]
) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """Content number of each request, equal for equal requests of a tenant, [requests]; −1: not cacheable.

    None if no request is cacheable. Raises ScenarioError for an unknown tenant.
    """
    check_tenants("serving.result_cache.tenants", spec.tenants or (), tenant_names)
    if not spec.entries or content is None:
        return None
    chosen = np.array([spec.tenants is None or name in spec.tenants for name in tenant_names])
    may = chosen[tenant_idx] & (content >= 0)
    pairs = tenant_idx[may].astype(np.int64) * (int(content.max(initial=0)) + 1) + content[may]
    numbers = np.full(len(content), -1, np.int32)
    numbers[may] = np.unique(pairs, return_inverse=True)[1]
    return numbers
