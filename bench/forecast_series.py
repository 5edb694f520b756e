"""The recorded series that `python -m bench.forecast` forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bench.startup import ROOT
from trimtab.traces.frames import read_counts

DATA = ROOT.parent / "shared" / "data"


@dataclass(frozen=True)
class Source:
    """A recorded series: counts of the times of a column per window (in the units of the column).

    With `by` it is a column's sum at each time of that other column instead; with `is_level` its mean, and
    the mean of `window` times in a row. With `only`, a column and a value, other rows are left out; windows
    are still those of the whole trace.
    """

    name: str
    file: str
    column: str
    window: float
    step: str
    horizons: Sequence[int]
    period: int = 0
    by: str = ""
    only: tuple[str, str | int] | None = None
    is_level: bool = False
    has_gaps: bool = False  # rows without a time, which are left out
    is_held_out: bool = False  # not looked at when the experts and their weights were chosen

    def read(self) -> Any:
        path = DATA / self.file
        if not (self.by or self.only or self.has_gaps):
            return read_counts(path, self.column, self.window)
        table = pl.read_csv(path, infer_schema_length=None)
        return self._sums_or_means(table) if self.by else self._counts(table)

    def _kept(self) -> pl.Expr:
        return pl.lit(True) if self.only is None else pl.col(self.only[0]) == self.only[1]

    def _counts(self, table: pl.DataFrame) -> Any:
        time = pl.col(self.column)
        if table.schema[self.column] == pl.String:
            time = time.str.to_datetime().dt.epoch("s")
        table = table.drop_nulls(self.column)
        at = table.with_columns(at=((time - time.min()) // self.window).cast(pl.Int64))
        kept = at.filter(self._kept())["at"].to_numpy()
        return np.bincount(kept, minlength=at["at"].max() + 1)[:-1].astype(float)  # type: ignore[operator]

    def _sums_or_means(self, table: pl.DataFrame) -> Any:
        column = pl.col(self.column)
        of_time = column.mean() if self.is_level else column.sum()
        one = table.filter(self._kept()).group_by(self.by).agg(of_time).sort(self.by)[self.column].to_numpy()
        rows = int(self.window) if self.is_level else 1
        return one[: len(one) // rows * rows].reshape(-1, rows).mean(axis=1)


def _itp(cluster: str, window: float, step: str, horizon: int, period: int) -> Source:
    file = f"ms_itp_2021/raw-traces/cluster{cluster}.csv.gz"
    return Source(f"ITP {cluster}", file, "submission_time", window, step, (1, horizon), period)


def _level(
    name: str, file: str, column: str, by: str, rows: int, step: str, horizons: Sequence[int], period: int
) -> Source:
    return Source(name, file, column, rows, step, horizons, period, by, is_level=True, is_held_out=True)


SMALL, MM_IMAGE = (f"servegen/{name}-trace.csv.gz" for name in ("m-small-week1", "mm-image"))
OPENB = "alibaba_openb_2023/openb_pod_list_default.csv.gz"
DLRM = "alibaba_dlrm_2025/disaggregated_DLRM_trace.csv.gz"
HELIOS = "_cluster_sequence_vc.csv.gz"
PHILLY, PHILLY_NODES = (f"philly_2017/{name}.csv.gz" for name in ("philly", "philly_node_sequence"))
DUTY, QPS, QUEUE, QUEUE_TIMES, INFERENCES = (
    f"alibaba_genai_2026/{name}.csv.gz"
    for name in (
        "pod_gpu_duty_cycle_anon",
        "qps",
        "queue_size_raw_anon",
        "queue_rt_raw_anon",
        "pipeline_inference_data_anon",
    )
)
KALOS = "acme_2023/converted_kalos_trace.csv"
AZURE = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"
ITP = ("01", "02", "04", "05", "06", "08")
LARGEST_CLIENTS = (5, 38, 17, 14, 12, 27, 8, 26, 41, 18, 31, 36)  # of ServeGen, by mean rate
LARGEST_VCS = ("6214e9", "11cb48", "6c71a0", "b436b2", "103959", "0e4a51", "ed69ec", "ee9e8c")  # by jobs
SOURCES = (
    Source("Azure conversation", AZURE, "TIMESTAMP", 10, "10 s", (1, 6)),
    Source("Azure conversation", AZURE, "TIMESTAMP", 60, "1 min", (1,)),
    Source("Mooncake", "mooncake_fast25/conversation_trace.jsonl.gz", "timestamp", 10_000, "10 s", (1, 6)),
    Source("GenTD26", "alibaba_genai_2026/lora_request_trace.csv.gz", "gmt_create", 3600, "1 h", (1, 24), 24),
    Source("ServeGen", SMALL, "rate_rps", 600, "10 min", (1, 36), 144, "start_s"),
    Source("Philly", PHILLY, "timestamp", 3600, "1 h", (1, 24), 24),
    *(_itp(cluster, 3600, "1 h", 24, 24) for cluster in ITP),
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
FURTHER = (  # on which nothing was chosen but whether to have one memory of errors or two
    *(
        Source(f"client {n}", SMALL, "rate_rps", 600, "10 min", (1, 6), 144, "start_s", ("client_id", n))
        for n in LARGEST_CLIENTS
    ),
    *(
        Source(f"Philly {vc}", PHILLY, "timestamp", 3600, "1 h", (1, 24), 24, only=("cluster", vc))
        for vc in LARGEST_VCS
    ),
    *(_itp(cluster, 1200, "20 min", 12, 72) for cluster in ITP),
    *(_itp(cluster, 14_400, "4 h", 6, 6) for cluster in ITP),
    Source("GenTD26 requests per second", QPS, "value", 57, "57 s", (1, 10), by="timestamp_anon"),
    Source("GenTD26 queue", QUEUE, "value", 57, "57 s", (1, 10), by="timestamp_anon"),
    Source("GenTD26 waits", QUEUE_TIMES, "timestamp_anon", 114, "114 s", (1, 5)),
    Source("GenTD26 inferences", INFERENCES, "timestamp_anon", 114, "114 s", (1, 5)),
)
