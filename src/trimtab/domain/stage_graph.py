"""Longest paths through the stages of runs, for all runs of a template at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Chains, Flow, Templates, ranges
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import Requests, true_service_s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StageRows:
    """The rows of one stage in the runs of one template.

    `rows` [instances] are in the order of runs; `run` [instances] is the number of the run among them.
    """

    rows: NDArray[np.int64]
    run: NDArray[np.int64]


def edges_of(templates: Templates, stage: int) -> list[tuple[int, Flow]]:
    """The successors of a stage by position, and how they read its output."""
    spec, base = templates.stages[stage], _first_of(templates, stage)
    edges = templates.successors[spec["successor_first"] : spec["successor_end"]]
    return [(base + int(edge["stage"]), Flow(int(edge["flow"]))) for edge in edges]


def inputs_of(templates: Templates, stage: int) -> list[tuple[int, Flow]]:
    """The predecessors of a stage by position, and how it reads their outputs."""
    spec, base = templates.stages[stage], _first_of(templates, stage)
    edges = templates.inputs[spec["input_first"] : spec["input_end"]]
    return [(base + int(edge["stage"]), Flow(int(edge["flow"]))) for edge in edges]


def _first_of(templates: Templates, stage: int) -> int:
    return int(templates.first[np.searchsorted(templates.first, stage, side="right") - 1])


def in_reverse(templates: Templates, template: int) -> list[int]:
    """Stages of a template by position, each after all of its successors."""
    first, end = int(templates.first[template]), int(templates.first[template + 1])
    waits = {stage: len(edges_of(templates, stage)) for stage in range(first, end)}
    predecessors: dict[int, list[int]] = {stage: [] for stage in waits}
    for stage in waits:
        for successor, _ in edges_of(templates, stage):
            predecessors[successor].append(stage)
    ready, order = [stage for stage, count in waits.items() if count == 0], []
    while ready:
        order.append(stage := ready.pop())
        for before in predecessors[stage]:
            waits[before] -= 1
            if waits[before] == 0:
                ready.append(before)
    return order


def rows_of_stages(chains: Chains) -> Iterator[tuple[int, NDArray[np.int64], dict[int, StageRows]]]:
    """For each template: its number, its runs among all runs, and the rows of each of its stages."""
    of_run = chains.template_idx[chains.template_idx >= 0]
    sizes = np.diff(chains.templates.first)[of_run]
    first_group = np.cumsum(sizes) - sizes
    first_row = np.cumsum(chains.counts, dtype=np.int64) - chains.counts
    for template in np.unique(of_run):
        runs = np.flatnonzero(of_run == template)
        stages = {}
        for k in range(int(sizes[runs[0]])):
            groups = first_group[runs] + k
            counts = chains.counts[groups]
            run = np.repeat(np.arange(len(runs)), counts)
            rows = ranges(first_row[groups], counts)
            stages[int(chains.templates.first[template]) + k] = StageRows(rows, run)
        yield int(template), runs, stages


def upward_ranks_s(chains: Chains, seconds: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Seconds from the start of each row to the end of its run on the longest path, and the next row there.

    `seconds` [rows] is the time of each row. The second array holds -1 where no row follows.
    Upward rank of HEFT (Topcuoglu, Hariri and Wu 2002, section 4.1), without communication.
    """
    rank_s, after = seconds.copy(), np.full(len(seconds), -1, np.int64)
    for template, _, stages in rows_of_stages(chains):
        for stage in in_reverse(chains.templates, template):
            here = stages[stage]
            longest_s, following = np.zeros(len(here.rows)), np.full(len(here.rows), -1, np.int64)
            for successor, flow in edges_of(chains.templates, stage):
                there_s, row = _read_by(here, stages[successor], flow, rank_s)
                is_longer = there_s > longest_s
                longest_s = np.where(is_longer, there_s, longest_s)
                following = np.where(is_longer, row, following)
            rank_s[here.rows] = seconds[here.rows] + longest_s
            after[here.rows] = following
    return rank_s, after


def _read_by(
    here: StageRows, there: StageRows, flow: Flow, rank_s: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    """The largest rank among the rows that read each row of a stage, and that row."""
    if flow is Flow.EACH:
        return rank_s[there.rows], there.rows
    order = np.lexsort((rank_s[there.rows], there.run))
    last = np.searchsorted(there.run[order], here.run, side="right") - 1
    best = there.rows[order[last]]
    return rank_s[best], best


def best_seconds(cluster: Cluster, chains: Chains) -> Floats:
    """True service seconds of each row on the best node type, [rows]; 0 for a skipped row."""
    best_s = true_service_s(cluster, Requests(chains.work, chains.truth)).min(axis=1)
    return np.where(skipped_rows(chains), 0.0, best_s)


def skipped_rows(chains: Chains) -> NDArray[np.bool_]:
    """Rows that are not served: their condition does not hold, or all of their inputs are skipped, [rows]."""
    is_empty = chains.is_empty
    skipped = chains.is_skipped & ~is_empty
    for template, _, stages in rows_of_stages(chains):
        for stage in reversed(in_reverse(chains.templates, template)):
            here, inputs = stages[stage], inputs_of(chains.templates, stage)
            is_unfed = np.full(len(here.rows), len(inputs) > 0)
            for before, flow in inputs:
                is_unfed &= ~any_of(here, stages[before], flow, ~skipped)
            skipped[here.rows] |= is_unfed
    return skipped | is_empty


def any_of(here: StageRows, before: StageRows, flow: Flow, holds: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether something holds of any row of another stage that each row of a stage reads."""
    if flow is Flow.EACH:
        return holds[before.rows]
    n_runs = int(max(here.run.max(initial=-1), before.run.max(initial=-1))) + 1
    return np.bincount(before.run, holds[before.rows], n_runs)[here.run] > 0.0


def critical_paths_s(cluster: Cluster, chains: Chains) -> Floats:
    """Longest path of each run with the best speeds and no transfers, [runs]: it bounds its completion."""
    return longest_of_runs_s(chains, best_seconds(cluster, chains))


def longest_of_runs_s(chains: Chains, seconds: Floats) -> Floats:
    """Longest path of each run, [runs]; `seconds` [rows] is the time of each row."""
    rank_s, _ = upward_ranks_s(chains, seconds)
    n_runs = int((chains.template_idx >= 0).sum())
    longest_s = np.zeros(n_runs)
    for _, runs, stages in rows_of_stages(chains):
        for stage in stages.values():
            np.maximum.at(longest_s, runs[stage.run], rank_s[stage.rows])
    return longest_s


def latest_inputs(chains: Chains, finish_s: Floats) -> NDArray[np.int64]:
    """The input of each row that was finished last, [rows]; -1 = none. `finish_s` [rows], nan = never."""
    latest, at_s = np.full(len(finish_s), -1, np.int64), np.full(len(finish_s), -np.inf)
    known_s = np.nan_to_num(finish_s, nan=-np.inf)
    for _, _, stages in rows_of_stages(chains):
        for stage, here in stages.items():
            for successor, flow in edges_of(chains.templates, stage):
                there = stages[successor]
                if flow is Flow.EACH:
                    rows = here.rows
                else:
                    order = np.lexsort((known_s[here.rows], here.run))
                    last = np.searchsorted(here.run[order], there.run, side="right") - 1
                    rows = here.rows[order[last]]
                is_later = known_s[rows] > at_s[there.rows]
                latest[there.rows] = np.where(is_later, rows, latest[there.rows])
                at_s[there.rows] = np.maximum(at_s[there.rows], known_s[rows])
    return latest
