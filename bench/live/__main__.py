"""`python -m bench.live`: policies in the gateway over unequal backends, then docs/benchmarks/live.md."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.live.course import WARM_REQUESTS, Contestant, gateways, send, warm_up
from bench.live.page import page
from bench.live.summary import difference_s, figures, replay_error_frac
from bench.live.traffic import LOAD, TRACE, Segment, counted_since_s, overhead_s, predicted_s, segment
from bench.machine import machine
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.gateway.app.readiness import compile_here
from trimtab.policies.hybrid.auto import Auto

RESULTS, PAGE = ROOT / "bench" / "live.json", ROOT / "docs" / "benchmarks" / "live.md"
BASELINES = ("round-robin", "least-connections")
POLICIES = (*BASELINES, "cost-index", "what-if", "auto")
SEGMENTS, REQUESTS = 5, 500  # and one more segment before them, which no figure counts
WARM_UP = Auto().window  # requests of that one; what-if's is as long


def _told(one: Contestant, segments: list[Segment]) -> dict[str, Any]:
    """The results of one policy, by segment and of all of them together."""
    recording = one.folder / "recording"
    beyond_s = overhead_s(segments[0], recording, WARM_REQUESTS)
    simulated_s = predicted_s(segments, one.policy, beyond_s)[1:]
    live_s = one.completion_s[1:]
    since_s = counted_since_s(recording, WARM_REQUESTS + len(segments[0].rows))
    return {
        "policy": one.policy,
        "overhead_s": beyond_s,
        "segments": [
            {"live": figures(live), "predicted": figures(simulated)}
            for live, simulated in zip(live_s, simulated_s, strict=True)
        ],
        "live": figures(np.concatenate(live_s)),
        "predicted": figures(np.concatenate(simulated_s)),
        "replay_error_frac": replay_error_frac(recording, since_s),
        "replay_error_frac_of_all": replay_error_frac(recording, 0.0),
    }


def _differences(one: Contestant, contestants: list[Contestant]) -> dict[str, Any]:
    """Mean completion less that of each baseline, live, over the same requests."""
    own_s = np.concatenate(one.completion_s[1:])
    against = {other.policy: np.concatenate(other.completion_s[1:]) for other in contestants}
    return {name: difference_s(own_s, against[name]) for name in BASELINES}


def measure(n_segments: int, requests: int, step: bool) -> dict[str, Any]:
    """Run all of it. `step`: wait for a line on standard input before each segment."""
    sizes = [WARM_UP, *([requests] * n_segments)]
    segments = [segment(number, size) for number, size in enumerate(sizes)]
    compile_here(POLICIES)  # once, rather than each gateway for itself
    on, begun = machine(), time.strftime("%Y-%m-%d %H:%M")
    with tempfile.TemporaryDirectory() as name:
        with gateways(POLICIES, Path(name)) as contestants:
            asyncio.run(warm_up(contestants))
            for number, of in enumerate(segments):
                print(f"segment {number}: {of.arrival_s[-1]:.0f} s", file=sys.stderr, flush=True)
                if step:
                    sys.stdin.readline()
                asyncio.run(send(of, contestants))
        told = [
            _told(one, segments) | {"difference_s": _differences(one, contestants)} for one in contestants
        ]
    asked = {"load": LOAD, "first_requests": WARM_UP, "requests": requests}
    return {"measured": begun, "machine": on, **asked, "policies": told}


def main() -> int:
    """Measure, save, write the page."""
    parser = page_parser("bench.live", __doc__)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each segment")
    parser.add_argument("--step", action="store_true", help="wait for a line of input before each segment")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to save")
    arguments = parser.parse_args()
    if not arguments.docs:
        if not TRACE.exists():
            parser.error(f"{TRACE} is not there")
        saved = measure(arguments.segments, arguments.requests, arguments.step)
        save_figures(arguments.out, saved)
    if arguments.out == RESULTS:
        write_page(PAGE, page(saved_figures(RESULTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
