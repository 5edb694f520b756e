"""Rows that only some scenarios need: stages of runs, parts of split requests, groups of batched requests.

A run is a row; its stages are rows in one block behind all requests. A split request is a run of one stage,
whose instances are its parts; these are equal, or in proportion to weights of the plan. A group is one stage
of one run: its instances are consecutive rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper
from trimtab.domain.chains import (
    EDGE,
    HOST_RETRIES,
    STAGE_SPEC,
    STAGE_WORK,
    Chains,
    Flow,
    Templates,
    new_stage_work,
)
from trimtab.domain.requests import TRUTH, Prefixes, Requests
from trimtab.domain.view import Plan, new_work

RUN = np.dtype(
    [
        ("path_s", "f8"),  # estimated critical path, as it was on arrival
        ("left_s", "f8"),  # estimated service of its stages that are not over
        ("rest_s", "f8"),  # longest `rank_s` of its stages that are ready and not over
        ("group", "i4"),  # its first group
        ("n_groups", "i4"),  # 0 = a request without stages
        ("left", "i4"),  # groups that are not over; 0 = it ends now; negative = it is over, or has failed
        ("started", "i4"),  # 1 = its stages are served; 0 = it is served like any request, or not there yet
    ],
    align=True,
)

GROUP = np.dtype(
    [
        ("output_gib", "f8"),  # declared size of the output of an instance
        ("expected_s", "f8"),  # declared service of all its instances; counts until one of them is ready
        ("row", "i4"),  # its first instance
        ("count", "i4"),  # instances
        ("spec", "i4"),  # position in `stage_specs`
        ("missing", "i4"),  # outputs that all instances wait for
        ("left", "i4"),  # instances that are not over
        ("present", "i4"),  # instances that are over and not ABSENT
        ("failed", "i4"),  # instances that were not served
        ("known", "i4"),  # 1 = an instance is or was ready, so their number and sizes are known
    ],
    align=True,
)

STAGE = np.dtype(
    [
        ("output_gib", "f8"),  # size of its output
        ("moving_gib", "f8"),  # inputs that its node lacked, at the last dispatch
        ("crossing_gib", "f8"),  # of these, from other zones
        ("run", "i4"),  # row of its run; -1 = the row is a request
        ("group", "i4"),
        ("missing", "i4"),  # outputs that this instance waits for
        ("copies", "i4"),  # first of the copies of its output; -1 = none
        ("epoch", "i4"),  # of its node, when it was served
        ("output", "u1"),  # NO_OUTPUT, ABSENT, EMPTY, PRESENT
        ("skipped", "u1"),  # why it is not served: SKIPPED, NOTHING_TO_DO; 0 = it is
        ("answered", "u1"),  # 1 = its output came from the store of stage results
    ],
    align=True,
)

COPY = np.dtype([("node_idx", "i4"), ("epoch", "i4"), ("next", "i4")], align=True)

KEPT = np.dtype(
    [
        ("credit", "f8"),
        ("gib", "f8"),
        ("service_s", "f8"),
        ("place", "i4"),  # 1 + position in the heap; 0 = not in the store
    ],
    align=True,
)

BATCH = np.dtype(
    [
        ("due_s", "f8"),  # waiting: when it starts whether its batch is full or not
        ("group", "i4"),  # requests of one class, model and shape can be served together
        ("next", "i4"),  # running: next of its batch; -1 = none
        ("leader", "i4"),  # running: the one of its batch that holds the slot; -1 = itself
    ],
    align=True,
)

NO_OUTPUT = 0
ABSENT, EMPTY, PRESENT = 1, 2, 3


"""What became of an instance. EMPTY: it has no output, but its map was taken: what reads all of the map gets
the list of the others. An absent one counts as if there were no list."""

SKIPPED, NOTHING_TO_DO = 1, 2
"""Why an instance is not served: the condition of its stage does not hold; it is that of a map over no items,
or left out of its map."""

PART_SPEC = 0  # of the parts of split requests, in `stage_specs`


class Rows(NamedTuple):
    """Requests, followed by the rows of their stages."""

    requests: Requests
    runs: NDArray[np.void]  # RUN [requests]
    groups: NDArray[np.void]  # GROUP [groups]
    stages: NDArray[np.void]  # STAGE [rows]
    specs: NDArray[np.void]  # STAGE_SPEC
    successors: NDArray[np.void]  # EDGE
    inputs: NDArray[np.void]  # EDGE
    n_copies: int  # of outputs, that there can be at once
    most: int  # rows of one run, at most


def rows_alone(requests: Requests) -> Rows:
    """The rows of a scenario without runs."""
    runs, groups, stages, specs, edges = (np.zeros(0, kind) for kind in (RUN, GROUP, STAGE, STAGE_SPEC, EDGE))
    return Rows(requests, runs, groups, stages, specs, edges, edges, 0, 0)


def rows_with_runs(requests: Requests, n_nodes: int, *, splits: bool) -> Rows:
    """Lay out the stages of runs and, if requests may be split, rows for as many parts as they may have."""
    n, chains = len(requests), requests.chains
    most = np.maximum(requests.work["parts_max"], 1) if splits else np.ones(n, np.int64)
    is_run = np.zeros(n, np.bool_) if chains is None else chains.template_idx >= 0
    n_parts = np.where((most > 1) & ~is_run, most, 0)
    runs = np.zeros(n, RUN)
    specs = np.zeros(1, STAGE_SPEC)
    specs["max_retries"], specs["failed_max_frac"] = HOST_RETRIES, 1.0
    successors = inputs = np.zeros(0, EDGE)
    spec_idx, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if chains is not None:
        sizes = np.diff(chains.templates.first)[chains.template_idx[is_run]]
        runs["n_groups"][is_run] = sizes
        specs = np.concatenate([specs, chains.templates.stages])
        successors, inputs = chains.templates.successors, chains.templates.inputs
        spec_idx, counts = 1 + chains.stage_idx, chains.counts.astype(np.int64)
    splits_at = np.flatnonzero(n_parts)
    runs["n_groups"][splits_at] = 1
    groups = np.zeros(len(counts) + len(splits_at), GROUP)
    order = np.concatenate([np.flatnonzero(is_run), splits_at])  # chains' blocks first
    groups["spec"] = np.concatenate([spec_idx, np.full(len(splits_at), PART_SPEC)])
    groups["count"] = np.concatenate([counts, n_parts[splits_at]])
    if chains is not None:
        groups["expected_s"][: len(counts)] = _declared(chains, chains.expected_s, chains.work["estimate_s"])
        sizes_gib = _declared(chains, chains.expected_gib, chains.output_gib)
        groups["output_gib"][: len(counts)] = sizes_gib / np.maximum(counts, 1)
    ends = np.cumsum(groups["count"])
    groups["row"] = n + ends - groups["count"]
    firsts = np.cumsum(runs["n_groups"][order]) - runs["n_groups"][order]
    runs["group"][order] = firsts
    of_run = np.repeat(order, runs["n_groups"][order])  # [groups]
    stages = _stage_rows(n, groups, of_run, chains)
    whole = _whole(requests, stages, chains)
    n_copies = 0 if chains is None else _n_copies(groups, of_run, runs, specs, successors, n_nodes)
    most = int(np.bincount(of_run, groups["count"]).max(initial=0))
    return Rows(whole, runs, groups, stages, specs, successors, inputs, n_copies, most)


def no_runs(templates: Templates, n: int) -> Chains:
    """Chains without a run yet, for a host whose `n` rows are filled in as runs enter."""
    return Chains(
        templates=templates,
        template_idx=np.full(n, -1, np.int32),
        counts=np.zeros(0, np.int32),
        work=new_stage_work(0),
        truth=np.zeros(0, TRUTH),
        output_gib=np.zeros(0),
        is_skipped=np.zeros(0, np.bool_),
    )


def _stage_rows(
    n: int, groups: NDArray[np.void], of_run: NDArray[np.int64], chains: Chains | None
) -> NDArray[np.void]:
    counts = groups["count"]
    stages = np.zeros(n + int(counts.sum()), STAGE)
    stages["run"], stages["group"], stages["copies"] = -1, -1, -1
    stages["run"][n:] = np.repeat(of_run, counts)
    stages["group"][n:] = np.repeat(np.arange(len(groups)), counts)
    if chains is not None:
        rows = slice(n, n + len(chains.work))
        stages["output_gib"][rows] = chains.output_gib
        stages["skipped"][rows] = np.where(chains.is_empty, NOTHING_TO_DO, chains.is_skipped * SKIPPED)
    return stages


def _declared(
    chains: Chains, expected: NDArray[np.float64] | None, of_rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The declared work of each stage of all runs; without that, the sum over its rows."""
    if expected is not None:
        return expected
    stage = np.repeat(np.arange(len(chains.counts)), chains.counts)
    known = np.where(np.isfinite(of_rows), of_rows, 0.0)
    return np.bincount(stage, known, len(chains.counts)).astype(np.float64)


def _whole(requests: Requests, stages: NDArray[np.void], chains: Chains | None) -> Requests:
    """The requests with WORK, TRUTH and contents for all rows. Parts take those of their request."""
    n, n_rows = len(requests), len(stages)
    work, truth = new_work(n_rows), np.zeros(n_rows, requests.truth.dtype)
    work[:n], truth[:n] = requests.work, requests.truth
    n_chained = 0 if chains is None else len(chains.work)
    if chains is not None:
        _fill_stages(work[n : n + n_chained], requests, stages["run"][n : n + n_chained], chains.work)
        truth[n : n + n_chained] = chains.truth
    parts = slice(n + n_chained, n_rows)
    of_request = stages["run"][parts]
    work[parts], truth[parts] = requests.work[of_request], requests.truth[of_request]
    work["serial"][n:], work["parts_max"][n:] = np.arange(n, n_rows), 1
    shape = requests.shape_idx
    if shape is not None:  # stages of chains have none; parts have that of their request
        shape = np.concatenate([shape, np.zeros(n_chained, np.int64), shape[of_request]])
    contents = requests.content_idx
    if contents is not None:
        contents = np.append(contents, np.full(n_rows - n, -1)).astype(np.int32)
    return replace(
        requests,
        work=work,
        truth=truth,
        prefixes=_padded(requests.prefixes, n_rows),
        content_idx=contents,
        shape_idx=shape,
        chains=None,
    )


def _fill_stages(
    work: NDArray[np.void], requests: Requests, run: NDArray[np.int32], own: NDArray[np.void]
) -> None:
    """Stages take deadline, tenant and the like from their run; `run` [rows] is its row."""
    for name in STAGE_WORK.names or ():
        work[name] = own[name]
    work["adapter_idx"] = -1
    for name in ("run_arrival_s", "deadline_s", "payload_gib", "tenant_idx", "zone_idx", "priority"):
        work[name] = requests.work[name][run]
    weight = requests.tenant_weight
    work["cost"] = own["units"] if weight is None else own["units"] / weight[work["tenant_idx"]]


def _n_copies(
    groups: NDArray[np.void],
    of_run: NDArray[np.int64],
    runs: NDArray[np.void],
    specs: NDArray[np.void],
    successors: NDArray[np.void],
    n_nodes: int,
) -> int:
    """Copies of outputs that are kept: one for each reader, at most one for each other node."""
    readers = np.zeros(len(groups))
    spec = specs[groups["spec"]]
    for k in range(int((spec["successor_end"] - spec["successor_first"]).max(initial=0))):
        has = np.flatnonzero(spec["successor_first"] + k < spec["successor_end"])
        edge = successors[spec["successor_first"][has] + k]
        target = runs["group"][of_run[has]] + edge["stage"]
        readers[has] += np.where(edge["flow"] == Flow.EACH, 1, groups["count"][target])
    return int((np.minimum(readers, n_nodes - 1) * groups["count"]).sum())


def _padded(prefixes: Prefixes | None, n_rows: int) -> Prefixes | None:
    """Prefixes for all rows: stages have no prompt of their own."""
    if prefixes is None:
        return None
    more = n_rows - len(prefixes.prompt_tokens)
    first = np.append(prefixes.first, np.full(more, prefixes.first[-1]))
    return replace(prefixes, first=first, prompt_tokens=np.append(prefixes.prompt_tokens, np.zeros(more)))


def batch_rows(requests: Requests) -> tuple[NDArray[np.void], int]:
    """Initial BATCH [rows] and the number of groups."""
    work, shape_idx = requests.work, requests.shape_idx
    rows = np.zeros(len(work), BATCH)
    shape = np.zeros(len(work), np.int64) if shape_idx is None else shape_idx
    keys = np.stack([work["class_idx"], work["model_idx"], shape], axis=1)
    groups, group_of = np.unique(keys, axis=0, return_inverse=True)
    rows["group"], rows["next"], rows["leader"] = group_of.reshape(-1), -1, -1
    return rows, len(groups)


@helper
def part_frac(plan: Plan, class_idx: int, images: int, count: int, i: int) -> float:
    """Share of the i-th of `count` parts of a request of so many images (tiles, …), each at least one."""
    classes, most = plan.part_weight.shape
    if class_idx >= classes or count > most:
        return (images // count + (1 if i < images % count else 0)) / images
    total = 0.0
    for k in range(count):
        total += plan.part_weight[class_idx, k]
    before, end, sum_so_far = 0, 0, 0.0
    for k in range(i + 1):  # each part ends at the nearest image that leaves one for each of the others
        sum_so_far += plan.part_weight[class_idx, k]
        nearest = int(images * sum_so_far / total + 0.5)
        before, end = end, max(end + 1, min(nearest, images - (count - 1 - k)))
    return (end - before) / images
