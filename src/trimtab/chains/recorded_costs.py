"""What the stages of a chain cost in a run of the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from trimtab.chains.declared_costs import ChainCosts
from trimtab.chains.graph import Chain
from trimtab.chains.inputs import sizes
from trimtab.chains.plan import ChainPlan, planned
from trimtab.chains.run_reports import with_journal
from trimtab.errors import UsageError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import InputRecord, ResultRecord
from trimtab.live.value_codec import decode


def costs_of_run(chain: Chain, place: str | Path | None, run_id: str) -> ChainCosts:
    """Mean costs of stages in a run of this chain. Raises UsageError for a run of another one, or none.

    Nodes are taken to be as fast as those of the run.
    """
    plan = planned(chain)

    async def read(journal: RunJournal) -> ChainCosts:
        record = await journal.find(run_id)
        if record.chain != chain.name:
            raise UsageError(
                f"a run of {record.chain}", field="run", value=run_id, expected=f"a run of {chain.name}"
            )
        return mean_costs(plan, await journal.inputs(run_id), await journal.results(run_id))

    return with_journal(place, read)


def mean_costs(plan: ChainPlan, inputs: Sequence[InputRecord], results: Sequence[ResultRecord]) -> ChainCosts:
    """Service for each unit of size, loading of a worker, and items of lists, on average."""
    size_of = {row.number: sizes(plan, decode(row.given)) for row in inputs}
    steps = {step.name: k for k, step in enumerate(plan.steps)}
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
        _items(plan, instances),
    )


def _items(plan: ChainPlan, instances: Mapping[str, int]) -> dict[str, int]:
    """Items in the outputs of stages that are mapped over, on average."""
    found = {}
    for step in plan.steps:
        for source in step.sources:
            if source.step >= 0 and source.split >= 0:
                before = plan.steps[source.step].name
                if before in instances:
                    found[before] = round(instances[step.name] / instances[before])
    return found


def _of_first(loads_s: Sequence[float]) -> float:
    """Mean load of the attempts that were a worker's first: it is far longer than that of the others."""
    first_s = [load_s for load_s in loads_s if load_s > 0.1 * max(loads_s)]
    return sum(first_s) / len(first_s) if first_s else 0.0
