"""The workers of the gateway's chains: sessions of `trimtab.chains`, their runs, and what they have done."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.chains.chain_files import load_chain
from trimtab.chains.graph import Chain
from trimtab.chains.inputs import checked_input
from trimtab.chains.metrics_server import exposition
from trimtab.chains.session import RunHandle, Session
from trimtab.clusters.backends import backend, pool_of
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.config.chain_entries import ChainEntry

_STAGE_STATES = ("queued", "running", "done", "failed", "retries")


@dataclass(slots=True, eq=False)
class Offer:
    """The chains of one configuration, and the workers that run them."""

    entries: Mapping[str, ChainEntry]
    chains: Mapping[str, Chain]
    session: Session
    asked: object  # what it was made from
    n_runs: int = 0


def offered(config: GatewayConfig) -> Offer:
    """Start workers for the chains of a configuration. Raises UsageError for what cannot run."""
    asked = _asked(config)
    chains = {name: replace(load_chain(entry.file), name=name) for name, entry in config.chains.items()}
    workers, folder = config.chain_workers, config.store.chosen_results_folder() / "chains"
    options = {"season_s": workers.season_s} if workers.season_s else {}
    url = config.store.chosen_url()
    folder.mkdir(parents=True, exist_ok=True)
    session = Session(
        list(chains.values()),
        on=backend(workers.on, **pool_of(str(workers.count)), **options),
        policy=workers.policy,
        journal=url if url.startswith("postgresql") else folder,
        values=folder / "values",
        fuse_s=workers.fuse_s,
    )
    return Offer(config.chains, chains, session, asked)


def renewed(config: GatewayConfig, before: Offer | None) -> Offer | None:
    """Start workers for the chains of a configuration; None = it asks for the same as the offer before.

    Modules beside the chain files are imported again. Raises UsageError for what cannot run; then those of
    before stay.
    """
    if before is None:
        return offered(config)
    if _asked(config) == before.asked:
        return None
    files = [entry.file for entry in (*before.entries.values(), *config.chains.values())]
    folders = {path.parent.resolve() for file in files if (path := Path(file.partition(":")[0])).is_file()}
    known = {
        name: module
        for name, module in list(sys.modules.items())
        if "." not in name
        and (file := getattr(module, "__file__", None))
        and Path(file).resolve().parent in folders
    }
    for name in known:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return offered(config)
    except BaseException:
        sys.modules.update(known)
        raise


def _asked(config: GatewayConfig) -> object:
    """What a configuration asks for, and the content of the files that it names."""
    paths = [Path(entry.file.partition(":")[0]) for entry in config.chains.values()]
    contents = [path.read_bytes() for path in paths if path.is_file()]
    return config.chains, config.chain_workers, contents


class ChainWorkers:
    """Runs the chains of an offer. Calls that wait for workers are made in a thread."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._former: list[Offer] = []  # whose runs are not over
        self._handles: dict[str, RunHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def entries(self) -> Mapping[str, ChainEntry]:
        """The chains in the configuration."""
        return self.offer.entries

    @property
    def chains(self) -> Mapping[str, Chain]:
        """The chains that clients may run."""
        return self.offer.chains

    def use(self, offer: Offer) -> None:
        """Begin new runs on this offer. The workers of the one before end with their last run."""
        self._former.append(self.offer)
        self.offer = offer
        self._close_idle()

    def _close_idle(self) -> None:
        for offer in [offer for offer in self._former if not offer.n_runs]:
            self._former.remove(offer)
            task = asyncio.create_task(asyncio.to_thread(offer.session.close))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def checked(self, name: str, given: Any, where: str) -> None:
        """Raises UsageError for what is no input of a chain."""
        checked_input(self.chains[name], given, where)

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
        offer = self.offer
        offer.n_runs += 1
        try:
            handle = await asyncio.to_thread(
                lambda: offer.session.run(
                    name,
                    inputs,
                    tenant=tenant,
                    priority=priority,
                    deadline_s=deadline_s,
                    key=job_id,
                    source=offer.entries[name].file,
                )
            )
            self._handles[job_id] = handle
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            handle.when_over(lambda: loop.call_soon_threadsafe(over.set))
            await over.wait()
            self._handles.pop(job_id, None)
            return handle
        finally:
            offer.n_runs -= 1
            self._close_idle()

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
        tables = self.offer.session.metrics.tables()

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
        return exposition(self.offer.session.metrics)

    async def close(self) -> None:
        """Stop the workers; runs can be resumed."""
        for offer in (*self._former, self.offer):
            await asyncio.to_thread(offer.session.close)
        await asyncio.gather(*self._closing)


def inputs_of(asked: Mapping[str, Any]) -> list[Any]:
    """The inputs of a request."""
    return [asked["input"]] if "input" in asked else list(asked["inputs"])
