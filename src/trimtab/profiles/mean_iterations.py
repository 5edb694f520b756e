"""Mean iterations of a server that serves: from requests with their times, or from pages of its metrics.

No server tells its iterations one by one. But each gap between two tokens of a request is one iteration, so a
request's gaps have the mean seconds of the iterations that it was in, and what its node decoded and read
meanwhile is what these were made of. A server's metrics say the same of the time between two pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trimtab.profiles.iteration_rows import IterationRows
from trimtab.traces.prometheus_text import KV_CACHES, SampleFinder, kv_tokens

Floats = NDArray[np.float64]

LEAST_GAPS = 5  # of a request, for a mean
LEAST_ALONE = 10  # prompts that were read alone; fewer tell of a server that warms up
LEAST_DECODING = 2.0  # rows of a mean iteration with prompts: gaps do not show prompts that are read alone
MOST_ROWS = 4_000  # requests that are rows, evenly spread; all are seen beside these

_SERIES = {  # of vLLM and SGLang ("Production Metrics" of each); of several names the first that a page has
    "gap_s": ("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
    "gaps": ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    "prompts": ("time_to_first_token_seconds_count",),
    "prompt_tokens": ("prompt_tokens_total",),
    "cached_tokens": ("prefix_cache_hits_total", "cached_tokens_total"),
    "iterations": ("iteration_tokens_total_count",),  # vLLM
    "preemptions": ("num_preemptions_total",),  # vLLM
    "running": ("num_requests_running", "num_running_reqs"),
    "kv_used_frac": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage"),
}
_NEEDED = ("gap_s", "gaps", "prompts", "prompt_tokens", "running", "kv_used_frac")
_LENGTHS = ("request_prompt_tokens_bucket", "prompt_tokens_histogram_bucket")
_START = "process_start_time_seconds"
_SERVERS = ("vllm:", "sglang:", "sglang_")
_FINDER = SampleFinder(
    [f"{server}{name}" for server in _SERVERS for names in (*_SERIES.values(), _LENGTHS) for name in names]
    + [*KV_CACHES, _START]
)


@dataclass(frozen=True, eq=False)
class MeanIterations:
    """Means over some iterations each."""

    rows: IterationRows
    prompt_frac: Floats  # [rows], of the iterations that read prompts
    weight: Floats  # [rows], of a row beside others that tell of the same iterations

    def __getitem__(self, which: NDArray[np.bool_]) -> Self:
        return type(self)(self.rows[which], self.prompt_frac[which], self.weight[which])

    def joined(self, other: MeanIterations) -> MeanIterations:
        """Rows of both."""
        return MeanIterations(
            self.rows.joined(other.rows),
            np.concatenate([self.prompt_frac, other.prompt_frac]),
            np.concatenate([self.weight, other.weight]),
        )


@dataclass(frozen=True, eq=False)
class TimedRequests:
    """Requests that one node served, all columns [requests]; `read_tokens`: of the prompt, but for cached."""

    start_s: Floats  # the node got it
    first_token_s: Floats
    finish_s: Floats
    prompt_tokens: Floats
    read_tokens: Floats
    output_tokens: Floats

    def __getitem__(self, which: NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, f.name)[which] for f in fields(self)))


def of_requests(requests: TimedRequests, token_budget: int) -> MeanIterations:
    """A row for each request with gaps, and one for each prompt that was read alone, if these are enough.

    Tokens of a request are taken to come evenly, and its prompt to be read evenly from its start to its
    first token.
    """
    r = requests
    gaps = r.output_tokens - 1.0
    per_s = gaps / np.maximum(r.finish_s - r.first_token_s, 1e-9)
    read_per_s = 1.0 / np.maximum(r.first_token_s - r.start_s, 1e-9)
    pairs = r.read_tokens * (r.prompt_tokens - r.read_tokens / 2)
    chosen = np.flatnonzero((gaps >= LEAST_GAPS) & (r.finish_s > r.first_token_s))
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MOST_ROWS)).astype(int)]
    found = []
    for i in chosen:
        begin_s, end_s = r.first_token_s[i], r.finish_s[i]
        near = np.flatnonzero((r.start_s < end_s) & (r.finish_s > begin_s))
        low, high = np.maximum(r.first_token_s[near], begin_s), np.minimum(r.finish_s[near], end_s)
        made = np.maximum(high - low, 0.0) * per_s[near]
        context = r.prompt_tokens[near] + ((low + high) / 2 - r.first_token_s[near]) * per_s[near]
        until = np.minimum(r.first_token_s[near], end_s) - np.maximum(r.start_s[near], begin_s)
        read = np.where(near == i, 0.0, np.maximum(until, 0.0) * read_per_s[near])  # a share of the prompt
        sums = (made, made * context, read, read * r.read_tokens[near], read * pairs[near])
        found.append([*(each.sum() / gaps[i] for each in sums), (end_s - begin_s) / gaps[i]])
    rows = IterationRows(*np.array(found, float).reshape(-1, 6).T)
    decoding = MeanIterations(rows, _prompt_frac(rows, token_budget), 1.0 / np.maximum(rows.decoding, 1.0))
    alone = _is_alone(r)
    return decoding.joined(_alone(r[alone], token_budget)) if alone.sum() >= LEAST_ALONE else decoding


def _is_alone(r: TimedRequests) -> NDArray[np.bool_]:
    """Whose prompts were read while the node had no other request, [requests]."""
    begun = np.searchsorted(np.sort(r.start_s), r.first_token_s)
    ended = np.searchsorted(np.sort(r.finish_s), r.start_s, side="right")
    alone: NDArray[np.bool_] = (begun - ended <= 1) & (r.first_token_s > r.start_s) & (r.read_tokens > 0)
    return alone


def _alone(r: TimedRequests, token_budget: int) -> MeanIterations:
    parts = np.ceil(r.read_tokens / token_budget)
    none, one = np.zeros(len(parts)), np.ones(len(parts))
    pairs = r.read_tokens * (r.prompt_tokens - r.read_tokens / 2)
    seconds = (r.first_token_s - r.start_s) / parts
    return MeanIterations(
        IterationRows(none, none, one / parts, r.read_tokens / parts, pairs / parts, seconds), one, one
    )


def _prompt_frac(rows: IterationRows, token_budget: int) -> Floats:
    """The share of iterations that read prompts, if these come as a Poisson process, [rows]."""
    room = np.maximum(token_budget - rows.decoding, 1.0)
    parts = np.maximum(np.ceil(rows.prompt_tokens / np.maximum(rows.prompt_rows, 1e-12) / room), 1.0)
    frac: Floats = np.minimum(
        np.maximum(-np.expm1(-rows.prompt_rows * parts), rows.prompt_tokens / room), 1.0
    )
    return frac


@dataclass(frozen=True)
class MetricsPage:
    """What a page of a server's metrics says, summed over its engines; fractions are means over them."""

    values: Mapping[str, float]  # of _SERIES
    missing: tuple[str, ...]  # names of vLLM for what a fit needs
    engines: int
    started_s: float  # of the server; 0: it does not say
    kv_tokens: float  # 0: it does not say
    squared_frac: float  # mean square of the lengths of prompts so far, over their squared mean


def is_metrics(text: str) -> bool:
    """Whether this is a page in Prometheus' text format."""
    first = text.lstrip()[:200]
    return first.startswith(("# HELP ", "# TYPE ", *_SERVERS))


def pages_of(text: str) -> list[MetricsPage]:
    """The pages of a file that has one or, each behind the one before, several."""
    lines = text.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if line == lines[0]] + [len(lines)]
    return [_page("\n".join(lines[a:b]).encode()) for a, b in pairwise(starts)]


def _page(page: bytes) -> MetricsPage:
    found: dict[str, list[float]] = defaultdict(list)
    buckets: dict[float, float] = defaultdict(float)
    capacity = 0.0
    for sample in _FINDER.samples(page):
        name = sample.name.removeprefix("vllm:").removeprefix("sglang:").removeprefix("sglang_")
        if sample.name in KV_CACHES:
            capacity += kv_tokens(sample)
        elif name in _LENGTHS:
            buckets[float(sample.label("le"))] += sample.value
        else:
            found[name].append(sample.value)
    values = {}
    for key, names in _SERIES.items():
        if each := next((found[name] for name in names if found[name]), None):
            values[key] = sum(each) / (len(each) if key == "kv_used_frac" else 1)
    missing = tuple(_SERIES[key][0] for key in _NEEDED if key not in values)
    engines = max(1, *(len(found[name]) for name in _SERIES["running"]))
    return MetricsPage(values, missing, engines, max(found[_START], default=0.0), capacity, _squared(buckets))


def _squared(buckets: Mapping[float, float]) -> float:
    """Of a histogram by upper ends, each bucket at the middle of its logarithms."""
    ends = sorted(end for end in buckets if np.isfinite(end))
    counts = np.diff([0.0, *(buckets[end] for end in ends)])
    if not len(counts) or counts.sum() <= 0:
        return 1.0
    middle = np.sqrt(np.array([max(ends[0] / 2, 0.5), *ends[:-1]]) * np.array(ends))
    return float((counts * middle**2).sum() * counts.sum() / (counts * middle).sum() ** 2)


def of_pages(pages: Sequence[MetricsPage], kv_capacity: int, token_budget: int) -> MeanIterations:
    """A row for the time between each page and the next of the same process, where tokens were made.

    Times with preemptions are left out, as a row that waits makes no tokens, and so are those with prompts
    and few rows beside. Without a count of iterations (SGLang has none) the decoding rows are the mean of
    the requests that run at both ends.

    Args:
        pages: in any order, none with anything missing.
        kv_capacity: tokens that the KV memory of an engine holds.
        token_budget: of an iteration.
    """
    ordered = sorted(pages, key=lambda page: (page.started_s, page.values["gaps"]))
    found = []
    for before, after in pairwise(ordered):
        grown = {key: after.values[key] - before.values.get(key, 0.0) for key in after.values}
        running, used_frac = (
            (before.values[key] + after.values[key]) / 2 for key in ("running", "kv_used_frac")
        )
        iterations = grown.get("iterations", grown["gaps"] * after.engines / max(running, 1.0))
        is_reset = before.started_s != after.started_s or min(grown["gap_s"], grown["prompt_tokens"]) < 0
        if is_reset or grown["gaps"] < LEAST_GAPS or iterations <= 0 or grown.get("preemptions", 0.0) > 0:
            continue
        prompts = max(grown["prompts"], 0.0)
        if prompts > 0 and grown["gaps"] < LEAST_DECODING * iterations:
            continue
        read = max(grown["prompt_tokens"] - grown.get("cached_tokens", 0.0), 0.0)
        mean = grown["prompt_tokens"] / max(prompts, 1.0)
        pairs = read * mean * after.squared_frac / 2
        sums = [each / iterations for each in (prompts, read, pairs)]
        context = used_frac * kv_capacity
        found.append((grown["gaps"] / iterations, context, *sums, grown["gap_s"] / grown["gaps"]))
    rows = IterationRows(*np.array(found, float).reshape(-1, 6).T)
    return MeanIterations(rows, _prompt_frac(rows, token_budget), np.ones(len(rows)))
