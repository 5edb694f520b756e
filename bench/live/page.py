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

`make bench-live`: each policy runs in its own gateway (`trimtab serve`) over its own backends: {nodes},
HTTP processes that serve one request at a time.

- All gateways get the same requests at the same time: {counted} segments of {saved["requests"]} requests of GenTD26, at
  {saved["load"]:g} of the capacity on average, in bursts far above it.
- Service times are proportional to the recorded ones, {MEAN_S:.1f} s on average at speed 1. The gateway sees steps and
  images of a request, not its service time.
- {WARM_REQUESTS} requests before the measurement teach the estimates. A first segment of {saved["first_requests"]}
  requests (a window of `auto` and `what-if`) is not counted.
- Completion is what the client sees, from the time when the request was due.

Measured {saved["measured"]} on {on["cpu"]}, {on["cores"]} cores for clients, gateways and all backends,
beside other work; load average {on["load_average"]:g} at the start.
"""


def _policies(policies: list[dict[str, Any]]) -> str:
    head = ["policy", "mean s", "p99 s", *(f"mean − {name}, s" for name in BASELINES)]
    rows = [
        [one["policy"], seconds(one["live"]["mean_s"]), seconds(one["live"]["p99_s"]), *_apart(one)]
        for one in policies
    ]
    return f"""## What clients saw

Differences are paired, over the same requests, with 95 % intervals from batches of consecutive requests.

{markdown_table(head, rows)}
A node of the gateway takes as many requests as it has slots; other requests wait in one queue. Policies therefore differ
only while several nodes are idle.
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
            *(percent(one[of][name]) for of in REPLAYS for name in ("mean", "p99")),
            *_told(one),
            " ".join(percent(_error(s, "mean_s")) for s in one["segments"]),
        ]
        for one in policies
    ]
    counted, of_all = ([one[of] for one in policies] for of in REPLAYS)
    ahead = [{"mean": _error(one, "mean_s"), "p99": _error(one, "p99_s")} for one in policies]
    goals = f"mean within {100 * MEAN_GOAL_FRAC:g} %, p99 within {100 * P99_GOAL_FRAC:g} %"
    return f"""## What the simulator says of the same run

*Replay* is `trimtab replay` of the gateway's own recording under the recorded policy, compared with the recorded times:
of the requests counted above (`--after`), and of all. During the earlier requests the gateway still learned its
estimates, while a replay has the final estimates from the start.

*Predicted* is a simulation of the trace and the declared nodes with exact estimates. All it knows of the run is the time
that HTTP adds to a request: {_overheads(policies)}, the mean of the segment that is not counted.

Goals: {goals}.
{_met("The replay", counted)}
{_met("That of all", of_all)}
{_met("The prediction", ahead)}

{markdown_table(head, rows)}"""


def _told(one: Mapping[str, Any]) -> Iterator[str]:
    for name in ("mean_s", "p99_s"):
        yield seconds(one["predicted"][name])
        yield percent(_error(one, name))


def _error(of: Mapping[str, Any], name: str) -> float:
    return float(of["predicted"][name] / of["live"][name] - 1.0)


def _met(what: str, errors: list[dict[str, float]]) -> str:
    within = sum(abs(e["mean"]) <= MEAN_GOAL_FRAC and abs(e["p99"]) <= P99_GOAL_FRAC for e in errors)
    return f"{what} meets both for {within} of {len(errors)} policies."


def _overheads(policies: list[dict[str, Any]]) -> str:
    found = [1e3 * one["overhead_s"] for one in policies]
    return f"{min(found):.1f} to {max(found):.1f} ms"


def seconds(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def percent(frac: float) -> str:
    """Signed, one decimal."""
    return f"{100 * frac:+.1f} %"
