"""The loop against others on the same work: SimPy, a Python loop over a heap, a C loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from bench.figures import (
    Benchmark,
    Effort,
    Measured,
    Skipped,
    Target,
    at_least,
    at_most,
    figure,
    in_turns,
    per_second,
    ratios,
)
from bench.peers_c import POLICY_NUMBERS, compiler, run_c
from bench.peers_python import lists_of, run_heapq, run_simpy
from bench.work import SLOTS_TEXT, must_agree, slots, timed
from trimtab.experiments.scenario.build import RunInputs

PYTHON_REQUESTS, C_REQUESTS = 100_000, 1_000_000


def _against(
    built: RunInputs, policy: str, peer: str, run: Callable[[], tuple[float, float]], repetitions: int
) -> tuple[list[float], list[float]]:
    """Loop seconds, ours and theirs, in turns; raises RuntimeError if the work was not the same."""
    ours = timed(built, policy)
    must_agree(f"{policy} against {peer}", ours.completion_mean_s, run()[1])
    own_s, peer_s = in_turns(repetitions, lambda: timed(built, policy).loop_s, lambda: run()[0])
    return own_s, peer_s


def _figures(
    built: RunInputs, policy: str, peer: str, own_s: list[float], peer_s: list[float], target: Target | None
) -> Iterator[Measured]:
    n, n_nodes = len(built.requests), built.cluster.n_nodes
    labels = {"peer": peer, "policy": policy, "nodes": n_nodes}
    for what, seconds in (("trimtab", own_s), ("peer", peer_s)):
        yield figure(per_second(n, seconds), "million requests/s", **labels, figure=what)
    if peer == "C":
        yield figure(ratios(own_s, peer_s), "× its time", target, **labels, figure="time over the peer's")
    else:
        yield figure(ratios(peer_s, own_s), "× as fast", target, **labels, figure="speed over the peer's")


def _python_peers(effort: Effort) -> Iterator[Measured]:
    for n_nodes in effort.nodes(100, 1_000):
        built = slots(n_nodes, effort.requests(PYTHON_REQUESTS))
        given = lists_of(built)
        for peer, run, target in (("SimPy", run_simpy, at_least(30)), ("Python heapq", run_heapq, None)):
            own_s, peer_s = _against(
                built, "power-of-d", peer, functools.partial(run, given), effort.repetitions
            )
            yield from _figures(built, "power-of-d", peer, own_s, peer_s, target)


def _c_peer(effort: Effort) -> Iterator[Measured]:
    if compiler() is None:
        yield Skipped({"peer": "C"}, "no C compiler on the path")
        return
    for n_nodes in effort.nodes(100, 1_000, 10_000):
        built = slots(n_nodes, effort.requests(C_REQUESTS))
        for policy in POLICY_NUMBERS:
            own_s, peer_s = _against(
                built, policy, "C", functools.partial(run_c, built, policy), effort.repetitions
            )
            yield from _figures(built, policy, "C", own_s, peer_s, at_most(3))


def measure(effort: Effort) -> Iterator[Measured]:
    yield from _python_peers(effort)
    yield from _c_peer(effort)


BENCHMARK = Benchmark(
    "peers",
    "Against others on the same work",
    "The same arrivals, service times and decisions; mean completions agree to 1e-9, or there is no "
    f"comparison. {SLOTS_TEXT}; {PYTHON_REQUESTS:,} requests, against C {C_REQUESTS:,}. The peers know "
    "nothing but slots and first come first served. Draws of the Python peers are made beforehand; C and "
    "trimtab make their own.",
    measure,
    profile="The C loop keeps 24 bytes a node and 24 a request. trimtab's loop keeps node records, queues of "
    "any order, slots, a change log and estimates for policies that it does not know.",
)
