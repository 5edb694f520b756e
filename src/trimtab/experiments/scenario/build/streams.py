"""Random streams of a scenario, one for each purpose: changing one part leaves the others as they were."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Purpose of a stream. Results depend on the numbers: never reuse or reorder them."""

    ARRIVAL = 0
    CLASS = 1
    SIZE = 2
    MODEL = 3
    HAS_ADAPTER = 4
    ADAPTER = 5
    TENANT = 6
    PRIORITY = 7
    HAS_DEADLINE = 8
    DEADLINE_FACTOR = 9
    DEADLINE_SECONDS = 10
    PAYLOAD = 11
    SESSION = 12
    ORIGIN = 13
    ESTIMATE = 14
    SERVICE = 15
    FAULT = 16
    PROMPT = 17
    SHARED_TOKENS = 18
    OWN_TOKENS = 19
    CONTENT = 20
    REPEATABLE = 21
    STAGE_SIZE = 22
    STAGE_COUNT = 23
    STAGE_OUTPUT = 24
    STAGE_CONDITION = 25
    STAGE_ESTIMATE = 26
    STAGE_SERVICE = 27
    STAGE_MODEL = 28
    RUN_CONTENT = 29
    RUN_REPEATABLE = 30
    BACKGROUND = 29


def generator(seed: int, stream: Stream, member: int = 0) -> np.random.Generator:
    """The generator of one stream of a seed; `member` distinguishes classes or list entries."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), member)))
