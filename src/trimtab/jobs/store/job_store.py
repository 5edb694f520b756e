"""The store: one thread does all database work, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from trimtab.errors import StoreNewer, StoreUnavailable
from trimtab.jobs.store.database import make_engine
from trimtab.jobs.store.outages import OutageRetry, is_away, reason_of
from trimtab.jobs.store.schema import REVISION, metadata

_LOCK = 0x7472696D  # any number of our own


_VERSION = sa.Table(  # as Alembic makes it
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def migrate(engine: sa.Engine) -> None:
    """Run the migrations that are missing; an empty database gets the newest tables at once.

    Raises StoreNewer, and SQLAlchemy's errors.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE already keeps others out
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        current = _revision(connection)
        if current is None and not sa.inspect(connection).get_table_names():
            _make(connection)
        elif current != REVISION:
            _upgrade(connection, current)


def _make(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    _VERSION.create(connection)
    connection.execute(sa.insert(_VERSION), [{"version_num": REVISION}])


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.scalar(sa.select(_VERSION.c.version_num))
    return revision


def _upgrade(connection: sa.Connection, current: str | None) -> None:
    # Imported here: a start with a new or up-to-date store needs no Alembic.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "trimtab.jobs.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StoreNewer(
            "the database was written by a newer trimtab",
            field="store.url",
            value=current,
            expected=f"version {REVISION} or older: upgrade trimtab, or name another database",
        )
    command.upgrade(config, "head")


T = TypeVar("T")

CALL_S: Final = 15.0
MAX_WAITING: Final = 10_000  # calls, so that a database that hangs does not fill the memory


@dataclass(frozen=True, slots=True)
class _Call:
    """A function that waits for its transaction."""

    work: Callable[[sa.Connection], Any]
    writes: bool
    until_s: float  # when its caller gives up, by `time.monotonic`
    future: Future[Any]


class _MaybeCommitted(Exception):  # noqa: N818 - reads as the sentence it prints
    """The database went away while it committed: the work must not be done twice."""


class JobStore:
    """Runs functions of a connection, each in one transaction, one after another.

    A call waits while a database that was there is away. At the start nothing waits: a wrong address is told
    at once, and the next call tries again. The owner continues meanwhile.
    """

    def __init__(
        self, url: str, *, call_s: float = CALL_S, outlives_power_loss: bool = True, who: str = "store"
    ) -> None:
        """A store for `who`, as the log names it. Raises UsageError for a wrong URL.

        `call_s`: how long a call waits for its turn, the answer, and the end of an outage, until its caller
        gets StoreUnavailable.
        """
        self.available = False
        self.reason = "not opened"
        self._engine = make_engine(url, outlives_power_loss=outlives_power_loss)
        self._ready = False  # the tables are there
        self._call_s = call_s
        self._calls: queue.Queue[_Call | None] = queue.Queue(MAX_WAITING)
        self._retry = OutageRetry(who)
        self._thread = threading.Thread(target=self._work, name="trimtab-store", daemon=True)

    @property
    def engine(self) -> sa.Engine:
        """The engine, for a thread that keeps a connection of its own."""
        return self._engine

    async def open(self) -> None:
        """Make or upgrade the tables. Raises StoreNewer; a database that is away is no error yet."""
        self._thread.start()
        with contextlib.suppress(StoreUnavailable):
            await self.read(lambda _: None)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """`work`'s result, once it is durable. Raises StoreUnavailable."""
        return await self._call(work, True)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """`work`'s result. Raises StoreUnavailable."""
        return await self._call(work, False)

    def wait_no_more(self) -> None:
        """The process ends: from now on a database that is away is told at once."""
        self._retry.end()

    async def close(self) -> None:
        """Finish what waits, then end the thread; after `call_s` it is left behind."""
        if not self._thread.is_alive():
            return
        self.wait_no_more()
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)
        await asyncio.to_thread(self._thread.join, self._call_s)

    async def _call(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        future: Future[T] = Future()
        try:
            self._calls.put_nowait(_Call(work, writes, monotonic() + self._call_s, future))
        except queue.Full:
            raise StoreUnavailable("too many calls wait for the database") from None
        try:
            async with asyncio.timeout(self._call_s):  # `wait_for` may swallow a cancellation in Python 3.11
                return await asyncio.wrap_future(future)
        except TimeoutError:
            why = "" if self.available else f": {self.reason}"
            raise StoreUnavailable(f"no answer from the database in {self._call_s:g} s{why}") from None

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.future.set_running_or_notify_cancel():  # a caller that has given up gets no late write
                self._settle(call)
        self._engine.dispose()

    def _settle(self, call: _Call) -> None:
        # What was never reached is not waited for.
        until_s = call.until_s if self._ready else 0.0
        try:
            result = self._retry.run(partial(self._transaction, call), until_s)
        except (IntegrityError, ProgrammingError, StoreNewer) as error:  # ours, or for people to mend
            call.future.set_exception(error)
        except (SQLAlchemyError, OSError, _MaybeCommitted) as error:
            self.available, self.reason = False, reason_of(error)
            call.future.set_exception(StoreUnavailable(self.reason))
        except Exception as error:
            call.future.set_exception(error)
        else:
            self.available, self.reason = True, ""
            call.future.set_result(result)

    def _transaction(self, call: _Call) -> Any:
        try:
            if not self._ready:
                migrate(self._engine)
                self._ready = True
            return self._committed(call)
        except SQLAlchemyError as error:
            if is_away(error):  # told at once, not when the call gives up
                self.available, self.reason = False, reason_of(error)
            raise

    def _committed(self, call: _Call) -> Any:
        is_done = False
        try:
            with (
                self._engine.connect().execution_options(writes=call.writes) as connection,
                connection.begin(),
            ):
                result = call.work(connection)
                is_done = True
        except SQLAlchemyError as error:
            if is_done and call.writes and is_away(error):
                raise _MaybeCommitted(reason_of(error)) from error
            raise
        return result
