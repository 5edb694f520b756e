"""`python -m bench.live.signals`: policies that read signals, live over HTTP, beside least-connections.

Then docs/benchmarks/live-signals.md. Each policy has its own gateway and backends; all get the same generated
requests at the same time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.live.course import WARM_REQUESTS, Contestant, gateways, send, warm_up
from bench.live.signals_course import LOAD, SETTINGS, generated, nodes, rate_per_s
from bench.live.signals_page import page
from bench.live.summary import difference_s, figures, replay_error_frac
from bench.live.traffic import counted_since_s
from bench.machine import machine
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.gateway.app.readiness import compile_here

RESULTS, PAGE = ROOT / "bench" / "live-signals.json", ROOT / "docs" / "benchmarks" / "live-signals.md"
BASELINE = "least-connections"
POLICIES = (BASELINE, "load-aware", "congestion-aware", "locality", "predictive")
FIRST_REQUESTS, REQUESTS = 60, 360  # the first ones are in no figure


def _told(one: Contestant, baseline: Contestant) -> dict[str, Any]:
    recording = one.folder / "recording"
    (_, counted_s), (_, other_s) = one.completion_s, baseline.completion_s
    since_s = counted_since_s(recording, WARM_REQUESTS + len(one.completion_s[0]))
    return {
        "policy": one.policy,
        "live": figures(counted_s),
        "difference_s": difference_s(counted_s, other_s),
        "replay_error_frac": replay_error_frac(recording, since_s),
    }


def measure(first: int, requests: int, policies: tuple[str, ...], keep: Path | None) -> dict[str, Any]:
    """Run all of it. `keep`: a folder for the recordings."""
    compile_here(policies)  # once, rather than each gateway for itself
    on, begun = machine(), time.strftime("%Y-%m-%d %H:%M")
    with tempfile.TemporaryDirectory() as name:
        folder = keep or Path(name)
        with gateways(policies, folder, tuple(nodes()), SETTINGS) as contestants:
            asyncio.run(warm_up(contestants))
            for number, size in enumerate((first, requests)):
                traffic = generated(number, size)
                print(f"{size} requests: {traffic.arrival_s[-1]:.0f} s", file=sys.stderr, flush=True)
                asyncio.run(send(traffic, contestants))
        told = [_told(one, contestants[0]) for one in contestants]
    asked = {"load": LOAD, "rate_per_s": rate_per_s(), "first_requests": first, "requests": requests}
    return {"measured": begun, "machine": on, **asked, "policies": told}


def main() -> int:
    """Measure, save, write the page."""
    parser = page_parser("bench.live.signals", __doc__)
    parser.add_argument("--first", type=int, default=FIRST_REQUESTS, help="requests that are in no figure")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--policy", action="append", help="beside the baseline; default: all of the page")
    parser.add_argument("--keep", type=Path, help="folder for the recordings, which exists and is empty")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to save")
    arguments = parser.parse_args()
    if not arguments.docs:
        policies = (BASELINE, *arguments.policy) if arguments.policy else POLICIES
        saved = measure(arguments.first, arguments.requests, policies, arguments.keep)
        save_figures(arguments.out, saved)
    if arguments.out == RESULTS:
        write_page(PAGE, page(saved_figures(RESULTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
