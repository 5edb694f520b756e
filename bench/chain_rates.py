"""Rates of the host of chains beside a bare loop, whatever the backend."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trimtab.chains import Chain, Session
from trimtab.live.stage_backend import StageBackend


def host_rate_per_s(
    backend: StageBackend, chain: Chain, inputs: range, warm: int, journal: Path | None
) -> float:
    """Stages per second of a run of a chain of one stage, after `warm` inputs that do not count."""
    with Session(chain, on=backend, journal=journal) as session:
        session.run(chain, range(warm)).wait()
        begun_s = time.perf_counter()
        session.run(chain, inputs).wait()
        return len(inputs) / (time.perf_counter() - begun_s)


def throughput(
    bare_per_s: Callable[[], float], host_per_s: Callable[[Path | None], float], rounds: int
) -> dict[str, float]:
    """Rates, and the host's over that of the bare loop: medians of rounds that take turns.

    `host_per_s` takes the folder of a journal, or None.
    """
    rates: dict[str, list[float]] = {"bare": [], "host": [], "host_with_journal": []}
    for _ in range(rounds):
        rates["bare"].append(bare_per_s())
        rates["host"].append(host_per_s(None))
        with tempfile.TemporaryDirectory() as folder:
            rates["host_with_journal"].append(host_per_s(Path(folder)))
    found = {f"{name}_per_s": statistics.median(rate) for name, rate in rates.items()}
    for name in ("host", "host_with_journal"):
        ratios = [a / b for a, b in zip(rates[name], rates["bare"], strict=True)]
        found[f"{name}_over_bare"] = statistics.median(ratios)
    return found
