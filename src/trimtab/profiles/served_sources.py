"""Profiles of files that tell how a server served: pages of its metrics, or requests with their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import UsageError
from trimtab.profiles.fit_profile import FittedProfile
from trimtab.profiles.latency_profile import LatencyProfile
from trimtab.profiles.mean_iterations import (
    MeanIterations,
    TimedRequests,
    is_metrics,
    of_pages,
    of_requests,
    pages_of,
)
from trimtab.profiles.measurement_files import MeasurementFile, text_of
from trimtab.profiles.scaled_profile import fit_scaled
from trimtab.traces.gateway_recording import is_recording, open_recording, read_answers
from trimtab.validation.names import listed

TIMES = ("start_s", "first_token_s", "finish_s")
TOKENS = ("prompt_tokens", "read_tokens", "output_tokens")


def tells_of_serving(path: Path) -> bool:
    """Whether it is a recording of the gateway, or pages of metrics."""
    return is_recording(path) or (path.is_file() and is_metrics(text_of(path)))


def fit_serving(
    paths: Sequence[Path], base: LatencyProfile, fields: dict[str, Any], file: str
) -> FittedProfile:
    """Scale a profile to recordings, or to pages of metrics. Raises UsageError for what cannot be used."""
    if all(is_recording(path) for path in paths):
        rows = [part for path in paths for part in _recorded(path, fields)]
        return _fitted(rows, base, fields, file)
    pages = []
    for path in paths:
        if is_recording(path) or not is_metrics(text := text_of(path)):
            expected = "files of one form: pages of metrics, or recordings"
            raise UsageError("is no page of metrics", file=str(path), expected=expected)
        for page in pages_of(text):
            if page.missing:
                expected = f"also {listed([f'vllm:{name}' for name in page.missing])}, or SGLang's"
                raise UsageError("metrics are missing", file=str(path), expected=expected)
            pages.append(page)
    told = max(page.kv_tokens / page.engines for page in pages)
    fields = fields | {"kv_tokens": fields["kv_tokens"] or int(told) or None}
    capacity = base.model_copy(update=fields).kv_capacity
    return _fitted([of_pages(pages, capacity, fields["token_budget"])], base, fields, file)


def fit_requests(
    files: Sequence[MeasurementFile], base: LatencyProfile, fields: dict[str, Any], file: str
) -> FittedProfile:
    """Scale a profile to tables of requests. Raises UsageError for what cannot be used."""
    rows: list[MeanIterations] = []
    for each in files:
        nodes = np.array(each.table["node"])
        columns = {name: each.floats(name) for name in (*TIMES, "prompt_tokens", "output_tokens")}
        columns["read_tokens"] = columns["prompt_tokens"]
        late = np.flatnonzero(
            (columns["first_token_s"] < columns["start_s"]) | (columns["finish_s"] < columns["first_token_s"])
        )
        if len(late):
            value = [float(columns[name][late[0]]) for name in TIMES]
            where = f"{each.path}: row {late[0] + 1}"
            raise UsageError("times that cannot be", file=where, value=value, expected=" ≤ ".join(TIMES))
        rows += _by_node(nodes, columns, fields)
    return _fitted(rows, base, fields, file)


def _recorded(path: Path, fields: dict[str, Any]) -> Iterator[MeanIterations]:
    """By node, of those whose type is named as the GPU; all, if there is one type."""
    answers = read_answers(open_recording(path))
    types = answers["type"].unique().sort().to_list()
    if len(types) > 1:
        if fields["gpu"] not in types:
            raise UsageError("no such node type", field="--gpu", value=fields["gpu"], expected=listed(types))
        answers = answers.filter(answers["type"] == fields["gpu"])
    named = [*TIMES, "prompt_tokens", "output_tokens"]
    columns = {name: answers[name].cast(float).to_numpy() for name in named}
    columns["read_tokens"] = np.maximum(columns["prompt_tokens"] - answers["cached_tokens"].to_numpy(), 0.0)
    yield from _by_node(answers["node"].to_numpy(), columns, fields)


def _by_node(nodes: Any, columns: dict[str, Any], fields: dict[str, Any]) -> Iterator[MeanIterations]:
    order = np.argsort(columns["start_s"], kind="stable")
    requests = TimedRequests(*(columns[name][order] for name in (*TIMES, *TOKENS)))
    for node in np.unique(nodes.astype(str)):
        yield of_requests(requests[nodes[order].astype(str) == node], fields["token_budget"])


def _fitted(
    rows: Sequence[MeanIterations], base: LatencyProfile, fields: dict[str, Any], file: str
) -> FittedProfile:
    if not rows:
        raise UsageError("no requests with tokens and times", file=file, expected="10 or more")
    joined = rows[0]
    for more in rows[1:]:
        joined = joined.joined(more)
    return fit_scaled(joined, base, fields, file)
