"""Views of runs from the journal: lists, summaries, costs of stages, models; asks for cancelling."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from trimtab.chains.graph import Chain
from trimtab.chains.inputs import sizes
from trimtab.chains.recording import default_folder, journal_url
from trimtab.chains.run_costs import ChainCosts
from trimtab.chains.run_timeline import RunTimeline, stages_of, timeline_of
from trimtab.errors import UsageError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import InputRecord, ResultRecord, RunRecord
from trimtab.live.model_scope import ModelRecord
from trimtab.live.value_codec import decode

T = TypeVar("T")
HEADINGS: Final = ("model", "runs as", "outputs differ by", "call (ms)", "file (MB)", "memory (MB)")
EXPLAINED: Final = (
    "Plain → optimised, in the first worker. A call is the median of calls with an example; memory is what "
    "the process held more, with the libraries of the runtime."
)


def listed(place: str | Path | None, limit: int) -> list[dict[str, Any]]:
    """The newest runs."""
    return [_run(record) for record in with_journal(place, lambda journal: journal.newest(limit))]


def summary(place: str | Path | None, run_id: str) -> dict[str, Any]:
    """A run, its inputs by state, and its stages."""
    return with_journal(place, lambda journal: _summary(journal, run_id))


def timeline(place: str | Path | None, run_id: str) -> RunTimeline:
    """When each stage of a run waited and ran."""
    return with_journal(place, lambda journal: timeline_of(journal, run_id))


def cancel(place: str | Path | None, run_id: str) -> None:
    """Ask for a run to be cancelled. Raises UsageError if no process works on it."""

    async def asked(journal: RunJournal) -> None:
        await journal.find(run_id)
        if not await journal.request_cancel(run_id):
            raise UsageError(
                "no process works on this run", field="run", value=run_id, expected="a running one"
            )

    with_journal(place, asked)


def with_journal(place: str | Path | None, work: Callable[[RunJournal], Awaitable[T]]) -> T:
    """The result of `work` on a journal."""

    async def main() -> T:
        journal = RunJournal(journal_url(place or default_folder()))
        await journal.open()
        try:
            return await work(journal)
        finally:
            await journal.close()

    return asyncio.run(main())


async def _summary(journal: RunJournal, run_id: str) -> dict[str, Any]:
    record = await journal.find(run_id)
    inputs = await journal.inputs(run_id)
    attempts = sorted(await journal.attempts(run_id), key=lambda a: a.started_s)
    stages: dict[str, dict[str, Any]] = {shape.name: _no_work() for shape in stages_of(record, attempts)}
    for attempt in attempts:  # of a changed chain, after a resume, also those that it did not begin with
        stages.setdefault(attempt.stage, _no_work())["attempts"] += 1
    for result in await journal.results(run_id):
        stage = stages.setdefault(result.stage, _no_work())
        stage["done"] += 1
        stage["service_s"] += result.service_s
        stage["load_s"] += result.load_s
        stage["bytes"] += result.bytes
        stage["peak_gib"] = max(stage["peak_gib"], result.peak_gib)
    return {
        **_run(record),
        "inputs": dict(Counter(row.state for row in inputs)),
        "failures": {row.number: row.error for row in inputs if row.error},
        "stages": stages,
        "models": {
            stage: [record._asdict() for record in records]
            for stage, records in models_of_run(record).items()
        },
    }


def _no_work() -> dict[str, Any]:
    """Of a stage that did not run."""
    return {"done": 0, "attempts": 0, "service_s": 0.0, "load_s": 0.0, "peak_gib": 0.0, "bytes": 0}


def _run(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.id,
        "chain": record.chain,
        "state": record.state,
        "tenant": record.tenant,
        "key": record.key,
        "created_s": record.created_s,
        "ended_s": record.ended_s,
        "source": record.source,
        "tags": json.loads(record.options)["tags"],
    }


def costs_of_run(chain: Chain, place: str | Path | None, run_id: str) -> ChainCosts:
    """Mean costs of stages in a run of this chain. Raises UsageError for a run of another one, or none.

    Nodes are taken to be as fast as those of the run.
    """

    async def read(journal: RunJournal) -> ChainCosts:
        record = await journal.find(run_id)
        if record.chain != chain.name:
            raise UsageError(
                f"a run of {record.chain}", field="run", value=run_id, expected=f"a run of {chain.name}"
            )
        return mean_costs(chain, await journal.inputs(run_id), await journal.results(run_id))

    return with_journal(place, read)


def mean_costs(chain: Chain, inputs: Sequence[InputRecord], results: Sequence[ResultRecord]) -> ChainCosts:
    """Service for each unit of size, loading of a worker, and items of lists, on average."""
    size_of = {row.number: sizes(chain, decode(row.given)) for row in inputs}
    steps = {step.name: k for k, step in enumerate(chain.steps)}
    service_s, units = defaultdict[str, float](float), defaultdict[str, float](float)
    loads_s = defaultdict[str, list[float]](list)
    instances = Counter[str]()
    for result in results:
        if (k := steps.get(result.stage)) is None:
            continue
        service_s[result.stage] += result.service_s
        units[result.stage] += size_of[result.number][k]
        instances[result.stage] += 1
        loads_s[result.stage].append(result.load_s)
    return ChainCosts(
        {name: total_s / units[name] for name, total_s in service_s.items() if units[name] > 0.0},
        {name: _of_first(found_s) for name, found_s in loads_s.items()},
        _items(chain, instances),
    )


def _items(chain: Chain, instances: Mapping[str, int]) -> dict[str, int]:
    """Items in the outputs of stages that are mapped over, on average."""
    found = {}
    for step in chain.steps:
        for source in step.sources:
            if source.step >= 0 and source.split >= 0:
                before = chain.steps[source.step].name
                if before in instances:
                    found[before] = round(instances[step.name] / instances[before])
    return found


def _of_first(loads_s: Sequence[float]) -> float:
    """Mean load of the attempts that were a worker's first: it is far longer than that of the others."""
    first_s = [load_s for load_s in loads_s if load_s > 0.1 * max(loads_s)]
    return sum(first_s) / len(first_s) if first_s else 0.0


def models_of_run(record: RunRecord) -> dict[str, list[ModelRecord]]:
    """The optimised models of a run of the journal, by stage."""
    told = json.loads(record.options).get("models", {})
    return {stage: [ModelRecord(*(_number(v) for v in row)) for row in rows] for stage, rows in told.items()}


def _number(value: Any) -> Any:
    return math.nan if value is None else value


def model_rows(models: Mapping[str, Sequence[ModelRecord]]) -> list[tuple[str, ...]]:
    """A row of texts for each model, behind its stage."""
    return [(stage, *_cells(record)) for stage, records in models.items() for record in records]


def _cells(r: ModelRecord) -> tuple[str, ...]:
    return (
        r.model,
        r.how,
        f"{100 * r.error:.2g} % (at most {100 * r.tolerance:.3g} %)",
        _from_to(1e3 * r.plain_s, 1e3 * r.call_s),
        _from_to(r.plain_bytes / 1e6, r.file_bytes / 1e6),
        _from_to(r.plain_memory_bytes / 1e6, r.memory_bytes / 1e6),
    )


def _from_to(plain: float, optimised: float) -> str:
    return "not measured" if math.isnan(optimised) else f"{plain:.3g} → {optimised:.3g}"
