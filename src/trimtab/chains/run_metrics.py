"""Metrics of running chains: instances of each stage by state, how long they take, what they make."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from trimtab.chains.graph import Chain
from trimtab.chains.run_state import ChainRun, State
from trimtab.live.metric_family import Family, Row, Table, counter, gauge, histogram
from trimtab.live.stage_backend import Outcome

SERVICE_BOUNDS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
_STAGE: Final = ("chain", "stage")

STAGE_FAMILIES: Final[tuple[Family, ...]] = (
    gauge("trimtab_stage_queued", "Instances of a stage that are ready and wait.", *_STAGE),
    gauge("trimtab_stage_running", "Instances of a stage that workers have.", *_STAGE),
    counter("trimtab_stage_done_total", "Instances with a result, those from the store too.", *_STAGE),
    counter("trimtab_stage_failed_total", "Instances that got no further attempt.", *_STAGE),
    counter("trimtab_stage_skipped_total", "Instances that had nothing to do.", *_STAGE),
    counter("trimtab_stage_store_hits_total", "Instances that a kept result answered.", *_STAGE),
    counter("trimtab_stage_retries_total", "Further attempts.", *_STAGE),
    counter("trimtab_stage_attempts_failed_total", "Attempts without a result, by cause.", *_STAGE, "cause"),
    histogram(
        "trimtab_stage_service_seconds", "Time in the code of a stage.", *_STAGE, bounds=SERVICE_BOUNDS_S
    ),
    counter("trimtab_stage_load_seconds_total", "Time to load code and construct classes.", *_STAGE),
    counter("trimtab_stage_output_bytes_total", "Serialised size of outputs.", *_STAGE),
    gauge(
        "trimtab_stage_cost_error_ratio",
        "Mean absolute error of the expected service ÷ mean service, of all attempts after the first.",
        *_STAGE,
    ),
    gauge("trimtab_chain_runs", "Runs under way.", "chain"),
    gauge("trimtab_chain_inputs_in_flight", "Inputs of runs under way that have begun.", "chain"),
    counter("trimtab_chain_inputs_total", "Inputs that are over, by state.", "chain", "state"),
)
_COUNTS: Final = {  # fields of StageCounts that only grow
    "done": "trimtab_stage_done_total",
    "failed": "trimtab_stage_failed_total",
    "skipped": "trimtab_stage_skipped_total",
    "reused": "trimtab_stage_store_hits_total",
    "retries": "trimtab_stage_retries_total",
}


class StageMetrics:
    """Counts for one host. It is read from other threads."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {family.name: {} for family in STAGE_FAMILIES}
        self._service_s: dict[str, Row] = {}  # by the names of codes
        self._failed: dict[tuple[str, str], Row] = {}
        self._load_s: dict[str, Row] = {}
        self._bytes: dict[str, Row] = {}
        self._chains: list[Chain] = []
        self._runs: list[ChainRun] = []
        self._error_frac: Callable[[str], float] = lambda _: float("nan")

    def begin(self, chains: list[Chain], error_frac: Callable[[str], float]) -> None:
        """The host has these chains; `error_frac` is that of the expected service, by the name of a code."""
        self._chains, self._error_frac = chains, error_frac
        for chain in chains:
            for step in chain.steps:
                labels = chain.name, step.name
                self._service_s[step.code_name] = [0.0] * (len(SERVICE_BOUNDS_S) + 2)
                self._load_s[step.code_name], self._bytes[step.code_name] = [0.0], [0.0]
                self._tables["trimtab_stage_service_seconds"][labels] = self._service_s[step.code_name]
                self._tables["trimtab_stage_load_seconds_total"][labels] = self._load_s[step.code_name]
                self._tables["trimtab_stage_output_bytes_total"][labels] = self._bytes[step.code_name]
                for name in _COUNTS.values():
                    self._tables[name][labels] = [0.0]
            for state in (State.DONE, State.FAILED, State.CANCELLED):
                self._tables["trimtab_chain_inputs_total"][chain.name, state.value] = [0.0]

    def watch(self, run: ChainRun) -> None:
        """A run begins."""
        over = [known for known in self._runs if _is_over(known)]
        self._runs = [known for known in self._runs if not _is_over(known)] + [run]
        for known in over:
            _add_counts(self._tables, known)

    def note(self, stage: str, outcome: Outcome) -> None:
        """An attempt at a stage, by the name of its code, has ended."""
        if outcome.error is not None:
            self._note_failure(stage, outcome.error.cause.value)
            return
        row = self._service_s[stage]
        row[bisect_left(SERVICE_BOUNDS_S, outcome.service_s)] += 1.0
        row[-1] += outcome.service_s
        self._load_s[stage][0] += outcome.load_s
        self._bytes[stage][0] += outcome.outputs[0].size_bytes

    def _note_failure(self, stage: str, cause: str) -> None:
        row = self._failed.get((stage, cause))
        if row is None:
            row = self._failed[stage, cause] = [0.0]
            chain, _, name = stage.partition("/")
            self._tables["trimtab_stage_attempts_failed_total"][chain, name, cause] = row
        row[0] += 1.0

    def tables(self) -> dict[str, Table]:
        """The rows of all families now."""
        found = {
            name: {labels: list(row) for labels, row in list(table.items())}
            for name, table in self._tables.items()
        }
        stages = [(chain.name, step.name) for chain in self._chains for step in chain.steps]
        queued, running = _zeros(stages), _zeros(stages)
        in_flight, runs = (_zeros([(chain.name,) for chain in self._chains]) for _ in range(2))
        for run in list(self._runs):
            _add_counts(found, run)
            if _is_over(run):
                continue
            runs[run.chain.name,][0] += 1.0
            in_flight[run.chain.name,][0] += len(run.items)
            for step, counts in zip(run.chain.steps, run.counts, strict=False):
                queued[run.chain.name, step.name][0] += counts.queued
                running[run.chain.name, step.name][0] += counts.running
        found["trimtab_stage_queued"], found["trimtab_stage_running"] = queued, running
        found["trimtab_chain_inputs_in_flight"], found["trimtab_chain_runs"] = in_flight, runs
        found["trimtab_stage_cost_error_ratio"] = {
            (chain.name, step.name): [self._error_frac(step.code_name)]
            for chain in self._chains
            for step in chain.steps
        }
        return found


def _zeros(labels: Iterable[tuple[str, ...]]) -> Table:
    return {each: [0.0] for each in labels}


def _is_over(run: ChainRun) -> bool:
    return run.is_over or run.fault is not None


def _add_counts(tables: dict[str, Table], run: ChainRun) -> None:
    """Add what a run has done so far."""
    chain = run.chain.name
    for step, counts in zip(run.chain.steps, run.counts, strict=False):
        for field, name in _COUNTS.items():
            tables[name][chain, step.name][0] += getattr(counts, field)
    for state, count in list(run.endings.items()):
        tables["trimtab_chain_inputs_total"][chain, state.value][0] += count
