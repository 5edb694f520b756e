"""What every policy is put through, found by discovery: a new one is tested by being there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from support.builders import cluster, everything_on, requests, with_resources
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnFailure, OnRefusal, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.policies import names, policy_class

Case = tuple[Cluster, Requests, Options]

ORDERS = [order for order in names("order") if order not in names("dispatch")]
SPECS = [*names("dispatch"), *(f"least-expected-wait+{order}" for order in ORDERS)]


def stale() -> Case:
    """Everything on, two dispatchers with old reports."""
    c, r, options = everything_on()
    return with_resources(c), r, options


def fresh() -> Case:
    """Everything on, views as they are; failed nodes keep their work, refused requests are rejected."""
    c, r, options = everything_on(seed=2)
    return (
        with_resources(c),
        r,
        replace(
            options,
            telemetry_period_s=0.0,
            on_failure=OnFailure.RESUME,
            on_refusal=OnRefusal.REJECT,
            cancel=Cancel.ALWAYS,
            max_retries=0,
        ),
    )


def herd() -> Case:
    """Many dispatchers with very old reports before short queues: refusals and an overfull central queue."""
    c = cluster(5, types=2, slots=2, queue_max=1)
    return (
        c,
        requests(c, 600, load=1.3, seed=3, priorities=2),
        Options(dispatchers=3, telemetry_period_s=2.0, held_max=5),
    )


def plain() -> Case:
    """Nothing but queues."""
    c = cluster(7, types=3, slots=2)
    return c, requests(c, 600, load=0.9, seed=4, priorities=3, deadline_s=9.0), Options()


CASES = {case.__name__: case for case in (stale, fresh, herd, plain)}


def covering(
    offset: int, *, specs: Sequence[str] = SPECS, cases: Sequence[str] = tuple(CASES)
) -> pytest.MarkDecorator:
    """Parametrizes a test by `spec` and `case`; `offset` is a number of its own among the tests.

    Every test sees every spec once, with the cases in turn. Tests with successive offsets start at successive
    cases, so together they put every spec through every case.
    """
    return in_turn(specs, cases, offset=offset)


def in_turn(
    specs: Iterable[str], cases: Iterable[str], *, each: int = 1, offset: int = 0
) -> pytest.MarkDecorator:
    """Parametrizes a test by `spec` and `case`: every spec with `each` of the cases, the next ones in turn.

    The rest of the product is marked `full`.
    """
    cases, product = list(cases), []
    for n, spec in enumerate(specs):
        chosen = {(n * each + offset + i) % len(cases) for i in range(each)}
        for k, case in enumerate(cases):
            marks = () if k in chosen else pytest.mark.full
            product.append(pytest.param(spec, case, marks=marks, id=f"{spec}-{case}"))
    return pytest.mark.parametrize(("spec", "case"), product)


def pair(spec: str) -> Decider:
    """Policies made anew, so that nothing can hide in them between runs."""
    name, _, order = spec.partition("+")
    policy = policy_class(name)()
    return Decider.of(policy, policy_class(order)() if order else None)
