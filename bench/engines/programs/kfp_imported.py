"""The pipelines of `kfp_local`, compiled and imported by `trimtab chain import kfp`; users write no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.engines import workload
from trimtab.chains import Chain, Session, chain, stage

_none = stage(workload.nothing)


@chain
def _nothing(number: int) -> Any:
    return _none(number)


@contextmanager
def connected(given: tuple[Any, Chain, Chain]) -> Iterator[tuple[Session, Chain, Chain]]:
    backend, images_chain, paced_chain = given
    with Session([images_chain, paced_chain, _nothing], on=backend) as session:
        yield session, images_chain, paced_chain


def images(on: tuple[Session, Chain, Chain], files: list[str]) -> list[tuple[int, int]]:
    found = on[0].run(on[1], [{"files": files}]).values()[0]
    return [(a, b) for a, b in found["Output"]]


def paced(on: tuple[Session, Chain, Chain], chains: list[list[float]]) -> list[float]:
    return on[0].run(on[2], [{"chains": chains, "totals": [0.0] * len(chains)}]).values()[0]["Output"]


def nothing(on: tuple[Session, Chain, Chain], count: int) -> int:
    return len(on[0].run(_nothing, range(count)).values())
