"""Databases to test stores on: a new SQLite file, and a real PostgreSQL server on its own unix socket."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trimtab.jobs import JobStore


class Postgres:
    """One cluster; `url(database)` makes an empty database."""

    def __init__(self, folder: Path, binaries: Path, user: str) -> None:
        self.folder, self._bin, self._user = folder, binaries, user
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "trimtab", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off -c max_connections=40"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")

    def url(self, database: str) -> str:
        self._run("createdb", "-h", str(self.folder), "-U", "trimtab", database)
        return f"postgresql://trimtab@/{database}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        if self._user:
            command = ["setpriv", f"--reuid={self._user}", "--regid=nogroup", "--clear-groups", *command]
        with (self.folder / "programs").open("w") as said:  # a pipe would stay open
            done = subprocess.run(command, stdout=said, stderr=said, cwd=self.folder)
        assert done.returncode == 0, (self.folder / "programs").read_text()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server that runs; skips the test where there is none to run."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("PostgreSQL's server is not installed under /usr/lib/postgresql")
    user = ""
    folder = Path(tempfile.mkdtemp(prefix="tt-pg-", dir="/tmp"))  # a unix socket's path must be short
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("setpriv") is None:
            pytest.skip("PostgreSQL refuses to run as root, and setpriv is not installed")
        user = "nobody"
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    server = Postgres(folder, found[-1], user)
    yield server
    server.stop()
    shutil.rmtree(folder)


KINDS = ("sqlite", "postgresql")


def only(kind: str) -> pytest.MarkDecorator:
    """For a test of several processes: one kind of database, and the others with --full."""
    kinds = [pytest.param(each, marks=() if each == kind else pytest.mark.full) for each in KINDS]
    return pytest.mark.parametrize("store_url", kinds, indirect=True)


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(f"t{secrets.token_hex(4)}")


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[JobStore]:
    store = JobStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
