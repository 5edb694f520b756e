"""Options and fixtures of all tests. pytest puts this folder on the path: every test imports `support`."""

from __future__ import annotations

import signal

import numpy as np
import pytest

# A job in the background is born ignoring Ctrl-C, which some tests send to themselves and to their children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked full too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker("full") is None]


@pytest.fixture
def rng() -> np.random.Generator:
    """A test's own random numbers: the same ones whatever ran before it."""
    return np.random.default_rng(11)
