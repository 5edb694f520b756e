"""Metrics of language models: times to the first token and between tokens, and use of the KV memory."""

from __future__ import annotations

import numpy as np

from trimtab.metrics.run_records import BoolArray, FloatArray, IntArray, Records, TokenRecords
from trimtab.metrics.statistics import mean, percentiles


def token_metrics(records: Records) -> dict[str, float]:
    """TTFT, TPOT, ITL, KV use and preemptions; nan where no node serves a language model.

    TTFT and TPOT are of finished requests that made tokens; TPOT of those with two or more.
    """
    tokens = records.tokens
    if tokens is None:
        return dict.fromkeys(_NAMES, float("nan"))
    made = records.requests.finished & (tokens.output_tokens > 0)
    ttft_s, tpot_s = first_token_after_s(records)[made], time_per_token_s(records)[made]
    tpot_s = tpot_s[np.isfinite(tpot_s)]
    ttft_p50_s, ttft_p99_s = percentiles(ttft_s, 50, 99)
    tpot_p50_s, tpot_p99_s = percentiles(tpot_s, 50, 99)
    itl_p50_s, itl_p99_s = (distance_percentile_s(tokens, rank) for rank in (50, 99))
    peak = tokens.kv_peak_frac[np.isfinite(tokens.kv_peak_frac)]
    values = (
        mean(ttft_s),
        ttft_p50_s,
        ttft_p99_s,
        mean(tpot_s),
        tpot_p50_s,
        tpot_p99_s,
        itl_p50_s,
        itl_p99_s,
    )
    return dict(zip(_NAMES, (*values, mean(peak), float(tokens.preempted.sum())), strict=True))


_NAMES = (
    *("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p99_s"),
    *("itl_p50_s", "itl_p99_s", "kv_peak_frac", "preemptions"),
)


def first_token_after_s(records: Records) -> FloatArray:
    """Time from arrival to the first token, [requests]; nan where there was none."""
    assert records.tokens is not None
    return records.tokens.first_token_s - records.requests.arrival_s


def time_per_token_s(records: Records) -> FloatArray:
    """(Finish − first token) ÷ (output tokens − 1), [requests]; nan with fewer than two tokens."""
    assert records.tokens is not None
    further = records.tokens.output_tokens - 1
    after_s = records.requests.finish_s - records.tokens.first_token_s
    return np.where(further > 0, after_s / np.maximum(further, 1), np.nan)


def distance_percentile_s(tokens: TokenRecords, rank: float) -> float:
    """Percentile (0 to 100) of the time between tokens, exact within a bin of 12 %; nan without tokens."""
    count = tokens.itl_count.sum(axis=0)
    return histogram_percentile(count, tokens.itl_edge_s, rank)


def histogram_percentile(count: IntArray, edge: FloatArray, rank: float) -> float:
    """Percentile of a histogram: the geometric middle of its bin; `edge` are the upper edges but the last."""
    total = int(count.sum())
    if total == 0:
        return float("nan")
    at = min(int(np.searchsorted(np.cumsum(count), rank / 100.0 * total)), len(edge) - 1)
    return float(edge[at] / np.sqrt(edge[1] / edge[0]))


def are_tokens_in_time(records: Records) -> BoolArray:
    """Requests [n] that kept to the targets of their class for the first and for further tokens."""
    class_idx, targets = records.requests.class_idx, records.token_slos
    if records.tokens is None or targets is None:
        return np.ones(len(class_idx), np.bool_)
    is_late = first_token_after_s(records) > targets.ttft_s[class_idx]
    is_slow = time_per_token_s(records) > targets.tpot_s[class_idx]  # false for fewer than two tokens
    return ~is_late & ~is_slow
