"""A host's log of runs. Each record has `run`; that of an attempt also `input`, `stage` and others."""

from __future__ import annotations

import logging

from trimtab.chains.run_progress import Instance
from trimtab.chains.run_state import ChainRun, ItemRun
from trimtab.live.stage_backend import Attempt, StageError

logger = logging.getLogger("trimtab.chains")


def log_begin(run: ChainRun) -> None:
    """A run begins."""
    logger.info("run %s of %s begins", run.id, run.plan.name, extra=_of(run))


def log_end(run: ChainRun) -> None:
    """A run is over."""
    counts = ", ".join(f"{count} {state.value}" for state, count in run.endings.items())
    logger.info("run %s of %s is %s: %s", run.id, run.plan.name, run.state.value, counts, extra=_of(run))


def log_failure(item: ItemRun, at: Instance, attempt: Attempt, node: str, error: StageError) -> None:
    """An attempt has no result. Whether that matters is told at the end of its input."""
    stage = item.run.plan.steps[at.step].name
    told = {
        "input": item.number,
        "stage": stage,
        "instance": at.idx,
        "attempt": attempt.attempt,
        "node": node,
    }
    logger.info(
        "run %s input %d %s[%d] attempt %d on %s failed: %s",
        item.run.id, item.number, stage, at.idx, attempt.attempt, node, error,
        extra={**_of(item.run), **told, "cause": error.cause.value, "trace": error.trace},
    )  # fmt: skip


def _of(run: ChainRun) -> dict[str, str]:
    return {"run": run.id, "chain": run.plan.name, "tenant": run.options.tenant}
