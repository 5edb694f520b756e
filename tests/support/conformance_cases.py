"""What every policy is put through, found by discovery: a new one is tested by being there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, everything_on, requests, with_resources
from support.engines import engine_cluster, model_type, shared_type, token_requests
from support.learned import with_weights
from support.queue_trees import of_tenants, with_queues
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnFailure, OnRefusal, Options
from trimtab.domain.policy import Decider
from trimtab.domain.queue_tree import Queue, QueueOrder
from trimtab.domain.requests import Prefixes, Requests
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


def queued() -> Case:
    """Everything on, and five tenants in hierarchical queues with limits, guarantees and short notices."""
    c, r, options = everything_on(seed=3)
    c, r = with_resources(c), of_tenants(r, np.arange(len(r)) % 5, 5)
    inner = (
        Queue("x", 2.0, 0.5, notice_s=0.2, order=QueueOrder.PRIORITY, tenants=("a",)),
        Queue("y", 1.0, 0.4, limit=0.6, user_limit=0.5, order=QueueOrder.FAIR, tenants=("b", "c")),
    )
    queues = [
        Queue("m", 1.0, 0.6, limit=0.9, notice_s=0.5, children=inner),
        Queue("n", 3.0, max_running=4, tenants=("d",)),
        Queue("default", guarantee=0.2, notice_s=0.0),
    ]
    return c, r, with_queues(c, r, queues, options)


CASES = {case.__name__: case for case in (stale, fresh, herd, plain, queued)}


def _on_engines(kinds: list[dict[str, Any]], options: Options, *, shared_blocks: int = 0) -> Case:
    """Requests at about the rate that six nodes serve, some of them with deadlines and urgent."""
    g, n, block_tokens = np.random.default_rng(5), 150, 4
    cluster = engine_cluster(kinds, [0, 1, 0, 1, 0, 1], slots=4)
    prompt, output = g.integers(4, 60, n), g.integers(1, 40, n)
    arrival_s = np.cumsum(g.exponential(0.05, n))
    prefixes = None
    if shared_blocks:
        counts = prompt // block_tokens
        first = np.concatenate([[0], np.cumsum(counts)])
        place, row = np.arange(first[-1]) - np.repeat(first[:-1], counts), np.repeat(np.arange(n), counts)
        own = 3 * shared_blocks + np.arange(first[-1])
        block = np.where(place < shared_blocks, row % 3 * shared_blocks + place, own)
        _, numbers = np.unique(block, return_inverse=True)
        prefixes = Prefixes(numbers.astype(np.int32), first, prompt.astype(float), float(block_tokens))
    work = {"deadline_s": arrival_s + 20.0 * g.random(n), "priority": g.integers(0, 2, n)}
    return cluster, token_requests(cluster, arrival_s, prompt, output, prefixes, **work), options


def language_models() -> Case:
    """A fast and a slow type with little KV memory, and prompts that share beginnings."""
    slow = model_type(step_s=0.02, token_s=0.002, context_s=1e-5, kv_tokens=400)
    return _on_engines([model_type(kv_tokens=600, context_s=1e-5), slow], Options(), shared_blocks=3)


def stale_language_models() -> Case:
    """Two dispatchers with old reports."""
    kinds = [model_type(kv_tokens=600), model_type(batch_max=3)]
    return _on_engines(kinds, Options(telemetry_period_s=0.5, dispatchers=2))


def processor_sharing() -> Case:
    """Nodes that serve all at once, and as many as two at full speed."""
    few = shared_type(np.maximum(1.0, np.arange(17) / 2))
    return _on_engines([shared_type(np.maximum(1.0, np.arange(17))), few], Options())


def mixed() -> Case:
    """Language models beside nodes with slots."""
    return _on_engines([model_type(kv_tokens=600), {}], Options())


ENGINE_CASES = {
    case.__name__: case for case in (language_models, processor_sharing, mixed, stale_language_models)
}


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
    """Policies made anew, so that nothing can hide in them between runs; with weights if they take any."""
    name, _, order = spec.partition("+")
    policy = with_weights(policy_class(name)())
    return Decider.of(policy, policy_class(order)() if order else None)
