"""`python -m bench.forecast`: forecasts on the recorded traces, their speed and the queueing formulas.

Saves bench/forecast.json and writes docs/forecast.md from it; `--docs` only writes the page. The traces are
read from ../shared/data beside the checkout; those that are not there are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.forecast_page import FAR, MIXTURE, page
from bench.machine import machine, versions
from bench.results import write_whole
from bench.startup import ROOT
from trimtab.forecast import Forecaster, errors_by_origin, rolling_accuracy
from trimtab.forecast.queueing import ggc
from trimtab.traces.series import read_counts

DATA = ROOT.parent / "shared" / "data"
RESULTS, PAGE = ROOT / "bench" / "forecast.json", ROOT / "docs" / "forecast.md"


DRAWS_OF_ORIGINS, BLOCK = 4_000, 24


@dataclass(frozen=True)
class Source:
    """A recorded series: counts of the times of a column per window (in the units of the column).

    With `by` it is a column's sum at each time of that other column instead; with `is_level` its mean, and
    the mean of `window` times in a row.
    """

    name: str
    file: str
    column: str
    window: float
    step: str
    horizons: Sequence[int]
    period: int = 0
    by: str = ""
    is_level: bool = False
    has_gaps: bool = False  # rows without a time, which are left out
    is_held_out: bool = False  # not looked at when the experts and their weights were chosen

    def read(self) -> Any:
        path = DATA / self.file
        if self.has_gaps:
            times = pl.read_csv(path, infer_schema_length=None)[self.column].drop_nulls().to_numpy()
            return np.bincount(((times - times.min()) // self.window).astype(int))[:-1].astype(float)
        if not self.by:
            return read_counts(path, self.column, self.window)
        column = pl.col(self.column)
        table = pl.read_csv(path, infer_schema_length=None).group_by(self.by)
        one = (
            table.agg(column.mean() if self.is_level else column.sum()).sort(self.by)[self.column].to_numpy()
        )
        rows = int(self.window) if self.is_level else 1
        return one[: len(one) // rows * rows].reshape(-1, rows).mean(axis=1)


def _itp(cluster: str) -> Source:
    file = f"ms_itp_2021/raw-traces/cluster{cluster}.csv.gz"
    return Source(f"ITP {cluster}", file, "submission_time", 3600, "1 h", (1, 24), 24)


def _level(
    name: str, file: str, column: str, by: str, rows: int, step: str, horizons: Sequence[int], period: int
) -> Source:
    return Source(name, file, column, rows, step, horizons, period, by, is_level=True, is_held_out=True)


SMALL, MM_IMAGE = (f"servegen/{name}-trace.csv.gz" for name in ("m-small-week1", "mm-image"))
OPENB = "alibaba_openb_2023/openb_pod_list_default.csv.gz"
DLRM = "alibaba_dlrm_2025/disaggregated_DLRM_trace.csv.gz"
HELIOS, PHILLY_NODES = "_cluster_sequence_vc.csv.gz", "philly_2017/philly_node_sequence.csv.gz"
DUTY = "alibaba_genai_2026/pod_gpu_duty_cycle_anon.csv.gz"
KALOS = "acme_2023/converted_kalos_trace.csv"
AZURE = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"
SOURCES = (
    Source("Azure conversation", AZURE, "TIMESTAMP", 10, "10 s", (1, 6)),
    Source("Azure conversation", AZURE, "TIMESTAMP", 60, "1 min", (1,)),
    Source("Mooncake", "mooncake_fast25/conversation_trace.jsonl.gz", "timestamp", 10_000, "10 s", (1, 6)),
    Source("GenTD26", "alibaba_genai_2026/lora_request_trace.csv.gz", "gmt_create", 3600, "1 h", (1, 24), 24),
    Source("ServeGen", SMALL, "rate_rps", 600, "10 min", (1, 36), 144, "start_s"),
    Source("Philly", "philly_2017/philly.csv.gz", "timestamp", 3600, "1 h", (1, 24), 24),
    *(_itp(cluster) for cluster in ("01", "02", "04", "05", "06", "08")),
    Source("ServeGen images", MM_IMAGE, "rate_rps", 600, "10 min", (1, 6), by="start_s"),
    Source("openb pods", OPENB, "creation_time", 3600, "1 h", (1, 24), 24),
    Source(
        "DLRM instances", DLRM, "creation_time", 3600, "1 h", (1, 24), 24, has_gaps=True, is_held_out=True
    ),
    *(
        _level(
            f"Helios {name} GPUs",
            f"helios_earth_vc/{name}{HELIOS}",
            "running_gpu_num",
            "time",
            10,
            "10 min",
            (1, 6),
            144,
        )
        for name in ("vc6YE", "vchbv")
    ),
    _level("Philly nodes", PHILLY_NODES, "active", "time", 60, "1 h", (1, 24), 24),
    _level("GenTD26 GPU duty", DUTY, "value", "timestamp_anon", 1, "57 s", (1, 10), 0),
    Source("Kalos jobs", KALOS, "arrival_time", 21_600, "6 h", (1, 4), 4, is_held_out=True),
)


def accuracy() -> Iterator[dict[str, Any]]:
    for source in SOURCES:
        if not (DATA / source.file).exists():
            print(f"left out: {source.file} is not there", file=sys.stderr)
            continue
        values = source.read()
        for horizon in source.horizons:
            print(f"{source.name}, {source.step}, {horizon} …", file=sys.stderr, flush=True)
            rows = rolling_accuracy(values, horizon=horizon, period=source.period, least=0.0, has_arima=True)
            named = {"series": source.name, "step": source.step, "horizon": horizon, "values": len(values)}
            found = {**named, "is_held_out": source.is_held_out, "methods": [asdict(row) for row in rows]}
            yield found | _doubt(found, values, source.period)


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


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m bench.forecast", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="only write the page from what is saved")
    if not parser.parse_args(given).docs:
        parts = {"speed": list(speed()), "stations": list(stations()), "accuracy": list(accuracy())}
        about = {"machine": machine(), "versions": versions()}
        write_whole(RESULTS, json.dumps({**about, **parts}, indent=1, ensure_ascii=False) + "\n")
    write_whole(PAGE, page(json.loads(Path(RESULTS).read_text(encoding="utf-8"))))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
