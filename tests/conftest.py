"""Makes `builders` importable from every test folder: pytest puts the folder of this file on the path."""

from __future__ import annotations

import signal

import numpy as np
import pytest

# A job in the background is born ignoring Ctrl-C, which some tests send to themselves and to their children.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng() -> np.random.Generator:
    """A test's own random numbers: the same ones whatever ran before it."""
    return np.random.default_rng(11)
