"""Usage: sums by tenant and model; nothing lost or counted twice while the database is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.databases import opened_store
from support.waiting import until
from trimtab.gateway.tenancy.usage_book import UsageBook
from trimtab.jobs import StoreUnavailable
from trimtab.jobs.store.schema import usage

_DAY_S = 86_400.0


class _Clock:
    now_s = 20_000 * _DAY_S  # 2024-10-04

    def __call__(self) -> float:
        return self.now_s


def _row(
    tenant: str,
    model: str,
    requests: int,
    prompt: int,
    completion: int,
    service_s: float,
    since: str = "2024-10-04",
) -> dict[str, Any]:
    counts = {"requests": requests, "prompt_tokens": prompt, "completion_tokens": completion}
    return {"tenant": tenant, "model": model, "since": since, "service_s": service_s, **counts}


async def test_sums_are_kept_by_tenant_and_model(store_url: str) -> None:
    clock = _Clock()
    async with opened_store(store_url) as store:
        first, second = UsageBook(store, clock=clock), UsageBook(store, clock=clock)  # two processes
        first.add("a", "m", 10, 20, 0.5)
        second.add("a", "m", 1, 2, 0.25)
        first.add("b", "m", 5, 0, 1.0)
        await first.flush()
        await second.flush()
        clock.now_s += _DAY_S
        first.add("a", "m", 7, 7, 7.0)
        first.add("a", "z", 2, 0, 1.0)
        await first.flush()
        await first.flush()
        of_a = [_row("a", "m", 3, 18, 29, 7.75), _row("a", "z", 1, 2, 0, 1.0, since="2024-10-05")]
        of_b = [_row("b", "m", 1, 5, 0, 1.0)]
        assert await first.totals("a") == of_a
        assert await second.totals("b") == of_b
        assert await second.totals() == of_a + of_b
        assert await second.totals("nobody") == []


async def test_usage_is_kept_while_the_database_cannot_write(tmp_path: Path) -> None:
    async with opened_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        book = UsageBook(store, clock=_Clock())
        await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=ON"))
        for _ in range(3):
            book.add("a", "m", 1, 1, 1.0)
            with pytest.raises(StoreUnavailable):
                await book.flush()
        await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=OFF"))
        await book.flush()
        assert await book.totals("a") == [_row("a", "m", 3, 3, 3, 3.0)]


async def test_a_lost_answer_to_commit_counts_once(store_url: str) -> None:
    async with opened_store(store_url) as store:
        book = UsageBook(store, clock=_Clock())
        write = store.write

        async def loses_the_answer(work: object) -> None:
            await write(work)  # type: ignore[arg-type]
            store.write = write  # type: ignore[method-assign]
            raise StoreUnavailable("the connection closed")

        store.write = loses_the_answer  # type: ignore[method-assign, assignment]
        book.add("a", "m", 1, 1, 1.0)
        with pytest.raises(StoreUnavailable):
            await book.flush()
        await book.flush()
        assert await book.totals("a") == [_row("a", "m", 1, 1, 1, 1.0)]


async def test_a_flush_ends_while_requests_go_on(tmp_path: Path) -> None:
    async with opened_store(f"sqlite:///{tmp_path}/usage.db") as store:
        book = UsageBook(store, clock=_Clock())
        write, writes = store.write, 0

        async def busy(work: Any) -> Any:
            nonlocal writes
            writes += 1
            book.add("a", "m", 1, 1, 1.0)  # a request is served while the database writes
            return await write(work)

        store.write = busy  # type: ignore[method-assign]
        book.add("a", "m", 1, 1, 1.0)
        async with asyncio.timeout(60.0):
            await book.flush()
            assert writes == 1
            await asyncio.gather(book.flush(), book.flush())  # one after the other
        assert writes == 3


async def test_it_flushes_by_itself(store_url: str) -> None:
    async with opened_store(store_url) as store:
        book = UsageBook(store, clock=_Clock())
        task = asyncio.create_task(book.run(0.01))
        book.add("a", "m", 1, 2, 3.0)
        await until(lambda: store.read(lambda connection: connection.scalar(sa.select(usage.c.tenant))))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
