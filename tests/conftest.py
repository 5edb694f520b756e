"""Options and fixtures of all tests. pytest puts this folder on the path: every test imports `support`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings

from trimtab.errors import UsageError

# No test leans on the time that an example takes.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

LOST_WORKERS = pytest.StashKey[int]()

# A job in the background is born ignoring Ctrl-C, which some tests send to themselves and to their children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked full too")
    parser.addoption("--faults", action="store_true", help="run the tests marked faults too")
    parser.addoption("--clusters", action="store_true", help="run the tests marked clusters too")
    parser.addoption("--spark", action="store_true", help="run the tests marked spark too")
    parser.addoption("--again", action="store_true", help="run the tests that failed in the run before")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Three workers for two cores with `-n auto`: tests of gateways wait for processes half of the time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return cores + cores // 2


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    node.config.stash[LOST_WORKERS] = node.config.stash.get(LOST_WORKERS, 0) + bool(error)


def pytest_configure() -> None:
    """One thread of BLAS and PyTorch in each process: several that spin for a core take 20 times as long."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def pytest_report_header(config: pytest.Config) -> str:
    """What a run of everything does, and about how long it takes."""
    if config.getoption("--full"):
        return "the full product of conformance cases: about 50 minutes on two cores"
    return "all tests, with a covering subset of the conformance cases: about 11 minutes on two cores"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that lost a worker left tests out: it does not end as one in which tests failed (`make test`)."""
    if session.config.stash.get(LOST_WORKERS, 0):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in ("full", "faults", "clusters", "spark"):
        if not config.getoption(f"--{marker}"):
            left_out = [item for item in items if item.get_closest_marker(marker) is not None]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker(marker) is None]
    if config.getoption("--again"):
        assert config.cache is not None
        failed = list(config.cache.get("cache/lastfailed", {}))
        names = {*failed, *(name.rpartition("@")[0] for name in failed)}  # pytest-xdist adds @GROUP
        items[:] = [item for item in items if item.nodeid in names]
        if not 0 < len(items) == len(failed):
            raise pytest.UsageError(f"--again: {len(items)} tests found of {len(failed)} that failed")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine is a test too, in an event loop of its own; the marker `event_loop` names its kind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    marker = pyfuncitem.get_closest_marker("event_loop")
    with asyncio.Runner(loop_factory=marker.kwargs["factory"] if marker else None) as runner:
        runner.run(pyfuncitem.obj(**given))
    return True


@pytest.fixture
def rng() -> np.random.Generator:
    """A test's own random numbers: the same ones whatever ran before it."""
    return np.random.default_rng(11)


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """A Ray cluster of four CPUs for all tests of a session that are in the xdist group `ray`."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from trimtab.clusters.ray import connection

    for left in (2, 1, 0):  # Ray gives up after 30 s, which is little on a busy machine
        try:
            connection.connect(None, num_cpus=4, dashboard=False, options={})
            break
        except UsageError:
            if not left:
                raise
            ray.shutdown()
    yield
    connection.disconnect()
