"""Request logs of servers and gateways: which columns and lines are recognised, and what they mean.

- BurstGPT: Wang et al., "BurstGPT: A real-world workload dataset to optimize LLM serving systems", KDD 2025;
  CSV `Timestamp` (s), `Model`, `Request tokens`, `Response tokens`, …; failed requests have 0 of the latter.
  Some files have `Session ID` and `Elapsed time` (s) too.
- LiteLLM: the table `LiteLLM_SpendLogs`, exported as CSV (`\\copy … csv header`) or JSONL; UTC.
- SGLang: JSONL of `--export-metrics-to-file`, and the request log of `--log-requests-format json`.
- vLLM, nginx, Envoy: text, see `text_logs`. OpenTelemetry: `otel_spans`.

What was served is kept: an answer has tokens, or is of a kind that has none (embeddings, reranking), or the
log says that it went well. Without tokens of its own its size is that of its prompt.
Access logs know no tokens: the size of a request is the time that it took there, waiting included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from trimtab.traces.formats import SourceColumn, TraceFormat, sized_from_tokens
from trimtab.traces.otel_spans import SPANS
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.text_logs import ENVOY, NGINX
from trimtab.traces.values import parsed_ticks
from trimtab.traces.vllm_log import VLLM

_ARRIVAL_AND_TOKENS: Final = frozenset({"arrival_s", "output_tokens"})
_LEAST_S: Final = 0.001  # what access logs round to 0
_FAILED: Final = "without an answer"
_UNCOUNTED: Final = "without counts of tokens"
_TOKEN_RULE: Final = "output tokens + 0.05 × prompt tokens"

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


_NOTHING: Final = pl.lit(value=False)


def _unanswered(
    options: TraceOptions, served: pl.Expr = _NOTHING, otherwise: str | pl.Expr = _FAILED
) -> pl.Expr:
    """Why requests without output tokens are left out; those with a prompt are kept if they were `served`."""
    was_served = pl.lit(value=True) if options.keep_unfinished else served.fill_null(value=False)
    has_output, has_prompt = (pl.col(name).fill_null(0) > 0 for name in ("output_tokens", "prompt_tokens"))
    reason = pl.lit(otherwise) if isinstance(otherwise, str) else otherwise
    uncounted = pl.when(served & ~has_prompt).then(pl.lit(_UNCOUNTED)).otherwise(reason)
    return pl.when(~has_output & ~(was_served & has_prompt)).then(uncounted)


def _sized(options: TraceOptions) -> Mapping[str, pl.Expr]:
    """Sizes from tokens; an answer without a count of its own has none."""
    output = pl.col("output_tokens").fill_null(0)
    size = output + options.prompt_token_frac * pl.col("prompt_tokens").fill_null(0)
    return {"output_tokens": output, "size": size}


def _seconds_between(start: str, end: str) -> pl.Expr:
    """Seconds between two columns of dates, null where one is missing."""

    def ns(name: str) -> pl.Expr:
        return pl.col(name).map_batches(lambda text: parsed_ticks(text, "datetime"), return_dtype=pl.Int64)

    return (ns(end) - ns(start)) / 1e9


def _litellm(options: TraceOptions) -> Mapping[str, pl.Expr]:
    took_s = _seconds_between("startTime", "endTime")
    recorded_s = pl.when(took_s >= 0).then(took_s)
    kind = pl.col("call_type").str.replace(rf"^a({'|'.join(_LITELLM_KINDS)})$", "${1}")
    return {**_sized(options), "recorded_s": recorded_s, "class": kind}


_WITHOUT_OUTPUT: Final = ("embedding", "rerank", "moderation")
_LITELLM_KINDS: Final = (*_WITHOUT_OUTPUT, *("completion", "text_completion", "responses", "transcription"))
"""Kinds of calls; those made asynchronously have an `a` in front."""


def _litellm_unanswered(options: TraceOptions) -> pl.Expr:
    succeeded = pl.col("status") == "success"
    return _unanswered(options, succeeded.fill_null(pl.col("class").is_in(_WITHOUT_OUTPUT)))


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
    raw_also=("call_type", "status"),
    derived=_litellm,
    drop_reason=_litellm_unanswered,
    is_sorted=False,
    wanted="answered calls: rows with completion_tokens, or with prompt_tokens and status success",
)


def _is_aborted(reason: pl.Expr) -> pl.Expr:
    return reason.str.contains("abort", literal=True)


def _sglang_metrics(options: TraceOptions) -> Mapping[str, pl.Expr]:
    output = pl.col("completion_tokens").cast(pl.Int64, strict=False).fill_null(0)
    size = output + options.prompt_token_frac * pl.col("prompt_tokens").fill_null(0)
    return {"output_tokens": output, "size": size}


SGLANG_METRICS: Final = TraceFormat(
    name="sglang-metrics",
    columns=(
        SourceColumn("arrival_s", "request_received_ts"),
        SourceColumn("original_id", "id"),
        SourceColumn("prompt_tokens", "prompt_tokens"),
        SourceColumn("recorded_s", "e2e_latency"),
    ),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="s",
    origin="first",
    raw_also=("completion_tokens", "finish_reason"),
    derived=_sglang_metrics,
    # Embeddings have no completion tokens.
    drop_reason=lambda options: _unanswered(
        options,
        pl.col("completion_tokens").is_null() & ~_is_aborted(pl.col("finish_reason")).fill_null(value=False),
    ),
    size_rule=_TOKEN_RULE,
    is_sorted=False,
)


def _sglang(options: TraceOptions) -> Mapping[str, pl.Expr]:
    def meta(name: str, kind: type[pl.DataType]) -> pl.Expr:
        return pl.col("out").str.json_path_match(f"$.meta_info.{name}").cast(kind, strict=False)

    prompt, output = meta("prompt_tokens", pl.Int64), meta("completion_tokens", pl.Int64)
    is_served = output.is_null() & ~_is_aborted(meta("finish_reason.type", pl.String)).fill_null(value=False)
    return {
        "prompt_tokens": prompt,
        "output_tokens": output.fill_null(0),
        "recorded_s": meta("e2e_latency", pl.Float64),
        "size": output.fill_null(0) + options.prompt_token_frac * prompt.fill_null(0),
        "_served": is_served,
    }


def _sglang_unanswered(options: TraceOptions) -> pl.Expr:
    event = pl.when(pl.col("event") != "request.finished").then("event")
    return pl.coalesce(event, _unanswered(options, pl.col("_served")))


SGLANG_REQUESTS: Final = TraceFormat(
    name="sglang",
    columns=(SourceColumn("arrival_s", "timestamp"), SourceColumn("original_id", "rid")),
    needed=frozenset({"arrival_s", "output_tokens", "recorded_s"}),
    time_unit="datetime",
    origin="first",
    raw=("event", "out"),
    derived=_sglang,
    drop_reason=_sglang_unanswered,
    size_rule=_TOKEN_RULE,
    time_is_end=True,
    is_sorted=False,
)


def _vllm(options: TraceOptions) -> Mapping[str, pl.Expr]:
    kind = (
        pl.when(_IS_POOLED)
        .then(pl.lit("pooling"))
        .when(pl.col("params").is_not_null())
        .then(pl.lit("generate"))
    )
    return {**_sized(options), "recorded_s": _seconds_between("received", "finished"), "class": kind}


_IS_POOLED: Final = pl.col("params").str.starts_with("Pooling")


def _vllm_unanswered(options: TraceOptions) -> pl.Expr:
    has_answer = pl.col("answers").cast(pl.Int64) > 0
    without_ids = pl.when(has_answer).then(pl.lit("an answer without token ids")).otherwise(pl.lit(_FAILED))
    cut_off = pl.when(pl.col("is_cut") == "true").then(pl.lit("token ids cut off by --max-log-len"))
    return pl.coalesce(cut_off, _unanswered(options, _IS_POOLED, without_ids))


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
    raw=("received", "finished", "params", "answers", "is_cut"),
    derived=_vllm,
    drop_reason=_vllm_unanswered,
    is_sorted=False,
    wanted="answers with token ids, `Generated response ID: …, output_token_ids: [1, 2]`, as a server prints "
    "them with --enable-log-requests --enable-log-outputs; of streams with --enable-log-deltas too; some "
    "versions with VLLM_LOGGING_LEVEL=DEBUG only",
)


def _spans(options: TraceOptions) -> Mapping[str, pl.Expr]:
    took_s = (pl.col("end_ns").cast(pl.Int64) - pl.col("start_ns").cast(pl.Int64)) / 1e9
    return {**_sized(options), "recorded_s": took_s}


def _spans_unanswered(options: TraceOptions) -> pl.Expr:
    has_failed = pl.col("error").is_not_null()
    without = pl.col("class").is_in(("embeddings", "embedding", "rerank"))
    reason = pl.when(has_failed).then(pl.lit("failed")).otherwise(pl.lit(_UNCOUNTED))
    return _unanswered(options, ~has_failed & without, reason)


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
        SourceColumn("class", "operation"),
    ),
    needed=_ARRIVAL_AND_TOKENS,
    time_unit="ns",
    origin="first",
    raw=("start_ns", "end_ns", "error"),
    derived=_spans,
    drop_reason=_spans_unanswered,
    is_sorted=False,
    wanted="spans of calls of a model, with gen_ai.usage.input_tokens and gen_ai.usage.output_tokens",
)


def _sized_by_time(_: TraceOptions) -> Mapping[str, pl.Expr]:
    return {"size": pl.max_horizontal(pl.col("recorded_s"), _LEAST_S)}


def _failed_status(options: TraceOptions, status: pl.Expr, client_left: pl.Expr) -> pl.Expr:
    """Why a request is left out; one whose client went away was not finished."""
    kept = status.str.starts_with("2") | (client_left if options.keep_unfinished else _NOTHING)
    return pl.when(~kept).then(pl.concat_str(pl.lit("status "), status))


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
    drop_reason=lambda options: _failed_status(options, pl.col("status"), pl.col("status") == "499"),
    size_rule=_TIME_TAKEN,
    wanted="requests with status 2xx and $request_time after the combined format",
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
    raw=("response_code", "response_flags"),
    derived=_sized_by_time,
    drop_reason=lambda options: _failed_status(
        options, pl.col("response_code"), pl.col("response_flags").str.contains("DC", literal=True)
    ),
    size_rule=_TIME_TAKEN,
    is_sorted=False,
    missing=frozenset({"-"}),
)

BY_COLUMNS: Final = (BURSTGPT, LITELLM, SGLANG_METRICS, SGLANG_REQUESTS)
"""Formats of tables, told by their columns."""

OF_LOGS: Final = (VLLM_LOG, NGINX_LOG, ENVOY_LOG, OTEL_GENAI)
"""Formats of text logs and spans, told by their lines."""
