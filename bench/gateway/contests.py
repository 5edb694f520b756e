"""The contests: each yields figures per proxy, and ratios that have a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.figures import (
    Benchmark,
    Effort,
    Measured,
    Skipped,
    Target,
    at_least,
    at_most,
    figure,
    median_of,
    ratios,
)
from bench.gateway.course import DIRECT, Course, Outcome

OURS = "trimtab"
VLLM, LITELLM, HAPROXY = "vllm-router rr", "litellm", "haproxy"
SIZES = {1024: "1 KiB", 8 * 1024: "8 KiB", 64 * 1024: "64 KiB", 1024 * 1024: "1 MiB"}
Values = dict[str, list[float]]
PAIRS = 31  # of rounds beside a peer, from which a target's figure comes


def _skipped(course: Course) -> Iterator[Measured]:
    for name, reason in course.failed.items():
        yield Skipped({"proxy": name}, reason)


def _broken(outcomes: dict[str, list[Outcome]], **labels: str) -> Iterator[Measured]:
    """Those whose requests failed: they have no figure."""
    for name in list(outcomes):
        bad = next((o for o in outcomes[name] if o.load["errors"] or not o.requests), None)
        if bad is not None:
            del outcomes[name]
            reason = f"{bad.load['errors']} of {bad.requests} requests failed: {bad.load['problem']}"
            yield Skipped({**labels, "proxy": name}, reason)


def _against(
    outcomes: dict[str, list[Outcome]],
    peer: str,
    value: Callable[[Outcome], float],
    target: Target | None,
    what: str,
    **labels: str,
) -> Iterator[Measured]:
    """Our values over a peer's, round by round."""
    if OURS in outcomes and peer in outcomes:
        own, other = ([value(o) for o in outcomes[name]] for name in (OURS, peer))
        label = f"{what}, over {peer}'s"
        yield median_of(ratios(own, other), "×", target, **labels, proxy=OURS, figure=label)


def _duel(
    course: Course, effort: Effort, run: Callable[[str], Outcome], peer: str, pairs: int = PAIRS
) -> dict[str, list[Outcome]]:
    """Rounds of us and a peer alone; empty unless both can be measured.

    What has a target comes from these: a machine of which others use a part changes its speed within
    seconds, and so between two turns of a round of all proxies.
    """
    if not {OURS, peer} <= set(course.names()):
        return {}
    outcomes = course.rounds(2 if effort.is_quick else pairs, [OURS, peer], run)
    return {} if list(_broken(outcomes)) else outcomes


def requests(course: Course, effort: Effort) -> Iterator[Measured]:
    """Requests per second of processor time, closed loop."""
    names = course.names()
    yield from _skipped(course)
    for size, text in SIZES.items():
        course.answer_with(size=size)
        seconds = 0.3 if effort.is_quick else 3.0

        def run(name: str, size: int = size, seconds: float = seconds) -> Outcome:
            many = 8 if name != DIRECT and course.proxy(name).is_slow else 16 if size > 2**18 else 64
            return course.run(name, "closed", size=size, connections=many, seconds=seconds)

        outcomes = course.rounds(effort.repetitions, [DIRECT, *names], run)
        yield from _broken(outcomes, size=text)
        for name, done in outcomes.items():
            reached = [o.requests / o.load["took_s"] for o in done]
            yield figure(reached, "requests/s", size=text, proxy=name, figure="reached, load on one core")
            if name == DIRECT:
                continue
            per_core, cpu_us = [_per_core(o) for o in done], [_cpu_s_per_request(o) * 1e6 for o in done]
            yield figure(per_core, "requests/s", size=text, proxy=name, figure="per core")
            yield figure(cpu_us, "µs", size=text, proxy=name, figure="CPU per request")
        is_goal, run = size == 1024, partial(run, seconds=seconds / 3)
        goals = (
            (VLLM, _per_core, at_least(1.3), "requests/s per core"),
            (LITELLM, _per_core, at_least(100), "requests/s per core"),
            (HAPROXY, _cpu_s_per_request, at_most(5), "CPU per request"),
        )
        for peer, value, target, what in goals:
            compared = _duel(course, effort, run, peer) if is_goal else outcomes
            yield from _against(compared, peer, value, target if is_goal else None, what, size=text)


def _per_core(outcome: Outcome) -> float:
    return outcome.requests / outcome.cpu_s


def _cpu_s_per_request(outcome: Outcome) -> float:
    return outcome.cpu_s / outcome.requests


def chunks(course: Course, effort: Effort) -> Iterator[Measured]:
    """Processor time per chunk of 100 streams of 20 chunks/s, and how late chunks come."""
    names = course.names()
    yield from _skipped(course)
    count = 10 if effort.is_quick else 100
    course.answer_with(chunks=count, interval_s=0.05)
    run = partial(_streams, course, streams=10 if effort.is_quick else 100, count=count)
    outcomes = course.rounds(effort.repetitions, [DIRECT, *names], run)
    yield from _broken(outcomes)
    for name, done in outcomes.items():
        late_ms = [o.load["delay_p99_s"] * 1e3 for o in done]
        yield figure(late_ms, "ms", proxy=name, figure="chunk delay p99")
        if name != DIRECT:
            cpu_us = [_cpu_s_per_chunk(o) * 1e6 for o in done]
            yield figure(cpu_us, "µs", proxy=name, figure="CPU per chunk")
    duel = _duel(course, effort, run, VLLM)
    yield from _against(duel, VLLM, _cpu_s_per_chunk, at_most(1), "CPU per chunk")


def _cpu_s_per_chunk(outcome: Outcome) -> float:
    return float(outcome.cpu_s / outcome.load["chunks"])


def _streams(course: Course, name: str, streams: int, count: int) -> Outcome:
    return course.run(name, "streams", size=1024, connections=streams, chunks=count)


def latency(course: Course, effort: Effort) -> Iterator[Measured]:
    """Latency at a modest rate, minus that of the backend itself in the same round."""
    names = course.names()
    yield from _skipped(course)
    course.answer_with(size=1024)
    seconds = 1.0 if effort.is_quick else 8.0
    for rate, chosen in ((200, [n for n in names if not course.proxy(n).is_slow]), (40, names)):
        chosen = [name for name in chosen if rate == 200 or course.proxy(name).is_slow]
        if not chosen:
            continue
        run = partial(course.run, mode="open", rate=rate, seconds=seconds)
        outcomes = course.rounds(effort.repetitions, [DIRECT, *chosen], run)
        added = {quantile: _added_ms(outcomes, quantile) for quantile in ("p50", "p99")}
        yield from _broken(outcomes)
        for name in (n for n in chosen if n in outcomes):
            for quantile, values in added.items():
                yield figure(values[name], "ms", rate=f"{rate}/s", proxy=name, figure=f"added {quantile}")
    short = partial(course.run, mode="open", rate=200, seconds=2.5, uncounted=100)
    duel = _duel(course, effort, short, VLLM, pairs=60)
    for quantile in ("p50", "p99") if duel else ():
        both = zip(duel[OURS], duel[VLLM], strict=True)
        more_ms = [(own.load[_key(quantile)] - peer.load[_key(quantile)]) * 1e3 for own, peer in both]
        what = f"{quantile}, minus {VLLM}'s"
        yield median_of(more_ms, "ms", at_most(0), rate="200/s", proxy=OURS, figure=what)


def _added_ms(outcomes: dict[str, list[Outcome]], quantile: str) -> Values:
    """A quantile of each proxy's latencies minus that of the backend itself in the same round."""
    key = _key(quantile)
    return {
        name: [(o.load[key] - d.load[key]) * 1e3 for o, d in zip(done, outcomes[DIRECT], strict=True)]
        for name, done in outcomes.items()
    }


def _key(quantile: str) -> str:
    return f"latency_{quantile}_s"


def thousand(course: Course, effort: Effort) -> Iterator[Measured]:
    """A thousand streams at once."""
    names = course.names()
    yield from _skipped(course)
    streams, count = (50, 10) if effort.is_quick else (1_000, 200)
    course.answer_with(chunks=count, interval_s=0.05)
    for name in [DIRECT, *names]:
        if name != DIRECT and course.proxy(name).is_slow:
            yield Skipped({"proxy": name}, "it would take many minutes")
            continue
        done = _streams(course, name, streams, count)
        failures = float(streams - (done.requests - done.load["errors"]))
        target = at_most(0) if name == OURS else None
        yield figure([failures], f"of {streams:,} streams", target, proxy=name, figure="failed")
        yield figure([done.load["took_s"]], "s", proxy=name, figure=f"took, {count * 0.05:g} s at best")


def startup(course: Course, effort: Effort) -> Iterator[Measured]:
    """From the start of a process to its first answer, several times; its files are in the system's cache."""
    names = course.names()
    yield from _skipped(course)
    course.answer_with(size=1024)
    for name in names:
        proxy, took_s = course.proxy(name), []
        target = at_most(3.0) if name == OURS else None
        for _ in range(1 if proxy.is_slow else 2 * effort.repetitions - 1):
            contestant = course.start(proxy)
            contestant.tree.stop()
            took_s.append(contestant.startup_s)
        yield figure(took_s, "s", target, proxy=name, figure="start to first answer")


def memory(course: Course, effort: Effort) -> Iterator[Measured]:
    """Memory at the start and after many requests, of processes started for this."""
    course.names()
    yield from _skipped(course)
    course.answer_with(size=1024)
    steps = (1_000,) if effort.is_quick else (100_000, 1_000_000)
    for name in course.names():
        yield from _memory_of(course, name, steps)


def _memory_of(course: Course, name: str, steps: Sequence[int]) -> Iterator[Measured]:
    proxy, at_steps = course.proxy(name), []
    contestant = course.start(proxy)
    tree = contestant.tree
    try:
        yield figure([tree.resident_mib()], "MiB", proxy=name, figure="all processes, at start")
        sent = 0
        for step in steps[:1] if proxy.is_slow else steps:
            number = step // 100 if proxy.is_slow else step - sent
            course.run_on(contestant, "closed", requests=number, connections=8 if proxy.is_slow else 64)
            sent += number
            at_steps.append(tree.busiest_mib())
            goal = at_most(220) if name == OURS else None
            after = f"after {sent:,} requests"
            yield figure([at_steps[-1]], "MiB", goal, proxy=name, figure=f"data process, {after}")
            yield figure([tree.resident_mib()], "MiB", proxy=name, figure=f"all processes, {after}")
        if len(at_steps) > 1:
            goal = at_most(5) if name == OURS else None
            yield figure([at_steps[-1] - at_steps[0]], "MiB", goal, proxy=name, figure="data process, growth")
    finally:
        tree.stop()


_ABOUT = "One core for the proxy, another for the load and four mock backends"


def contests(course: Course) -> dict[str, Benchmark]:
    """By name."""
    rows: tuple[tuple[str, str, str, Callable[[Course, Effort], Iterator[Measured]]], ...] = (
        (
            "requests",
            "Requests per second",
            f"{_ABOUT}; closed loop, 64 connections (16 at 1 MiB; 8 for litellm), bodies of one size both "
            "ways. “Per core” is requests per second of processor time of all the proxy's processes: "
            "a proxy that is faster than the load is not held back by it.",
            requests,
        ),
        (
            "chunks",
            "Streams",
            f"{_ABOUT}; 100 streams of 100 chunks, 20 a second. A chunk's delay is from the backend's write "
            "to the client's read.",
            chunks,
        ),
        (
            "latency",
            "Added latency",
            f"{_ABOUT}; requests at a fixed rate whatever becomes of the others; quantiles minus those of "
            "the same load on a backend in the same round. A rate that litellm can serve for litellm. Beside "
            "vllm-router: 60 pairs of blocks of 2.5 s, without the first half second; median of the pairs "
            "and its 95 % interval.",
            latency,
        ),
        (
            "thousand",
            "A thousand streams",
            f"{_ABOUT}; all within a second, 200 chunks each, 20 a second. A stream fails unless every chunk "
            "and the end come within two minutes.",
            thousand,
        ),
        (
            "startup",
            "Start",
            f"{_ABOUT}; until the first answer to a client that asks all the time. Five times, litellm once.",
            startup,
        ),
        (
            "memory",
            "Memory",
            f"{_ABOUT}; fresh processes. Pages shared between processes count once. The data process is the "
            "one that works most. A hundredth of the requests for litellm.",
            memory,
        ),
    )
    return {
        name: Benchmark(name, title, about, partial(measure, course)) for name, title, about, measure in rows
    }
