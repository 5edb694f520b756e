"""Inputs of caches: prompt prefixes for nodes' prefix caches, and contents for the result cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trimtab.domain.requests import Prefixes
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.defaults import BLOCK_TOKENS
from trimtab.experiments.scenario.build.generated import RequestColumns, Stream, generator
from trimtab.experiments.scenario.build.request_arrays import check_tenants
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.serving import ResultCacheSpec
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray, choose, zipf_fractions
from trimtab.experiments.scenario.spec.workload import ContentSpec, PromptSpec, TraceSpec


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


def with_prompts(spec: PromptSpec, columns: RequestColumns, served: Served, seed: int) -> RequestColumns:
    """The requests with drawn prompts; the work of the prompts is added to their units."""
    n = len(columns.arrival_s)
    beginning = choose(generator(seed, Stream.PROMPT), zipf_fractions(spec.count, spec.zipf), n)
    shared = np.floor(spec.shared_tokens.draw(generator(seed, Stream.SHARED_TOKENS), spec.count))
    own = np.floor(spec.own_tokens.draw(generator(seed, Stream.OWN_TOKENS), n))
    tokens = shared[beginning] + own
    per_token = np.array([service.prompt_token_units for service in served.classes.values()])
    units = columns.units + per_token[columns.class_idx] * tokens
    prefixes = drawn_prefixes(beginning, shared, tokens, spec.block_tokens)
    return replace(columns, units=units, prefixes=prefixes)


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
