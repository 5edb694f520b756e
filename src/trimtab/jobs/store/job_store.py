"""The store: one thread does all database work, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from trimtab.jobs.store.database import make_engine
from trimtab.jobs.store.migrate import migrate
from trimtab.jobs.store.store_errors import StoreNewer, StoreUnavailable

T = TypeVar("T")

CALL_S = 10.0
MAX_WAITING = 10_000  # calls, so that a database that hangs does not fill the memory

_Call = tuple[Callable[[sa.Connection], Any], bool, "Future[Any]"]


class JobStore:
    """Runs functions of a connection, each in one transaction, one after another.

    If the database is not available at the start, every call retries. The owner continues meanwhile.
    """

    def __init__(self, url: str, *, call_s: float = CALL_S, outlives_power_loss: bool = True) -> None:
        """`call_s`: seconds until a caller gets StoreUnavailable. Raises UsageError for a wrong URL."""
        self.available = False
        self.reason = "not opened"
        self._engine = make_engine(url, outlives_power_loss=outlives_power_loss)
        self._ready = False  # the tables are there
        self._call_s = call_s
        self._calls: queue.Queue[_Call | None] = queue.Queue(MAX_WAITING)
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

    async def close(self) -> None:
        """Finish what waits, then end the thread; after `call_s` it is left behind."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)
        await asyncio.to_thread(self._thread.join, self._call_s)

    async def _call(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        future: Future[T] = Future()
        try:
            self._calls.put_nowait((work, writes, future))
        except queue.Full:
            raise StoreUnavailable("too many calls wait for the database") from None
        try:
            async with asyncio.timeout(self._call_s):  # `wait_for` may swallow a cancellation in Python 3.11
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise StoreUnavailable(f"no answer from the database in {self._call_s:g} s") from None

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, writes, future = call
            if future.set_running_or_notify_cancel():  # a caller that has given up gets no late write
                self._settle(future, work, writes)
        self._engine.dispose()

    def _settle(self, future: Future[T], work: Callable[[sa.Connection], T], writes: bool) -> None:
        try:
            result = self._transaction(work, writes)
        except (IntegrityError, ProgrammingError, StoreNewer) as error:  # ours, or for people to mend
            future.set_exception(error)
        except (SQLAlchemyError, OSError) as error:
            self.available, self.reason = False, _reason(error)
            future.set_exception(StoreUnavailable(self.reason))
        except Exception as error:
            future.set_exception(error)
        else:
            self.available, self.reason = True, ""
            future.set_result(result)

    def _transaction(self, work: Callable[[sa.Connection], T], writes: bool) -> T:
        if not self._ready:
            migrate(self._engine)
            self._ready = True
        with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
            return work(connection)


def _reason(error: BaseException) -> str:
    """The driver's first line: SQLAlchemy's own text holds the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)
