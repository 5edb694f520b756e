"""`python -m bench.forecast`: forecasts on the recorded traces, their speed and the queueing formulas.

Saves bench/forecast.json and writes the page of docs/benchmarks/; `--docs` only writes the page, and names of
parts measure only those anew. The traces are read from ../shared/data beside the checkout; those that are not
there are left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from bench.forecast_page import FAR, MIXTURE, page
from bench.forecast_series import DATA, FURTHER, SOURCES, Source
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.forecast import Forecaster, errors_by_origin, rolling_accuracy
from trimtab.forecast.queueing import ggc

RESULTS, PAGE = ROOT / "bench" / "forecast.json", ROOT / "docs" / "benchmarks" / "forecast.md"

DRAWS_OF_ORIGINS, BLOCK = 4_000, 24


def _read(sources: Sequence[Source]) -> Iterator[tuple[Source, Any]]:
    for source in sources:
        if (DATA / source.file).exists():
            yield source, source.read()
        else:
            print(f"left out: {source.file} is not there", file=sys.stderr)


def _scored(source: Source, values: Any, horizon: int, has_arima: bool) -> dict[str, Any]:
    print(f"{source.name}, {source.step}, {horizon} …", file=sys.stderr, flush=True)
    rows = rolling_accuracy(values, horizon=horizon, period=source.period, least=0.0, has_arima=has_arima)
    named = {"series": source.name, "step": source.step, "horizon": horizon, "values": len(values)}
    return {**named, "is_held_out": source.is_held_out, "methods": [asdict(row) for row in rows]}


def accuracy() -> Iterator[dict[str, Any]]:
    for source, values in _read(SOURCES):
        for horizon in source.horizons:
            found = _scored(source, values, horizon, has_arima=True)
            yield found | _doubt(found, values, source.period)


def further() -> Iterator[dict[str, Any]]:
    for source, values in _read(FURTHER):
        for horizon in source.horizons:
            yield _scored(source, values, horizon, has_arima=False)


def _doubt(row: dict[str, Any], values: Any, period: int) -> dict[str, Any]:
    """Where the mixture is far behind the best: the ratio without its worst origin, and over drawn ones.

    Origins are drawn anew in blocks, as errors of neighbours go together (Künsch, Annals of Statistics 17,
    1989).
    """
    mase = {method["method"]: method["mase"] for method in row["methods"]}
    best = min((name for name in mase if name != MIXTURE), key=mase.__getitem__)
    if mase[MIXTURE] <= FAR * mase[best] or best == "ARIMA":
        return {}
    ours, theirs = (
        errors_by_origin(values, method, horizon=row["horizon"], period=period, least=0.0)
        for method in (MIXTURE, best)
    )
    others = np.arange(len(ours)) != (ours - theirs).argmax()
    starts = np.random.default_rng(0).integers(0, len(ours), (DRAWS_OF_ORIGINS, -(-len(ours) // BLOCK)))
    at = (starts[:, :, None] + np.arange(BLOCK)).reshape(DRAWS_OF_ORIGINS, -1)[:, : len(ours)] % len(ours)
    ratios = ours[at].sum(axis=1) / theirs[at].sum(axis=1)
    low, high = (float(np.quantile(ratios, level)) for level in (0.05, 0.95))
    without = float(ours[others].sum() / theirs[others].sum())
    return {"origins": len(ours), "ratio_without_worst": without, "ratio_5": low, "ratio_95": high}


def _median_ms(run: Callable[[], Any], repetitions: int) -> float:
    took_s = []
    for _ in range(repetitions):
        begun_s = time.perf_counter()
        run()
        took_s.append(time.perf_counter() - begun_s)
    return 1e3 * statistics.median(took_s)


def speed() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for series, horizon, period in ((100, 6, 0), (1000, 1, 0), (1000, 6, 24), (1000, 24, 24), (10_000, 6, 0)):
        forecaster = Forecaster(series, horizon=horizon, period=period, least=0.0)
        rows = iter(rng.poisson(20.0, (600, series)).astype(float))
        for _ in range(300):
            forecaster.update(next(rows))
        update_ms = _median_ms(lambda f=forecaster, r=rows: f.update(next(r)), 300)
        forecast_ms = _median_ms(forecaster.forecast, 10)
        sizes = {"series": series, "horizon": horizon, "period": period, "experts": len(forecaster.names)}
        yield {**sizes, "update_ms": update_ms, "forecast_ms": forecast_ms}


SERVERS, LOAD, REQUESTS, SEEDS = 16, 0.9, 300_000, 5
DRAWS = {
    "constant": (0.0, lambda n, rng: np.ones(n)),
    "Erlang-2": (0.5, lambda n, rng: rng.gamma(2.0, 0.5, n)),
    "exponential": (1.0, lambda n, rng: rng.exponential(1.0, n)),
    "lognormal": (2.0, lambda n, rng: rng.lognormal(-np.log(3.0) / 2, np.sqrt(np.log(3.0)), n)),
    "hyperexponential": (4.0, lambda n, rng: _hyper(n, rng)),
}
STATIONS = (
    ("exponential", "constant"),
    ("exponential", "lognormal"),
    ("exponential", "hyperexponential"),
    ("hyperexponential", "lognormal"),
    ("constant", "exponential"),
    ("Erlang-2", "Erlang-2"),
)


def _hyper(n: int, rng: np.random.Generator, scv: float = 4.0) -> Any:
    p = 0.5 * (1.0 + np.sqrt((scv - 1.0) / (scv + 1.0)))
    return rng.exponential(1.0, n) / (2.0 * np.where(rng.random(n) < p, p, 1.0 - p))


def _waits_s(gaps: str, services: str, seed: int) -> Any:
    """Waits at 16 servers, by the recursion of Kiefer and Wolfowitz (1955)."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(DRAWS[gaps][1](REQUESTS, rng)) / (SERVERS * LOAD)
    free_s, waits_s = [0.0] * SERVERS, np.empty(REQUESTS)
    heapify(free_s)
    for i, (at_s, service_s) in enumerate(
        zip(arrival_s.tolist(), DRAWS[services][1](REQUESTS, rng).tolist(), strict=True)
    ):
        begin_s = max(at_s, free_s[0])
        heapreplace(free_s, begin_s + service_s)
        waits_s[i] = begin_s - at_s
    return waits_s[REQUESTS // 10 :]


def stations() -> Iterator[dict[str, Any]]:
    for gaps, services in STATIONS:
        runs = [_waits_s(gaps, services, seed) for seed in range(SEEDS)]
        wait_s, waits = (
            float(np.mean([f(run) for run in runs])) for f in (np.mean, lambda w: (w > 1e-9).mean())
        )
        demand = (SERVERS, SERVERS * LOAD, 1.0, DRAWS[services][0], DRAWS[gaps][0])
        found = {"gaps": gaps, "services": services, "wait_s": wait_s, "wait_frac": waits}
        for method in ("whitt", "allen-cunneen"):
            station = ggc(*demand, method)  # type: ignore[arg-type]
            found[f"{method} wait"] = station.wait_s / wait_s - 1.0
            found[f"{method} waits"] = station.wait_frac / waits - 1.0
        yield found


PARTS = {"speed": speed, "stations": stations, "accuracy": accuracy, "further": further}


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.forecast", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all")
    options = parser.parse_args(given)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not options.docs:
        measure(options.parts or list(PARTS))
    write_page(PAGE, page(saved_figures(RESULTS)))


def measure(parts: Sequence[str]) -> None:
    """Measure these parts and save them beside the others; the machine named is that of the speed."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if "speed" in parts:
        results["machine"] = machine()
    results["versions"] = versions()
    results |= {part: list(PARTS[part]()) for part in parts}
    save_figures(RESULTS, results)


if __name__ == "__main__":
    main()
