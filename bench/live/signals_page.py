"""docs/benchmarks/live-signals.md from saved results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.live.page import percent, seconds
from bench.live.signals_course import (
    AWAY_S,
    BUSY_FRAC,
    BUSY_S,
    CALM_S,
    LINK_MIB_PER_S,
    PAYLOAD_MIB,
    PLACES,
    SLOTS,
    SPEEDS,
    WITH_PAYLOAD,
)
from bench.page import markdown_table

REPLAY_GOAL_FRAC = 0.10  # of the mean


def page(saved: Mapping[str, Any]) -> str:
    """The whole page."""
    return _head(saved) + _table(saved["policies"]) + _verdict(saved["policies"])


def _head(saved: Mapping[str, Any]) -> str:
    on = saved["machine"]
    count = {
        name: sum(getattr(place, name) for place in PLACES) for name in ("is_busy", "is_far", "is_slow_link")
    }
    return f"""<!-- Made by `python -m bench.live.signals`; edit bench/live/signals_page.py instead. -->

# Policies that read signals, live

`make bench-live-signals`: each policy runs in its own gateway (`trimtab serve`) over its own {len(PLACES)} image servers
with {SLOTS} slots each, half of speed {SPEEDS["big"]:g} and half of {SPEEDS["small"]:g}, all of them HTTP processes.

- {count["is_busy"]} of them are busy with work that the gateway did not send: for {BUSY_S:g} s of each {BUSY_S + CALM_S:g} s
  others use {100 * BUSY_FRAC:g} % of the processors. Service is slower by as much, and node_exporter's page says so.
- {count["is_far"]} are in another zone, {1e3 * AWAY_S:g} ms away. The gateway measures it by its health checks.
- {count["is_slow_link"]} are behind a link of {LINK_MIB_PER_S:g} MiB/s, as declared; {100 * WITH_PAYLOAD:g} % of the requests
  have a body of {PAYLOAD_MIB} MiB.
- All gateways get the same {saved["requests"]} generated requests at the same time, {saved["rate_per_s"]:.2f} per second: a load
  of {saved["load"]:g}, transfers not counted. {saved["first_requests"]} requests before them are in no figure.

Differences are paired, over the same requests, with 95 % intervals from batches of consecutive requests. *Replay* is
`trimtab replay` of the gateway's own recording under the recorded policy, against what was recorded.

Measured {saved["measured"]} on {on["cpu"]}, {on["cores"]} cores for clients, gateways and all backends,
beside other work; load average {on["load_average"]:g} at the start.

"""


def _table(policies: list[dict[str, Any]]) -> str:
    baseline = policies[0]
    head = ["policy", "mean s", "p99 s", f"mean − {baseline['policy']}, s", "to it", "replay: mean", "p99"]
    rows = []
    for one in policies:
        found, error, mean_s = one["difference_s"], one["replay_error_frac"], one["live"]["mean_s"]
        is_other = one is not baseline
        rows.append(
            [
                one["policy"],
                seconds(mean_s),
                seconds(one["live"]["p99_s"]),
                f"{found['mean']:+.3f} ± {found['ci95']:.3f}" if is_other else "–",
                percent(mean_s / baseline["live"]["mean_s"] - 1.0) if is_other else "–",
                percent(error["mean"]),
                percent(error["p99"]),
            ]
        )
    return markdown_table(head, rows)


def _verdict(policies: list[dict[str, Any]]) -> str:
    better = [one for one in policies[1:] if one["difference_s"]["mean"] + one["difference_s"]["ci95"] < 0.0]
    near = [one for one in policies if abs(one["replay_error_frac"]["mean"]) <= REPLAY_GOAL_FRAC]
    return f"""
{len(better)} of {len(policies) - 1} are better than {policies[0]["policy"]}, interval included. The replay is within
{100 * REPLAY_GOAL_FRAC:g} % of the recorded mean for {len(near)} of {len(policies)}.
"""
