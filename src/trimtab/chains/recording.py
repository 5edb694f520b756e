"""Remembers what a host does: attempts and results in the journal, large values in the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import platformdirs

from trimtab.chains.graph import Chain
from trimtab.chains.inputs import sent
from trimtab.chains.memo import Memo
from trimtab.chains.run_progress import Output, StageInstance, is_inline, packed, unpacked
from trimtab.chains.run_state import NO_PLACES, ChainRun, Ending, InputPlaces, ItemRun, RunOptions
from trimtab.chains.run_timeline import shapes_of
from trimtab.chains.value_refs import ValueRefs
from trimtab.errors import TrimtabError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import ACTIVE, AttemptRecord, ResultRecord, RunRecord
from trimtab.jobs.store.outages import reason_of
from trimtab.jobs.value_store import ValueStore, value_store
from trimtab.live.model_scope import ModelRecord
from trimtab.live.stage_backend import Attempt, Outcome, Ref
from trimtab.live.value_codec import decode

MEMO_BYTES: Final = 20 << 30  # of results that are kept for equal inputs

PEAK_RUNS: Final = 5  # of a chain, that its stages' memory is learned from
PEAK_RESULTS: Final = 20  # of a stage

Get = Callable[[Ref], Awaitable[bytes]]


class NotRecorded(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """The journal or the store cannot keep what happens, so the host stops."""


def default_folder() -> Path:
    """Where journal and store are by default."""
    return Path(platformdirs.user_data_dir("trimtab")) / "chains"


def journal_url(place: str | Path) -> str:
    """The URL of the journal's database in a folder, or the URL itself."""
    return str(place) if "://" in str(place) else f"sqlite:///{Path(place).absolute() / 'journal.db'}"


def values_of(place: str | Path | None, values: str | Path = "") -> ValueStore:
    """The store of a journal's large values: in its folder, unless `values` says where."""
    folder = default_folder() if place is None or "://" in str(place) else Path(place)
    return value_store(values or folder / "values")


class Recorder:
    """A journal and a store of values.

    Args:
        place: a folder for both; or the URL of a database, then `values` is the folder or URL of the store.
        get: the bytes of a value that a backend has.
        refs: holds values until they are stored.
        cancelled: called with a run's id when another process wants it cancelled.
        failed: called when something cannot be kept.
    """

    def __init__(
        self,
        place: str | Path,
        values: str | Path = "",
        *,
        get: Get,
        refs: ValueRefs,
        cancelled: Callable[[str], None],
        failed: Callable[[BaseException], None],
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        url = journal_url(place)
        self._store = values_of(place, values)
        self._failed, self._get, self._refs = failed, get, refs
        self.journal = RunJournal(url, cancelled=cancelled, failed=self._on_failure)
        self.memo = Memo(self.journal, self._store, memo_bytes)
        self._saves: set[asyncio.Task[None]] = set()
        self._stored: set[str] = set()  # digests that are in the store for certain

    async def open(self, chains: Sequence[Chain]) -> None:
        """Open the journal, and read what is kept for equal inputs."""
        await self.journal.open()
        await self.memo.open(chains)

    async def peaks_gib(self, chains: Sequence[Chain]) -> dict[str, float]:
        """The memory that stages took in their last runs, by the names of their codes; those seen often."""
        found = {}
        for chain in chains:
            names = {step.name: step.code_name for step in chain.steps}
            for peak in await self.journal.peaks(chain.name, PEAK_RUNS):
                if peak.stage in names and peak.results >= PEAK_RESULTS and peak.gib > 0.0:
                    found[names[peak.stage]] = peak.gib
        return found

    async def close(self) -> None:
        """Store what waits."""
        await self._saved()
        await self.memo.close()
        await self.journal.close()

    def _on_failure(self, error: BaseException) -> None:
        self._failed(NotRecorded(f"results cannot be kept: {reason_of(error)}"))

    # Runs.

    async def begin(
        self, run: ChainRun, inputs: Sequence[tuple[int, Mapping[str, Any]]], source: str
    ) -> RunRecord:
        """Store a run; returns it, or the run which has its key."""
        options = run.options
        told = {
            "priority": options.priority,
            "deadline_s": options.deadline_s,
            "tags": dict(options.tags),
            "stages": shapes_of(run.chain),
            "places": options.places,
        }
        record = RunRecord(
            id=run.id,
            chain=run.chain.name,
            tenant=options.tenant,
            key=options.key or None,
            state=ACTIVE,
            options=json.dumps(told),
            source=source,
            created_s=time.time(),
            ended_s=None,
            owner=self.journal.owner,
            cancel_requested=False,
        )
        rows = [(number, sent(given, f"inputs[{number}]")) for number, given in inputs]
        return await self.journal.begin(record, rows)

    @staticmethod
    def options_of(record: RunRecord) -> RunOptions:
        """The options of a run that goes on. Its deadline is that of the run, not of its processes."""
        told = json.loads(record.options)
        given_s = told["deadline_s"] if told["deadline_s"] is not None else float("inf")
        deadline_s = given_s - (time.time() - record.created_s)
        unit, firsts, starts = told.get("places", NO_PLACES)
        places = InputPlaces(unit, tuple(firsts), tuple(starts))
        return RunOptions(told["priority"], deadline_s, record.tenant, told["tags"], record.key or "", places)

    async def load(self, run: ChainRun, *, retry_failed: bool) -> list[tuple[int, Mapping[str, Any]]]:
        """Take over a run: fill in what is known of it; returns its inputs but those that have failed."""
        await self.journal.take_over(run.id)
        if retry_failed:
            await self.journal.begin_failed_again(run.id)
        step_of = {step.name: k for k, step in enumerate(run.chain.steps)}
        for result in await self.journal.results(run.id):
            if result.stage in step_of:
                at = StageInstance(step_of[result.stage], result.instance)
                output = unpacked(result.output)
                if all(ref.data is not None or self._store.has(ref.digest) for ref in output.refs):
                    run.known[result.number, at] = output
        for attempt in await self.journal.attempts(run.id):
            if attempt.stage in step_of:
                at = StageInstance(step_of[attempt.stage], attempt.instance)
                tried = run.tried.setdefault(attempt.number, {})
                tried[at] = max(tried.get(at, 0), attempt.attempt)
        inputs = []
        for row in await self.journal.inputs(run.id):
            if row.state in (ACTIVE, "done"):
                inputs.append((row.number, decode(row.given)))
                if row.state == "done":
                    run.done_before.add(row.number)
            else:
                run.failed_before[row.number] = row.error or row.state
        return inputs

    async def end(self, run: ChainRun, state: str) -> None:
        """A run is over."""
        await self._saved()
        await self.journal.end(run.id, state)

    # What happens.

    def note_attempt(
        self,
        item: ItemRun,
        at: StageInstance,
        attempt: Attempt,
        node: str,
        durable: Callable[[], None] | None = None,
    ) -> None:
        """An attempt is about to begin; `durable` is called when that is stored."""
        stage = item.run.chain.steps[at.step].name
        record = AttemptRecord(item.number, stage, at.idx, attempt.attempt, node, time.time())
        self.journal.note_attempt(item.run.id, record, durable)

    def note_result(
        self, item: ItemRun, at: StageInstance, attempt: Attempt, node: str, output: Output, outcome: Outcome
    ) -> None:
        """An instance has its result. Large values go to the store first."""
        large = [ref for ref in output.refs if not is_inline(ref) and ref.digest not in self._stored]
        record = ResultRecord(
            number=item.number,
            stage=item.run.chain.steps[at.step].name,
            instance=at.idx,
            attempt=attempt.attempt,
            node=node,
            output=packed(output),
            bytes=output.whole.size_bytes,
            service_s=outcome.service_s,
            load_s=outcome.load_s,
            peak_gib=outcome.peak_gib,
            ended_s=time.time() - outcome.followed_s,
            worker=outcome.worker,
        )
        key = item.memo_keys.get(at, "")
        if large:
            item.saves += 1
            self._refs.hold(large)
            self._spawn(self._save(item, large, record, key))
        else:
            self._note(item.run.id, record, key)

    def note_input(self, item: ItemRun, ending: Ending) -> None:
        """An input is over."""
        error = "" if ending.failure is None else str(ending.failure)
        if item.saves:
            item.ending = ending  # noted when its values are stored
        else:
            self.journal.note_input(item.run.id, item.number, ending.state.value, error)

    def _note(self, run_id: str, record: ResultRecord, key: str) -> None:
        self.journal.note_result(run_id, record)
        if key:
            self.memo.keep(key, record.output, record.bytes, record.service_s)

    def note_models(self, run_id: str, stage: str, records: Sequence[ModelRecord]) -> None:
        """Models of a stage are optimised, as measured by a worker."""

        async def note() -> None:
            try:
                await self.journal.note_models(run_id, stage, records)
            except Exception as error:
                self._on_failure(error)

        self._spawn(note())

    async def _save(self, item: ItemRun, refs: Sequence[Ref], record: ResultRecord, key: str) -> None:
        try:
            for ref in refs:
                data = ref.data if ref.data is not None else await self._get(ref)
                await asyncio.to_thread(self._store.put, ref.digest, data)
                self._stored.add(ref.digest)
        except Exception as error:
            self._on_failure(error)
            return
        finally:
            self._refs.let_go(refs)
        self._note(item.run.id, record, key)
        item.saves -= 1
        if item.ending is not None:
            self.note_input(item, item.ending)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _saved(self) -> None:
        while self._saves:
            await asyncio.wait(list(self._saves))

    async def stored(self, ref: Ref) -> bytes:
        """The bytes of a value in the store. Raises FileNotFoundError."""
        return await asyncio.to_thread(self._store.get, ref.digest)
