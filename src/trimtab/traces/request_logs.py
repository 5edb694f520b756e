"""Request logs of servers and gateways: which columns and lines are recognised, and what they mean.

- BurstGPT: Wang et al., "BurstGPT: A real-world workload dataset to optimize LLM serving systems", KDD 2025;
  CSV `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`, …; failed requests have 0 of the latter.
  Some files have `Session ID` and `Elapsed time` (s) too.
- LiteLLM: the table `LiteLLM_SpendLogs`, exported as CSV (`\\copy … csv header`) or JSONL; UTC.
- SGLang: JSONL of `--export-metrics-to-file`, and the request log of `--log-requests-format json`.
- vLLM, nginx, Envoy: text, see `text_logs`. OpenTelemetry: `otel_spans`.

Access logs know no tokens: the size of a request is the time that it took there, waiting included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from trimtab.traces.formats import SourceColumn, TraceFormat, sized_from_tokens
from trimtab.traces.otel_spans import SPANS
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.text_logs import ENVOY, NGINX, VLLM
from trimtab.traces.values import parsed_ticks

_ARRIVAL_AND_TOKENS: Final = frozenset({"arrival_s", "output_tokens"})
_LEAST_S: Final = 0.001  # what access logs round to 0
_FAILED: Final = "without an answer"

BURSTGPT: Final = TraceFormat(
    name="burstgpt",
    columns=(
        SourceColumn("arrival_s", "Timestamp"),
        SourceColumn("model", "Model"),
        SourceColumn("prompt_tokens", "Request tokens"),
        SourceColumn("output_tokens", "Response tokens"),
        SourceColumn("class", "Log Type"),
    ),
    also=(SourceColumn("session", "Session ID"), SourceColumn("recorded_s", "Elapsed time")),
    needed=frozenset({"arrival_s", "prompt_tokens", "output_tokens"}),
    time_unit="s",
    origin="first",
    derived=sized_from_tokens,
    drop_reason=lambda options: _unanswered(options),
)


def _unanswered(options: TraceOptions) -> pl.Expr:
    """Requests without output tokens, unless those are kept that have a prompt."""
    has_none = pl.col("output_tokens").fill_null(0) <= 0
    sized = pl.col("prompt_tokens").fill_null(0) > 0 if options.keep_unfinished else pl.lit(value=False)
    return pl.when(has_none & ~sized).then(pl.lit(_FAILED))


def _seconds_between(start: str, end: str) -> pl.Expr:
    """Seconds between two columns of dates, null where one is missing."""

    def ns(name: str) -> pl.Expr:
        return pl.col(name).map_batches(lambda text: parsed_ticks(text, "datetime"), return_dtype=pl.Int64)

    return (ns(end) - ns(start)) / 1e9


def _litellm(options: TraceOptions) -> Mapping[str, pl.Expr]:
    took_s = _seconds_between("startTime", "endTime")
    recorded_s = pl.when(took_s >= 0).then(took_s)
    return {**sized_from_tokens(options), "recorded_s": recorded_s}


LITELLM: Final = TraceFormat(
    name="litellm",
    columns=(
        SourceColumn("arrival_s", "startTime"),
        SourceColumn("original_id", "request_id"),
        SourceColumn("model", "model"),
        SourceColumn("prompt_tokens", "prompt_tokens"),
        SourceColumn("output_tokens", "completion_tokens"),
    ),
    also=(SourceColumn("tenant", "team_id"), SourceColumn("session", "session_id")),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="datetime",
    origin="first",
    raw=("startTime", "endTime"),
    derived=_litellm,
    drop_reason=_unanswered,
    is_sorted=False,
)

SGLANG_METRICS: Final = TraceFormat(
    name="sglang-metrics",
    columns=(
        SourceColumn("arrival_s", "request_received_ts"),
        SourceColumn("original_id", "id"),
        SourceColumn("prompt_tokens", "prompt_tokens"),
        SourceColumn("output_tokens", "completion_tokens"),
        SourceColumn("recorded_s", "e2e_latency"),
    ),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="s",
    origin="first",
    derived=sized_from_tokens,
    drop_reason=_unanswered,
    is_sorted=False,
)


def _sglang(options: TraceOptions) -> Mapping[str, pl.Expr]:
    def meta(name: str, kind: type[pl.DataType]) -> pl.Expr:
        return pl.col("out").str.json_path_match(f"$.meta_info.{name}").cast(kind, strict=False)

    prompt, output = meta("prompt_tokens", pl.Int64), meta("completion_tokens", pl.Int64)
    size = output + options.prompt_token_frac * prompt.fill_null(0)
    took_s = meta("e2e_latency", pl.Float64)
    return {"prompt_tokens": prompt, "output_tokens": output, "recorded_s": took_s, "size": size}


SGLANG_REQUESTS: Final = TraceFormat(
    name="sglang",
    columns=(SourceColumn("arrival_s", "timestamp"), SourceColumn("original_id", "rid")),
    needed=frozenset({"arrival_s", "output_tokens", "recorded_s"}),
    time_unit="datetime",
    origin="first",
    raw=("event", "out"),
    derived=_sglang,
    drop_reason=lambda _: pl.when(pl.col("event") != "request.finished").then("event"),
    size_rule="output tokens + 0.05 × prompt tokens",
    time_is_end=True,
    is_sorted=False,
)


def _vllm(options: TraceOptions) -> Mapping[str, pl.Expr]:
    took_s = (
        pl.col("finished").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
        - pl.col("received").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    ).dt.total_milliseconds() / 1e3
    return {**sized_from_tokens(options), "recorded_s": took_s}


VLLM_LOG: Final = TraceFormat(
    name=VLLM.name,
    columns=(
        SourceColumn("arrival_s", "received"),
        SourceColumn("original_id", "request_id"),
        SourceColumn("prompt_tokens", "prompt_tokens"),
        SourceColumn("output_tokens", "output_tokens"),
    ),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="datetime",
    origin="first",
    raw=("received", "finished"),
    derived=_vllm,
    drop_reason=_unanswered,
    is_sorted=False,
)


def _spans(options: TraceOptions) -> Mapping[str, pl.Expr]:
    took_s = (pl.col("end_ns").cast(pl.Int64) - pl.col("start_ns").cast(pl.Int64)) / 1e9
    return {**sized_from_tokens(options), "recorded_s": took_s}


OTEL_GENAI: Final = TraceFormat(
    name=SPANS.name,
    columns=(
        SourceColumn("arrival_s", "start_ns"),
        SourceColumn("original_id", "span_id"),
        SourceColumn("model", "model"),
        SourceColumn("tenant", "tenant"),
        SourceColumn("session", "session"),
        SourceColumn("prompt_tokens", "prompt_tokens"),
        SourceColumn("output_tokens", "output_tokens"),
        SourceColumn("node", "server"),
    ),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="ns",
    origin="first",
    raw=("start_ns", "end_ns"),
    derived=_spans,
    drop_reason=_unanswered,
    is_sorted=False,
)


def _sized_by_time(_: TraceOptions) -> Mapping[str, pl.Expr]:
    return {"size": pl.max_horizontal(pl.col("recorded_s"), _LEAST_S)}


def _failed_status(column: str) -> pl.Expr:
    status = pl.col(column)
    return pl.when(~status.str.starts_with("2")).then(pl.concat_str(pl.lit("status "), status))


_TIME_TAKEN: Final = "seconds that it took, waiting included"

NGINX_LOG: Final = TraceFormat(
    name=NGINX.name,
    columns=(
        SourceColumn("arrival_s", "time_local"),
        SourceColumn("class", "path"),
        SourceColumn("tenant", "remote_user"),
        SourceColumn("recorded_s", "request_time"),
    ),
    needed=frozenset({"arrival_s", "recorded_s"}),
    time_unit="datetime",
    origin="first",
    raw=("status",),
    derived=_sized_by_time,
    drop_reason=lambda _: _failed_status("status"),
    size_rule=_TIME_TAKEN,
    time_format="%d/%b/%Y:%H:%M:%S %z",
    time_is_end=True,
    is_sorted=False,
    missing=frozenset({"-"}),
)

ENVOY_LOG: Final = TraceFormat(
    name=ENVOY.name,
    columns=(
        SourceColumn("arrival_s", "start_time"),
        SourceColumn("class", "path"),
        SourceColumn("original_id", "request_id"),
        SourceColumn("node", "upstream_host"),
        SourceColumn("recorded_s", "duration", 0.001),
    ),
    needed=frozenset({"arrival_s", "recorded_s"}),
    time_unit="datetime",
    origin="first",
    raw=("response_code",),
    derived=_sized_by_time,
    drop_reason=lambda _: _failed_status("response_code"),
    size_rule=_TIME_TAKEN,
    is_sorted=False,
    missing=frozenset({"-"}),
)

BY_COLUMNS: Final = (BURSTGPT, LITELLM, SGLANG_METRICS, SGLANG_REQUESTS)
"""Formats of tables, told by their columns."""

OF_LOGS: Final = (VLLM_LOG, NGINX_LOG, ENVOY_LOG, OTEL_GENAI)
"""Formats of text logs and spans, told by their lines."""
