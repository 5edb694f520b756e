"""Short stages in one attempt against one attempt each: ratios of rates, taken in turns.

    python -m bench.chain_fusion

A chain of five stages, each of a declared 1 ms that it sleeps, or that return at once; two worker processes;
with and without a journal. `ratio` is the rate with fusion over that without, the median of rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trimtab.chains import Chain, Session, chain, stage
from trimtab.chains.run_defaults import FUSED_S
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageNode

RESULTS = Path(__file__).with_name("chain-fusion.json")
WORKERS, INPUTS, ROUNDS, STAGES, SHORT_S = 2, 400, 5, 5, 0.001


@stage(cpu=0, cost_s=SHORT_S)
def short(n: int) -> int:
    time.sleep(SHORT_S)
    return n + 1


@stage(cpu=0, cost_s=SHORT_S)
def none(n: int) -> int:
    return n + 1


@chain
def of_a_millisecond(n: int) -> Any:
    for _ in range(STAGES):
        n = short(n)
    return n


@chain
def of_no_time(n: int) -> Any:
    for _ in range(STAGES):
        n = none(n)
    return n


def main() -> None:
    """Measure, print and save."""
    found = {
        made.name: {"journal": compared(made, is_kept=True), "no_journal": compared(made, is_kept=False)}
        for made in (of_a_millisecond, of_no_time)
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout, indent=1)
    print()


def compared(made: Chain, *, is_kept: bool) -> dict[str, float]:
    """Stages per second in both ways, and their ratio."""
    rates: dict[str, list[float]] = {"fused": [], "apart": []}
    for _ in range(ROUNDS):
        for name, fuse_s in (("fused", FUSED_S), ("apart", 0.0)):
            with tempfile.TemporaryDirectory() as folder:
                rates[name].append(rate_per_s(made, fuse_s, Path(folder) if is_kept else None))
    found = {f"{name}_per_s": statistics.median(rate) for name, rate in rates.items()}
    found["ratio"] = statistics.median(a / b for a, b in zip(rates["fused"], rates["apart"], strict=True))
    return found


def rate_per_s(made: Chain, fuse_s: float, journal: Path | None) -> float:
    """Stages per second of a run."""
    backend = Processes([StageNode("one", slots=WORKERS)])
    with Session(made, on=backend, journal=journal, fuse_s=fuse_s) as session:
        session.run(made, range(WORKERS)).wait()
        begun_s = time.perf_counter()
        assert session.run(made, range(INPUTS)).values() == [n + STAGES for n in range(INPUTS)]
        return STAGES * INPUTS / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    main()
