"""Usage: sums by tenant and day; nothing lost or counted twice while the database is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trimtab.runtime.gateway.store.errors import StoreUnavailable
from trimtab.runtime.gateway.store.store import Store
from trimtab.runtime.gateway.store.usage import Totals, UsageBook

_DAY_S = 86_400.0


class _Clock:
    now_s = 20_000 * _DAY_S  # 2024-10-04

    def __call__(self) -> float:
        return self.now_s


def test_sums_are_kept_by_tenant_and_day(store_url: str) -> None:
    async def main() -> None:
        clock = _Clock()
        store = Store(store_url)
        await store.open()
        first, second = UsageBook(store, clock=clock), UsageBook(store, clock=clock)  # two processes
        first.add("a", 10, 20, 0.5)
        second.add("a", 1, 2, 0.25)
        first.add("b", 5, 0, 1.0)
        await first.flush()
        await second.flush()
        clock.now_s += _DAY_S
        first.add("a", 7, 7, 7.0)
        await first.flush()
        await first.flush()
        assert await first.of("a") == {
            "2024-10-04": Totals(2, 11, 22, 0.75),
            "2024-10-05": Totals(1, 7, 7, 7.0),
        }
        assert await second.of("b") == {"2024-10-04": Totals(1, 5, 0, 1.0)}
        await store.close()

    asyncio.run(main())


def test_usage_is_kept_while_the_database_cannot_write(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(f"sqlite:///{tmp_path / 'store.db'}")
        await store.open()
        book = UsageBook(store, clock=_Clock())
        await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=ON"))
        for _ in range(3):
            book.add("a", 1, 1, 1.0)
            with pytest.raises(StoreUnavailable):
                await book.flush()
        await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=OFF"))
        await book.flush()
        assert await book.of("a") == {"2024-10-04": Totals(3, 3, 3, 3.0)}
        await store.close()

    asyncio.run(main())


def test_a_lost_answer_to_commit_counts_once(store_url: str) -> None:
    async def main() -> None:
        store = Store(store_url)
        await store.open()
        book = UsageBook(store, clock=_Clock())
        write = store.write

        async def loses_the_answer(work: object) -> None:
            await write(work)  # type: ignore[arg-type]
            store.write = write  # type: ignore[method-assign]
            raise StoreUnavailable("the connection closed")

        store.write = loses_the_answer  # type: ignore[method-assign, assignment]
        book.add("a", 1, 1, 1.0)
        with pytest.raises(StoreUnavailable):
            await book.flush()
        await book.flush()
        assert await book.of("a") == {"2024-10-04": Totals(1, 1, 1, 1.0)}
        await store.close()

    asyncio.run(main())


def test_it_flushes_by_itself(store_url: str) -> None:
    async def main() -> None:
        store = Store(store_url)
        await store.open()
        book = UsageBook(store, clock=_Clock())
        task = asyncio.create_task(book.run(0.01))
        book.add("a", 1, 2, 3.0)
        while not await book.of("a"):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()

    asyncio.run(main())
