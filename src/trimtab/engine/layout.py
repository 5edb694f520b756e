"""Rows that only some scenarios need: parts of split requests, and groups of batched requests."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.requests import Prefixes, Requests
from trimtab.domain.view import new_work

PART = np.dtype(
    [
        ("parent", "i4"),  # of a part: its request; -1 = the row is a request
        ("first", "i4"),  # of a request: row of its first part, the next is `dispatchers` rows on
        ("count", "i4"),  # of a request: how many parts it was split into; 0 = not split
        ("left", "i4"),  # of a request: parts that are not finished; negative once one has failed
    ],
    align=True,
)

BATCH = np.dtype(
    [
        ("due_s", "f8"),  # waiting: when it starts whether its batch is full or not
        ("group", "i4"),  # requests of one class and model can be served together
        ("next", "i4"),  # running: next of its batch; -1 = none
        ("leader", "i4"),  # running: the one of its batch that holds the slot; -1 = itself
    ],
    align=True,
)


class Rows(NamedTuple):
    """Requests, followed by the rows for their parts."""

    requests: Requests
    parts: NDArray[np.void]  # PART [rows]


def rows_alone(requests: Requests) -> Rows:
    """The rows of a run without splitting."""
    return Rows(requests, np.zeros(0, PART))


def rows_with_parts(requests: Requests, dispatchers: int) -> Rows:
    """Lay out parts so that each has the dispatcher of its request (row mod dispatchers)."""
    n, most = len(requests), np.maximum(requests.work["parts_max"], 1)
    base = -(-n // dispatchers) * dispatchers
    first, total = np.full(n, -1), 0
    for d in range(dispatchers):
        rows = d + dispatchers * np.flatnonzero(most[d::dispatchers] > 1)
        ends = np.cumsum(most[rows])
        first[rows] = base + d + dispatchers * (ends - most[rows])
        total = max(total, int(ends[-1]) if len(ends) else 0)
    return _filled(requests, first, base + dispatchers * total, dispatchers)


def _filled(requests: Requests, first: NDArray[np.int64], n_rows: int, dispatchers: int) -> Rows:
    n, splits = len(requests), np.flatnonzero(first >= 0)
    most = requests.work["parts_max"][splits]
    parents = np.repeat(splits, most)
    at = np.arange(len(parents)) - np.repeat(np.cumsum(most) - most, most)
    rows = first[parents] + dispatchers * at
    work, truth = new_work(n_rows), np.zeros(n_rows, requests.truth.dtype)
    work[:n], truth[:n] = requests.work, requests.truth
    work[rows], truth[rows] = requests.work[parents], requests.truth[parents]
    work["serial"][rows], work["parts_max"][rows] = rows, 1
    parts = np.zeros(n_rows, PART)
    parts["parent"], parts["first"] = -1, -1
    parts["parent"][rows], parts["first"][:n] = parents, first
    whole = replace(requests, work=work, truth=truth, prefixes=_padded(requests.prefixes, n_rows))
    if requests.content_idx is not None:
        contents = np.append(requests.content_idx, np.full(n_rows - n, -1)).astype(np.int32)
        whole = replace(whole, content_idx=contents)
    return Rows(whole, parts)


def _padded(prefixes: Prefixes | None, n_rows: int) -> Prefixes | None:
    """Prefixes for all rows: parts have no prompt of their own."""
    if prefixes is None:
        return None
    more = n_rows - len(prefixes.prompt_tokens)
    first = np.append(prefixes.first, np.full(more, prefixes.first[-1]))
    return replace(prefixes, first=first, prompt_tokens=np.append(prefixes.prompt_tokens, np.zeros(more)))


def batch_rows(work: NDArray[np.void]) -> tuple[NDArray[np.void], int]:
    """Initial BATCH [rows] and the number of groups."""
    rows = np.zeros(len(work), BATCH)
    pairs = np.stack([work["class_idx"], work["model_idx"]], axis=1)
    groups, group_of = np.unique(pairs, axis=0, return_inverse=True)
    rows["group"], rows["next"], rows["leader"] = group_of.reshape(-1), -1, -1
    return rows, len(groups)
