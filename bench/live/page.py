"""docs/benchmarks/live.md from saved results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.live.course import WARM_REQUESTS
from bench.live.traffic import MEAN_S, NODES, SPEEDS
from bench.page import markdown_table

MEAN_GOAL_FRAC, P99_GOAL_FRAC = 0.05, 0.10
BASELINES = ("round-robin", "least-connections")
REPLAYS = ("replay_error_frac", "replay_error_frac_of_all")

Figures = Mapping[str, float]


def page(saved: Mapping[str, Any]) -> str:
    """The whole page."""
    return "\n".join([_head(saved), _policies(saved["policies"]), _predictions(saved["policies"])])


def _head(saved: Mapping[str, Any]) -> str:
    on, counted = saved["machine"], len(saved["policies"][0]["segments"])
    fast, slow = (NODES.count(kind) for kind in SPEEDS)
    nodes = f"{fast} image servers of speed {SPEEDS['fast']:g} and {slow} of speed {SPEEDS['slow']:g}"
    return f"""<!-- Made by `python -m bench.live`; edit bench/live/page.py instead. -->

# Policies live

`make bench-live`: each policy in a gateway of its own (`trimtab serve`, a process), over backends of its own:
{nodes}, real HTTP processes that serve one request at a time.
All gateways get the same requests at the same time: {counted} segments of {saved["requests"]} requests
of GenTD26, at {saved["load"]:g} of the capacity on average (the trace comes in bursts far above it), each in
proportion to what was recorded, {MEAN_S:.1f} s on average at speed 1. Steps and images are in the request;
what they do not explain of the recorded time is hidden from the gateway. Estimates are learned in
{WARM_REQUESTS} requests before, and a first segment of {saved["first_requests"]} requests (a window of
`auto` and `what-if`) is in no figure. Completion is what the client sees, from when the request was due.

Measured {saved["measured"]} on {on["cpu"]}, {on["cores"]} cores for clients, gateways and all backends,
with other work beside; load average {on["load_average"]:g} when it began.
"""


def _policies(policies: list[dict[str, Any]]) -> str:
    head = ["policy", "mean s", "p99 s", *(f"mean − {name}, s" for name in BASELINES)]
    rows = [
        [one["policy"], _seconds(one["live"]["mean_s"]), _seconds(one["live"]["p99_s"]), *_apart(one)]
        for one in policies
    ]
    return f"""## What clients saw

Differences are paired, over the same requests, with 95 % intervals from batches of consecutive requests.

{markdown_table(head, rows)}
A gateway's node takes as many requests as it has slots, and what finds no node waits in one queue. So while
all are busy no policy can choose, and they differ where several nodes are idle: the slow one or the fast one.
"""


def _apart(one: Mapping[str, Any]) -> Iterator[str]:
    for name in BASELINES:
        found = one["difference_s"][name]
        yield "–" if name == one["policy"] else f"{found['mean']:+.3f} ± {found['ci95']:.3f}"


def _predictions(policies: list[dict[str, Any]]) -> str:
    head = [
        "policy",
        "replay: mean",
        "p99",
        "of all: mean",
        "p99",
        "predicted: mean s",
        "to live",
        "p99 s",
        "to live",
        "by segment: mean",
    ]
    rows = [
        [
            one["policy"],
            *(_percent(one[of][name]) for of in REPLAYS for name in ("mean", "p99")),
            *_told(one),
            " ".join(_percent(_error(s, "mean_s")) for s in one["segments"]),
        ]
        for one in policies
    ]
    counted, of_all = ([one[of] for one in policies] for of in REPLAYS)
    ahead = [{"mean": _error(one, "mean_s"), "p99": _error(one, "p99_s")} for one in policies]
    goals = f"mean within {100 * MEAN_GOAL_FRAC:g} %, p99 within {100 * P99_GOAL_FRAC:g} %"
    return f"""## What the simulator says of the same run

*Replay*: `trimtab replay` of the gateway's own recording, under the recorded policy, against the recorded
times: of the requests in the figures above (`--after`), and of all. Before those, estimates were being
learned live, while a replay has the last ones from its beginning on; `auto` and `what-if` had no whole window
yet; and one burst there has nearly all of the longest completions.

*Predicted*: a simulation of the trace and the nodes as declared, with exact estimates, without anything of
the run but what HTTP adds to a request: {_overheads(policies)}, the mean of the segment that does not count.

Goals: {goals}.
{_met("The replay", counted)}
{_met("That of all", of_all)}
{_met("The prediction", ahead)}

{markdown_table(head, rows)}"""


def _told(one: Mapping[str, Any]) -> Iterator[str]:
    for name in ("mean_s", "p99_s"):
        yield _seconds(one["predicted"][name])
        yield _percent(_error(one, name))


def _error(of: Mapping[str, Any], name: str) -> float:
    return float(of["predicted"][name] / of["live"][name] - 1.0)


def _met(what: str, errors: list[dict[str, float]]) -> str:
    within = sum(abs(e["mean"]) <= MEAN_GOAL_FRAC and abs(e["p99"]) <= P99_GOAL_FRAC for e in errors)
    return f"{what} meets both for {within} of {len(errors)} policies."


def _overheads(policies: list[dict[str, Any]]) -> str:
    found = [1e3 * one["overhead_s"] for one in policies]
    return f"{min(found):.1f} to {max(found):.1f} ms"


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _percent(frac: float) -> str:
    return f"{100 * frac:+.1f} %"
