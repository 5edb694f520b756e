"""The workers of the gateway's chains: one session of `trimtab.chains`, its runs, and what they have done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.chains.chain_files import load_chain
from trimtab.chains.graph import Chain
from trimtab.chains.metrics_server import exposition
from trimtab.chains.session import RunHandle, Session, check_types
from trimtab.clusters.backends import backend
from trimtab.clusters.worker_counts import pool_of
from trimtab.gateway.config import GatewayConfig

_STAGE_STATES = ("queued", "running", "done", "failed", "retries")


class ChainWorkers:
    """Runs the chains of a configuration. Calls that wait for workers are made in a thread."""

    def __init__(self, config: GatewayConfig) -> None:
        """Start the workers. Raises UsageError and ChainError for what cannot run."""
        self.entries = config.chains
        self.chains: Mapping[str, Chain] = {
            name: replace(load_chain(entry.file), name=name) for name, entry in config.chains.items()
        }
        workers, folder = config.chain_workers, config.store.chosen_results_folder() / "chains"
        options = {"season_s": workers.season_s} if workers.season_s else {}
        url = config.store.chosen_url()
        folder.mkdir(parents=True, exist_ok=True)
        self._session = Session(
            list(self.chains.values()),
            on=backend(workers.on, **pool_of(str(workers.count)), **options),
            policy=workers.policy,
            journal=url if url.startswith("postgresql") else folder,
            values=folder / "values",
            fuse_s=workers.fuse_s,
        )
        self._handles: dict[str, RunHandle] = {}

    def checked(self, name: str, given: Any, where: str) -> None:
        """Raises UsageError for what is no input of a chain."""
        check_types(self.chains[name], given, where)

    async def run(
        self,
        job_id: str,
        name: str,
        inputs: list[Any],
        *,
        tenant: str,
        priority: int,
        deadline_s: float,
    ) -> RunHandle:
        """Begin the run of a job, or go on with it, and wait for its end.

        Raises UsageError while another process works on it.
        """
        handle = await asyncio.to_thread(
            lambda: self._session.run(
                self.chains[name],
                inputs,
                tenant=tenant,
                priority=priority,
                deadline_s=deadline_s,
                key=job_id,
                source=self.entries[name].file,
            )
        )
        self._handles[job_id] = handle
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        handle.when_over(lambda: loop.call_soon_threadsafe(over.set))
        await over.wait()
        self._handles.pop(job_id, None)
        return handle

    def cancel(self, job_id: str) -> None:
        """End the run of a job."""
        if (handle := self._handles.pop(job_id, None)) is not None:
            handle.cancel()

    def progress(self, job_id: str) -> dict[str, Any] | None:
        """How far the run of a job is; None = it does not run here."""
        handle = self._handles.get(job_id)
        if handle is None:
            return None
        stages = {
            stage: {state: getattr(counts, state) for state in _STAGE_STATES}
            for stage, counts in handle.counts.items()
        }
        over = {state.value: count for state, count in handle.endings.items()}
        return {"inputs": {"total": handle.n_inputs, **over}, "stages": stages}

    def status(self) -> dict[str, Any]:
        """The figures of all chains, for the dashboard."""
        tables = self._session.metrics.tables()

        def number(family: str, *labels: str) -> int:
            return int(tables[family][labels][0])

        return {
            name: {
                "runs": number("trimtab_chain_runs", name),
                "stages": {
                    step.name: {
                        "queued": number("trimtab_stage_queued", name, step.name),
                        "running": number("trimtab_stage_running", name, step.name),
                        "done": number("trimtab_stage_done_total", name, step.name),
                        "failed": number("trimtab_stage_failed_total", name, step.name),
                    }
                    for step in chain.steps
                },
            }
            for name, chain in self.chains.items()
        }

    def exposition(self) -> bytes:
        """The metrics of the stages."""
        return exposition(self._session.metrics)

    async def close(self) -> None:
        """Stop the workers; runs can be resumed."""
        await asyncio.to_thread(self._session.close)


def inputs_of(asked: Mapping[str, Any]) -> list[Any]:
    """The inputs of a request."""
    return [asked["input"]] if "input" in asked else list(asked["inputs"])
