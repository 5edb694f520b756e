"""The store on both databases: migrations, its thread, and databases that go away, fill up and come back."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.databases import Postgres
from trimtab.errors import UsageError
from trimtab.jobs import JobStore, StoreNewer, StoreUnavailable
from trimtab.jobs.store.database import make_engine
from trimtab.jobs.store.job_store import migrate
from trimtab.jobs.store.processes import sign_of_life
from trimtab.jobs.store.schema import REVISION, metadata, processes


def _count(connection: sa.Connection) -> int:
    return int(connection.scalar(sa.select(sa.func.count()).select_from(processes)) or 0)


async def _opened(url: str, **options: float) -> JobStore:
    store = JobStore(url, **options)
    await store.open()
    return store


@pytest.mark.parametrize("is_empty", [True, False], ids=["made at once", "by every migration"])
def test_migrations_make_the_tables_of_the_schema(store_url: str, is_empty: bool) -> None:
    engine = make_engine(store_url)
    if not is_empty:
        with engine.begin() as connection:
            sa.Table("of_others", sa.MetaData(), sa.Column("id", sa.Integer)).create(connection)
    migrate(engine)
    migrate(engine)  # a second start changes nothing
    with engine.connect() as connection:
        from alembic.autogenerate import compare_metadata
        from alembic.runtime.migration import MigrationContext

        own = {"include_name": lambda name, kind, _: kind != "table" or name != "of_others"}
        found = MigrationContext.configure(connection, opts=own)
        assert compare_metadata(found, metadata) == []
        assert found.get_current_revision() == REVISION
    engine.dispose()


def test_the_newest_migration_is_the_one_named() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "trimtab.jobs.store:migrations")
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


def test_several_processes_may_start_on_one_empty_database(store_url: str) -> None:
    engines = [make_engine(store_url) for _ in range(4)]
    failures: list[BaseException] = []

    def start(engine: sa.Engine) -> None:
        try:
            migrate(engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.dispose()
    assert failures == []


def test_many_may_open_one_new_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait where two of them make it write ahead: one round in twenty."""

    def opened(engine: sa.Engine, together: threading.Barrier) -> str:
        together.wait()
        with engine.connect() as connection:
            return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())

    with ThreadPoolExecutor(4) as threads:
        for number in range(100):
            together = threading.Barrier(4)
            engines = [make_engine(f"sqlite:///{tmp_path}/{number}.db") for _ in range(4)]
            assert list(threads.map(opened, engines, [together] * 4)) == ["wal"] * 4
            for engine in engines:
                engine.dispose()


async def test_a_newer_store_is_refused(store_url: str) -> None:
    engine = make_engine(store_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    store = JobStore(store_url)
    with pytest.raises(StoreNewer, match=r"newer trimtab.*9999.*upgrade trimtab"):
        await store.open()
    await store.close()


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://root:secret@host/db", "sqlite://", "sqlite:///:memory:"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"store.url.*expected sqlite:///FILE") as caught:
        JobStore(url)
    assert "secret" not in str(caught.value)


def test_sqlite_commits_reach_the_disk(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'deep' / 'store.db'}")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 5000
    engine.dispose()


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        engine = make_engine(f"sqlite:///{tmp_path / 'store.db'}")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (x)")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        engine.dispose()
    finally:
        os.umask(before)
    assert modes["store.db"] == 0o600
    assert set(modes.values()) == {0o600}


async def test_a_call_that_raises_leaves_nothing_and_the_store_goes_on(store_url: str) -> None:
    store = await _opened(store_url)

    def work(connection: sa.Connection) -> None:
        sign_of_life(connection, "a")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await store.write(work)
    assert await store.read(_count) == 0
    await store.close()


async def test_the_loop_goes_on_while_the_database_works(store_url: str) -> None:
    store = await _opened(store_url)
    free = threading.Event()
    slow = asyncio.ensure_future(store.write(lambda _: free.wait(60.0)))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not slow.done()
    free.set()
    assert await slow
    await store.close()


async def test_a_caller_does_not_wait_for_ever_and_its_call_is_dropped(store_url: str) -> None:
    store = await _opened(store_url, call_s=0.1)
    free = threading.Event()
    blocked = asyncio.ensure_future(store.write(lambda _: free.wait()))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match=r"no answer from the database in 0.1 s"):
        await store.write(lambda connection: sign_of_life(connection, "late"))
    with pytest.raises(StoreUnavailable):
        await blocked
    free.set()
    await store.close()  # when its thread has ended
    patient = await _opened(store_url)
    assert await patient.read(_count) == 0
    await patient.close()


async def test_a_full_sqlite_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    store = await _opened(f"sqlite:///{tmp_path / 'store.db'}")

    def limit(connection: sa.Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def fill(connection: sa.Connection) -> None:
        rows = [{"id": f"{n:064d}", "seen_s": 0.0, "usage_batch": 0} for n in range(2000)]
        connection.execute(sa.insert(processes), rows)

    await store.read(lambda connection: limit(connection, 1))  # never below what it has: no page is left
    with pytest.raises(StoreUnavailable, match="full"):
        await store.write(fill)
    assert not store.available
    assert await store.read(_count) == 0  # reads go on
    await store.read(lambda connection: limit(connection, 100_000))
    await store.write(fill)
    assert store.available
    await store.close()


async def test_a_read_only_sqlite_refuses_writes_and_recovers(tmp_path: Path) -> None:
    store = await _opened(f"sqlite:///{tmp_path / 'store.db'}")
    await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=ON"))
    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.write(lambda connection: sign_of_life(connection, "a"))
    await store.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only=OFF"))
    await store.write(lambda connection: sign_of_life(connection, "a"))
    await store.close()


async def test_calls_wait_while_postgresql_is_away(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url("stopped")
    patient, hasty = await _opened(url, call_s=60.0), await _opened(url, call_s=0.2)
    await patient.write(lambda connection: sign_of_life(connection, "a"))
    await asyncio.to_thread(postgres.stop)
    calls = [asyncio.create_task(patient.write(partial(sign_of_life, process=name))) for name in "bc"]
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="connection"):
            await hasty.write(lambda connection: sign_of_life(connection, "never"))
    assert not patient.available
    assert not any(call.done() for call in calls)
    await asyncio.to_thread(postgres.start)
    await asyncio.gather(*calls)
    assert await patient.read(_count) == 3
    assert patient.available
    await asyncio.to_thread(postgres.stop)
    waits = asyncio.create_task(patient.read(_count))
    await asyncio.sleep(0)
    patient.wait_no_more()
    with pytest.raises(StoreUnavailable, match="connection"):
        await waits
    await asyncio.to_thread(postgres.start)
    await patient.close()
    await hasty.close()
    told = [record.message for record in caplog.records if record.name.endswith("outages")]
    assert sum("work waits for it for 60 s" in line for line in told) == 2  # once an outage
    assert sum("nothing waits longer" in line for line in told) == 1
    assert sum("is back after" in line for line in told) == 1


@pytest.mark.parametrize("while_committing", [False, True])
async def test_work_is_done_again_unless_it_may_have_been_committed(
    postgres: Postgres, while_committing: bool
) -> None:
    url = postgres.url(f"killed{while_committing}".lower())
    store = await _opened(url)
    other, done, killed = make_engine(url), [], []

    def kill(connection: sa.Connection) -> None:
        if done == [1] and not killed:
            killed.append(1)
            pid = connection.scalar(sa.select(sa.func.pg_backend_pid()))
            with other.connect() as killer:
                killer.execute(sa.select(sa.func.pg_terminate_backend(pid, 5000)))

    def work(connection: sa.Connection) -> None:
        done.append(1)
        if not while_committing:
            kill(connection)
        sign_of_life(connection, "a")

    if while_committing:
        sa.event.listen(store.engine, "commit", kill)
        with pytest.raises(StoreUnavailable):
            await store.write(work)
    else:
        await store.write(work)
    assert (len(done), await store.read(_count)) == ((1, 0) if while_committing else (2, 1))
    await store.close()
    other.dispose()


async def test_a_database_that_is_away_at_the_start_is_used_when_it_comes(postgres: Postgres) -> None:
    url = postgres.url("late")
    await asyncio.to_thread(postgres.stop)
    store = await _opened(url)
    assert not store.available
    assert "late" not in store.reason or "@" not in store.reason
    await asyncio.to_thread(postgres.start)
    await store.write(lambda connection: sign_of_life(connection, "a"))
    await store.close()
