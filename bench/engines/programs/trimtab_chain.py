"""trimtab: stages in a chain; its host decides which of them starts where, on any backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain as joined
from typing import Any

import numpy as np

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, step, thumbnail
from trimtab.chains import Session, chain, stage


@contextmanager
def connected(backend: Any) -> Iterator[Session]:
    with Session([_images, _paced, _nothing], on=backend) as session:
        yield session


@stage
def thumbnails(files: list[str]) -> list[np.ndarray]:
    return [thumbnail(file) for file in files]


@stage
def embeddings(small: list[np.ndarray]) -> list[np.ndarray]:
    return [embedding(each) for each in small]


@stage
def duplicates(parts: list[list[np.ndarray]]) -> list[tuple[int, int]]:
    return near_duplicates(joined.from_iterable(parts))


@chain
def _images(parts: list[list[str]]) -> Any:
    return duplicates(embeddings.map(thumbnails.map(parts)))


def images(session: Session, files: list[str]) -> list[tuple[int, int]]:
    return session.run(_images, [blocks(files)]).values()[0]


_step = stage(step, size="seconds")
_none = stage(workload.nothing)


@chain
def _paced(number: int, first: float, second: float, third: float) -> Any:
    return _step(number, 2, third, _step(number, 1, second, _step(number, 0, first, 0.0)))


def paced(session: Session, chains: list[list[float]]) -> list[float]:
    names = ("first", "second", "third")
    return session.run(
        _paced, [{"number": k} | dict(zip(names, row, strict=True)) for k, row in enumerate(chains)]
    ).values()


@chain
def _nothing(number: int) -> Any:
    return _none(number)


def nothing(session: Session, count: int) -> int:
    return len(session.run(_nothing, range(count)).values())
