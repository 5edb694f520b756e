"""Sessions: a backend with its workers, which runs of some chains share; and the handle of a run."""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.chains.graph import Chain
from trimtab.chains.host import ChainHost
from trimtab.chains.host_thread import HostThread, let_ctrl_c_end_waits
from trimtab.chains.inputs import named_inputs
from trimtab.chains.results import Part, Parts, Result
from trimtab.chains.run_defaults import DEFAULT_POLICY, FUSED_S
from trimtab.chains.run_metrics import StageMetrics
from trimtab.chains.run_state import (
    NO_PLACES,
    ChainRun,
    Ending,
    Failure,
    InputPlaces,
    RunOptions,
    StageCounts,
    State,
)
from trimtab.chains.stage_profiles import Profiling, StageProfiles
from trimtab.clusters.backends import backend as backend_of
from trimtab.errors import ChainError, UsageError
from trimtab.live.stage_backend import Cause, StageBackend, StageError, VirtualBackend
from trimtab.policies.catalogue import find
from trimtab.validation.problems import checked
from trimtab.validation.queue_section import OpenSection, QueueSpec

if TYPE_CHECKING:
    import polars as pl

    from trimtab.chains.metrics_server import MetricsServer
    from trimtab.jobs.run_rows import RunRecord
    from trimtab.live.model_scope import ModelRecord


class Session:
    """Workers that stay warm for runs of some chains. A context manager.

    Args:
        on: a backend, or its name.
        policy: decides which ready stage starts where.
        journal: a folder or the URL of a database, where runs are remembered so that they can be resumed, and
            results of deterministic stages used again. None = nowhere.
        values: folder or URL of large values, if it is not in the journal's folder.
        metrics_port: port of `/metrics` for Prometheus; 0 = any. None = no metrics.
        metrics_host: address of that port.
        profile: stages whose code is profiled (`profiles`).
        profile_lines: by line, not by function.
        fuse_s: stages with `cost_s` that are expected to take less run in one attempt with those that follow;
            0 = none does.
        values_gib: what the large values of inputs in flight may take; then inputs that entered later wait.
            None = half of the room that the backend has for them.
        queues: hierarchical queues of tenants, as the section of files: name → queue. None = tenants compete
            directly.
    """

    def __init__(
        self,
        chains: Chain | Sequence[Chain],
        *,
        on: str | StageBackend = "processes",
        policy: str = DEFAULT_POLICY,
        in_flight: int = 1024,
        journal: str | Path | None = None,
        values: str | Path = "",
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        profile: Collection[str] = (),
        profile_lines: bool = False,
        fuse_s: float = FUSED_S,
        values_gib: float | None = None,
        queues: Mapping[str, Any] | None = None,
    ) -> None:
        if not fuse_s >= 0.0:
            raise UsageError("out of range", field="fuse_s", value=fuse_s, expected="a number from 0 on")
        given = [chains] if isinstance(chains, Chain) else list(chains)
        self._chains = {chain.name: chain for chain in given}
        if len(self._chains) < len(given):
            raise ChainError("two chains of one name", value=[chain.name for chain in given])
        made = backend_of(on) if isinstance(on, str) else on
        self.metrics = StageMetrics()
        self._host = ChainHost(
            list(self._chains.values()),
            made,
            find(policy),
            in_flight=in_flight,
            place=journal,
            values=values,
            metrics=self.metrics,
            profile=Profiling(profile, profile_lines),
            fuse_s=fuse_s,
            values_gib=values_gib,
            queues=None if queues is None else _section(queues),
        )
        self._server: MetricsServer | None = None
        if metrics_port is not None:
            from trimtab.chains.metrics_server import MetricsServer  # loads prometheus_client

            self._server = MetricsServer(self.metrics, metrics_port, metrics_host)
        self._thread = HostThread(
            made.new_loop() if isinstance(made, VirtualBackend) else asyncio.new_event_loop()
        )
        self._is_open = False
        try:
            self._thread.call(self._host.open())
        except BaseException:
            self._stop()
            raise
        self._is_open = True

    def run(
        self,
        chain: Chain | str,
        inputs: Iterable[Any],
        *,
        priority: int = 0,
        deadline_s: float = float("inf"),
        tenant: str = "",
        tags: Mapping[str, str] | None = None,
        key: str = "",
        source: str = "",
        parts: bool = False,
        places: InputPlaces = NO_PLACES,
        block_rows: int = 0,
    ) -> RunHandle:
        """Begin a run over these inputs.

        An input is a mapping of the chain's inputs, or, for a chain of one input, its value. A data frame, or
        a dataset of Ray Data, has one in each row; other columns than the chain's inputs go along to `table`.

        Args:
            block_rows: each input is a table of so many of the rows; 0 = each row is one.
            key: with a journal, a run of this key is made once: then this is the handle of that run, with its
                inputs and options, and its deadline counts from when it was made.
            source: where the chain is defined, for a later resume.
            parts: `handle.parts` tells each instance of the output's stages as it finishes.
            places: where the inputs are in their file, for messages.
        """
        known = self._known(chain if isinstance(chain, str) else chain.name)
        if key and self._host.recorder is None:
            raise UsageError("a run key needs a journal", field="key", value=key, expected="journal=FOLDER")
        options = RunOptions(priority, deadline_s, tenant, dict(tags or {}), key, places)
        handle = RunHandle(self, self._thread, self._host, known, self._template(known), options)
        if parts:
            handle.want_parts()
        handle.begin(_with_tables(inputs, known, block_rows), source)
        return handle

    def resume(self, run_id: str, *, retry_failed: bool = False) -> RunHandle:
        """Go on with a run whose process ended. Stages that have finished do not run again.

        Args:
            retry_failed: inputs that failed begin again, too.

        Raises UsageError for a run that is not there, of another chain, or that another process works on.
        """
        recorder = self._host.recorder
        if recorder is None:
            raise UsageError(
                "there is no journal", field="journal", expected="the folder of the run's journal"
            )
        record = self._thread.call(recorder.journal.find(run_id))
        chain, options = self._known(record.chain), recorder.options_of(record)
        handle = RunHandle(self, self._thread, self._host, chain, self._template(chain), options, run_id)
        handle.go_on(retry_failed=retry_failed)
        return handle

    def _known(self, name: str) -> Chain:
        if name not in self._chains:
            expected = f"one of {', '.join(self._chains)}"
            raise UsageError("no such chain here", field="chain", value=name, expected=expected)
        return self._chains[name]

    def _template(self, chain: Chain) -> int:
        return list(self._chains).index(chain.name)

    @property
    def profiles(self) -> StageProfiles:
        """The profile of the code of profiled stages."""
        return self._host.outcomes.profiles

    @property
    def models(self) -> Mapping[str, Sequence[ModelRecord]]:
        """The models that stages have optimised, as measured by the first worker, by stage."""
        return self._host.outcomes.models

    @property
    def metrics_port(self) -> int | None:
        """The port of `/metrics`; None = there is none."""
        return None if self._server is None else self._server.port

    @property
    def is_compiled(self) -> bool:
        """Whether decisions run as machine code. If not, `trimtab warmup` compiles them once."""
        return self._host.is_compiled

    def close(self) -> None:
        """Cancel what runs, and stop the workers."""
        if self._is_open:
            self._is_open = False
            self._thread.call(self._host.close())
            self._stop()

    def _stop(self) -> None:
        self._thread.stop()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunHandle:
    """A run. Iterate over it for results as they finish, or `await` it for all of them in order."""

    def __init__(
        self,
        session: Session,
        thread: HostThread,
        host: ChainHost,
        chain: Chain,
        template: int,
        options: RunOptions,
        run_id: str = "",
    ) -> None:
        self._session, self._thread, self._host, self._chain = session, thread, host, chain
        self._results: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self._kept: list[Result] = []
        self.parts = Parts()
        self._given: Any = ()  # the inputs, for `table`
        self._over = threading.Event()
        self._when_over: list[Callable[[], object]] = []
        self._closes_session = False
        self._n_inputs: int | None = None
        self._run = ChainRun(
            run_id or f"run_{secrets.token_hex(8)}", chain, template, options, self._told, self._ended
        )

    def begin(self, given: Iterable[Any], source: str = "") -> None:
        """Begin the run."""
        recorder, inputs, self._given = self._host.recorder, named_inputs(self._chain, given), given
        if recorder is not None:
            listed = list(inputs)
            inputs, self._n_inputs = iter(listed), len(listed)
            found = self._thread.call(recorder.begin(self._run, listed, source))
            if found.id != self.id:
                self._check_chain(found)
                self._run.id, self._run.options = found.id, recorder.options_of(found)
                self.go_on(retry_failed=False)
                return
        self._run.inputs = inputs
        self._thread.loop.call_soon_threadsafe(self._host.add, self._run)

    def _check_chain(self, record: RunRecord) -> None:
        """Raise UsageError if the run that has this key is of another chain."""
        if record.chain != self._chain.name:
            raise UsageError(
                f"run {record.id} of another chain has this key", field="key", value=record.key,
                expected=f"a key of its own for {self._chain.name}; that run is of {record.chain}",
            )  # fmt: skip

    def go_on(self, *, retry_failed: bool) -> None:
        """Go on with a run of the journal."""
        recorder = self._host.recorder
        assert recorder is not None
        inputs = self._thread.call(recorder.load(self._run, retry_failed=retry_failed))
        self._run.inputs, self._given = iter(inputs), dict(inputs)
        self._n_inputs = len(inputs) + len(self._run.failed_before)
        for number, text in self._run.failed_before.items():
            failure = Failure("", 0, 0, StageError(Cause.RAISED, "", text), noted=text)
            self._told(Ending(number, State.FAILED, (), failure))
            self._run.endings[State.FAILED] += 1
        self._thread.loop.call_soon_threadsafe(self._host.add, self._run)

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    def close_session_with_it(self) -> RunHandle:
        """Stop the session's workers when the run is over."""
        self._closes_session = True
        return self

    def want_parts(self) -> None:
        """Tell `parts`. To be called before the run begins."""
        self._run.part = lambda told: self.parts.put(Part(told, self._chain))

    @property
    def n_inputs(self) -> int | None:
        """How many inputs there are; None = not known yet."""
        return self._n_inputs

    @property
    def n_before(self) -> int:
        """How many inputs were over before this process went on with the run."""
        return len(self._run.done_before) + len(self._run.failed_before)

    @property
    def places(self) -> InputPlaces:
        """Where the inputs are in their file."""
        return self._run.options.places

    @property
    def state(self) -> State:
        """The state of the run."""
        return self._run.state

    @property
    def counts(self) -> dict[str, StageCounts]:
        """How far each stage is."""
        return {step.name: counts for step, counts in zip(self._chain.steps, self._run.counts, strict=False)}

    @property
    def elapsed_s(self) -> float:
        """From its beginning until an input was over last, by the clock of its backend."""
        return max(0.0, self._run.last_s - self._run.begun_s)

    @property
    def endings(self) -> Mapping[State, int]:
        """Inputs that are over, by state."""
        return dict(self._run.endings)

    def __iter__(self) -> Iterator[Result]:
        """Results as inputs finish."""
        let_ctrl_c_end_waits()
        while (result := self._results.get()) is not None:
            yield result
        self._finish()

    async def __aiter__(self) -> AsyncIterator[Result]:
        """Results as inputs finish."""
        while (result := await asyncio.to_thread(self._results.get)) is not None:
            yield result
        await asyncio.to_thread(self._finish)

    def wait(self, timeout_s: float | None = None) -> list[Result]:
        """All results, in the order of the inputs. Raises TimeoutError."""
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"{self.id} is not over after {timeout_s:g} s")
        self._finish()
        return sorted(self._kept, key=lambda result: result.index)

    def values(self) -> list[Any]:
        """All outputs, in the order of the inputs. Raises StageFailed for the first that has none."""
        return [result.value for result in self.wait()]

    def table(self) -> pl.DataFrame:
        """The outputs as a table of polars, in the order of the inputs; those without one are left out.

        A mapping has a column for each key, other outputs the column `output`; tables are put together.
        Before them are the columns of the inputs, if those were a table, in a list, or in the journal.
        `chains.data_tables` has more: `dataset_of`, `write_table`.
        """
        from trimtab.chains.data_tables import given_rows, results_table

        return results_table(self.wait(), given_rows(self._given, self._chain))

    def __await__(self) -> Generator[Any, None, list[Result]]:
        """`wait`, without blocking the event loop."""
        return asyncio.to_thread(self.wait).__await__()

    def when_over(self, told: Callable[[], object]) -> None:
        """Call `told` when the run is over, in another thread."""

        def register() -> None:
            if self._over.is_set():
                told()
            else:
                self._when_over.append(told)

        self._thread.loop.call_soon_threadsafe(register)

    def cancel(self) -> None:
        """End the run; what has finished stays."""
        self._thread.loop.call_soon_threadsafe(self._host.cancel, self._run)

    def _told(self, ending: Ending) -> None:
        result = Result(ending, self._chain)
        self._kept.append(result)
        self._results.put(result)

    def _ended(self, _: State) -> None:
        self.parts.put(None)
        self._results.put(None)
        self._over.set()
        for told in self._when_over:
            told()

    def _finish(self) -> None:
        """The run is over. Raises the fault that ended it, if it was the host's or that of its inputs."""
        self._results.put(None)
        if self._closes_session:
            self._closes_session = False
            self._session.close()
        if self._run.fault is not None:
            raise self._run.fault


def _section(queues: Mapping[str, Any]) -> Mapping[str, QueueSpec]:
    """The checked section. Raises UsageError."""
    section = checked(lambda: OpenSection(queues=queues), OpenSection, "Session", UsageError)
    return section.queues


def _with_tables(inputs: Iterable[Any], chain: Chain, block_rows: int) -> Iterable[Any]:
    """The inputs, those in a table as `TableInputs`. Raises UsageError."""
    if not block_rows and isinstance(inputs, list | tuple | range | Iterator):
        return inputs
    from trimtab.chains.data_tables import table_inputs  # loads a library of tables

    return table_inputs(inputs, chain, block_rows) or inputs
