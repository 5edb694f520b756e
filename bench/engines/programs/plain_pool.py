"""`concurrent.futures`: a pool of processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain

import numpy as np

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, step, thumbnail


@contextmanager
def connected(initializer: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, initializer=initializer) as pool:
        yield pool


def images(pool: ProcessPoolExecutor, files: list[str]) -> list[tuple[int, int]]:
    return near_duplicates(chain.from_iterable(pool.map(_embeddings, blocks(files))))


def _embeddings(files: list[str]) -> list[np.ndarray]:
    return [embedding(thumbnail(file)) for file in files]


def paced(pool: ProcessPoolExecutor, chains: list[list[float]]) -> list[float]:
    return list(pool.map(_chain, range(len(chains)), chains))


def _chain(number: int, row: list[float]) -> float:
    total = 0.0
    for stage, seconds in enumerate(row):
        total = step(number, stage, seconds, total)
    return total


def nothing(pool: ProcessPoolExecutor, count: int) -> int:
    return len(list(pool.map(workload.nothing, range(count))))
