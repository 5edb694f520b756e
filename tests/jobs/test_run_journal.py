"""The journal of chains, in both databases: order, first results, owners, kept outputs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.databases import Postgres
from trimtab.errors import UsageError
from trimtab.jobs import journal_writer
from trimtab.jobs.journal_log import JournalLog, left_files, rows_in
from trimtab.jobs.journal_writer import AT_A_TIME
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import AttemptRecord, ResultRecord, RunRecord
from trimtab.jobs.value_store import compressed, plain, value_store

RUN = RunRecord("run_1", "film", "", None, "running", "{}", "film.yaml", 1.0, None, "", False)


def result(output: bytes, attempt: int = 1) -> ResultRecord:
    return ResultRecord(0, "draw", 2, attempt, "one", output, len(output), 0.5, 0.0, 0.1, time.time())


@asynccontextmanager
async def in_journal(store_url: str, **told: Callable[..., None]) -> AsyncIterator[RunJournal]:
    journal = RunJournal(store_url, **told)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


async def test_attempts_are_stored_before_they_are_told_and_the_first_result_stays(store_url: str) -> None:
    async with in_journal(store_url) as journal:
        await journal.begin(replace(RUN, owner=journal.owner), [(0, b"in")])
        stored = asyncio.Event()
        journal.note_attempt("run_1", AttemptRecord(0, "draw", 2, 1, "one", 1.0), stored.set)
        await stored.wait()
        assert [a[:4] for a in await journal.attempts("run_1")] == [(0, "draw", 2, 1)]
        journal.note_result("run_1", result(b"first"))
        journal.note_result("run_1", result(b"second", attempt=2))
        journal.note_input("run_1", 0, "done", "")
        journal.note_input("run_1", 0, "failed", "late")
        await journal.end("run_1", "done")
        assert [(r.output, r.attempt) for r in await journal.results("run_1")] == [(b"first", 1)]
        assert [(i.state, i.given) for i in await journal.inputs("run_1")] == [("done", b"in")]
        found = await journal.find("run_1")
        assert (found.state, found.owner) == ("done", "")


async def test_who_reads_waits_for_what_was_noted_last(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the loop hears in the same turn that an earlier batch is stored."""
    gate, reached, told = threading.Event(), threading.Event(), threading.Event()
    store = journal_writer._store

    def gated(*given: Any) -> None:
        reached.set()
        gate.wait(60.0)
        store(*given)

    async with in_journal(store_url) as journal:
        loop = asyncio.get_running_loop()
        tell = loop.call_soon_threadsafe

        def telling(*given: Any) -> Any:
            handle = tell(*given)
            told.set()
            return handle

        await journal.begin(replace(RUN, owner=journal.owner), [])
        monkeypatch.setattr(journal_writer, "_store", gated)
        journal.note_result("run_1", result(b"first"))
        while not reached.is_set():
            await asyncio.sleep(0.001)
        monkeypatch.setattr(loop, "call_soon_threadsafe", telling)
        gate.set()
        told.wait(60.0)  # the loop does not go on meanwhile
        journal.note_result("run_1", result(b"second")._replace(instance=3))
        assert [r.output for r in await journal.results("run_1")] == [b"first", b"second"]


async def test_a_run_has_one_owner_that_lives_and_a_key_one_run(store_url: str) -> None:
    async with in_journal(store_url) as journal:
        assert (await journal.begin(replace(RUN, owner=journal.owner, key="k"), [])).id == "run_1"
        assert (await journal.begin(replace(RUN, id="run_2", key="k"), [])).id == "run_1"
        assert (await journal.begin(replace(RUN, id="run_3", key="k", tenant="b"), [])).id == "run_3"
        other = RunJournal(store_url)
        await other.open()
        try:
            with pytest.raises(UsageError, match="another process works on this run"):
                await other.take_over("run_1")
            await journal.end("run_1", "stopped")
            await other.take_over("run_1")
            with pytest.raises(UsageError, match="no such run"):
                await other.find("run_9")
        finally:
            await other.close()
        await journal.take_over("run_1")  # the other one has left


async def test_somebody_else_may_ask_for_a_run_to_be_cancelled(store_url: str) -> None:
    asked: list[str] = []
    async with in_journal(store_url, cancelled=asked.append) as journal:
        await journal.begin(replace(RUN, owner=journal.owner), [])
        assert not await journal.request_cancel("run_9")
        assert await journal.request_cancel("run_1")
        while not asked:
            await asyncio.sleep(0.05)
    assert set(asked) == {"run_1"}


async def test_kept_outputs_go_by_worth_per_byte(store_url: str) -> None:
    async with in_journal(store_url) as journal:
        for name, size, credit in (("a", 100, 3.0), ("b", 100, 1.0), ("c", 100, 2.0)):
            journal.remember(name, name.encode(), size, 1.0, credit)
        journal.remember("b", b"b", 100, 1.0, 9.0)  # used again
        await journal.end("run_1", "done")  # after what was noted
        assert set(await journal.remembered(10)) == {"a", "b", "c"}
        assert set(await journal.remembered(1)) == {"b"}
        assert await journal.evict(250) == ([b"c"], 2.0)
        assert await journal.evict(250) == ([], 0.0)
        assert set(await journal.remembered(10)) == {"a", "b"}


async def test_what_was_noted_outlives_its_process_before_the_database_has_it(tmp_path: Path) -> None:
    """A process is gone after the first part; the second finds all that it was told is durable."""
    url, gone = f"sqlite:///{tmp_path / 'journal.db'}", []
    journal = RunJournal(url)
    await journal.open()
    await journal.begin(replace(RUN, owner=journal.owner), [(0, b"in"), (1, b"in")])
    stored = asyncio.Event()
    journal.note_result("run_1", result(b"out"))
    journal.note_input("run_1", 0, "done", "")
    journal.note_attempt("run_1", AttemptRecord(0, "draw", 2, 1, "one", 1.0), stored.set)
    await stored.wait()
    (file,) = left_files(tmp_path / "journal.db", set())
    gone.append((file.name.replace(journal.owner, "gone"), file.read_bytes()))
    await journal.close()
    assert left_files(tmp_path / "journal.db", set()) == []
    (tmp_path / "journal.db").unlink()

    async with in_journal(url):  # makes the tables
        pass
    ((name, data),) = gone
    (tmp_path / name).write_bytes(data + data[: len(data) // 2])  # killed during its second write
    async with in_journal(url) as journal:
        assert left_files(tmp_path / "journal.db", set()) == []
        assert [r.output for r in await journal.results("run_1")] == [b"out"]
        assert [a[:4] for a in await journal.attempts("run_1")] == [(0, "draw", 2, 1)]


def test_a_log_is_read_to_its_last_whole_write_and_may_have_gone(tmp_path: Path) -> None:
    log, rows = JournalLog(tmp_path / "journal.db", "p"), ([("a", 1)], [], [], [("b",)])
    log.write(rows)
    log.write(rows)
    path = Path(log.next_file())
    path.write_bytes(path.read_bytes()[:-1])
    assert list(rows_in(path)) == [rows]
    path.unlink()
    assert list(rows_in(path)) == []


async def test_rows_of_a_process_that_lives_are_left_to_it(tmp_path: Path) -> None:
    async with in_journal(f"sqlite:///{tmp_path / 'journal.db'}") as journal:
        journal.note_result("run_1", result(b"out"))
        await asyncio.sleep(0)
        other = RunJournal(f"sqlite:///{tmp_path / 'journal.db'}")
        await other.open()
        await other.close()
        assert [r.output for r in await journal.results("run_1")] == [b"out"]


@pytest.mark.parametrize("count", [1, AT_A_TIME, 3 * AT_A_TIME + 5])
async def test_any_number_of_rows_is_stored_in_order(store_url: str, count: int) -> None:
    async with in_journal(store_url) as journal:
        for number in range(count):
            for attempt in (1, 2):  # the first stays
                journal.note_result("run_1", result(b"%d" % number, attempt)._replace(number=number))
        found = {r.number: (r.output, r.attempt) for r in await journal.results("run_1")}
        assert found == {number: (b"%d" % number, 1) for number in range(count)}


async def test_a_journal_that_cannot_be_written_says_so_once(store_url: str) -> None:
    failures: list[BaseException] = []
    async with in_journal(store_url, failed=failures.append) as journal:
        journal.note_result("run_1", result(b"x")._replace(stage=None))  # type: ignore[arg-type]  # NOT NULL
        while not failures:
            await asyncio.sleep(0.01)
        await journal.end("run_1", "failed")  # does not wait for ever
    assert len(failures) == 1
    assert "stage" in str(failures[0])


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_values_are_kept_under_their_digest(tmp_path: Path, kind: str) -> None:
    store = value_store(tmp_path if kind == "folder" else "memory://values")
    store.put("ab12", b"x" * 100_000)
    store.put("ab12", b"again: not written")
    store.put("cd34", bytes(range(256)))
    assert store.get("ab12") == b"x" * 100_000
    assert store.get("cd34") == bytes(range(256))
    store.drop("ab12")
    store.drop("ab12")
    assert (store.has("ab12"), store.has("cd34")) == (False, True)
    with pytest.raises(FileNotFoundError):
        store.get("ab12")


def test_values_are_compressed_where_it_pays() -> None:
    noise = bytes((i * i * 2654435761 >> 13) & 0xFF for i in range(70_000))
    assert sum(map(len, compressed(b"text " * 20_000))) < 5_000
    assert sum(map(len, compressed(noise))) == len(noise) + 1
    for data in (b"text " * 20_000, noise, b""):
        assert plain(b"".join(compressed(data))) == data


async def test_what_is_noted_while_the_server_is_away_is_stored_when_it_is_back(postgres: Postgres) -> None:
    """A second outage that is longer than the journal waits ends it, once."""
    url = postgres.url("away")
    failed: list[BaseException] = []
    journal = RunJournal(url, failed=failed.append)
    await journal.open()
    await journal.begin(replace(RUN, owner=journal.owner), [(0, b"in")])
    await asyncio.to_thread(postgres.stop)
    stored = asyncio.Event()
    journal.note_attempt("run_1", AttemptRecord(0, "draw", 2, 1, "one", 1.0), stored.set)
    journal.note_result("run_1", result(b"out"))
    reads = asyncio.create_task(journal.results("run_1"))
    await asyncio.sleep(0.2)
    assert not stored.is_set()
    await asyncio.to_thread(postgres.start)
    assert [found.output for found in await reads] == [b"out"]
    assert stored.is_set()
    assert failed == []
    await journal.close()
    short = RunJournal(url, failed=failed.append, outage_s=0.3)
    await short.open()
    await asyncio.to_thread(postgres.stop)
    short.note_result("run_1", result(b"lost", attempt=2))
    while not failed:
        await asyncio.sleep(0.02)
    await short.close()
    await asyncio.to_thread(postgres.start)
    assert len(failed) == 1
