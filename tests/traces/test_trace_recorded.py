"""Each reader on the real file, against what the publishers' description of the data says of it."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import polars as pl
import pytest

from support.trace_files import recorded
from trimtab.traces import TraceOptions, read_trace, summarise
from trimtab.traces.public_traces import public_trace

pytestmark = pytest.mark.data

AZURE = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"
MOONCAKE = "mooncake_fast25/conversation_trace.jsonl.gz"
GENTD26 = "alibaba_genai_2026/lora_request_trace.csv.gz"


def quantiles(table: pl.DataFrame, column: str) -> list[int]:
    return [round(value) for value in np.quantile(table[column].to_numpy(), (0.5, 0.9, 0.99, 1.0))]


def test_azure() -> None:
    trace = read_trace(recorded(AZURE))
    summary = summarise(trace.table)
    assert (trace.format, trace.rows_in_file, trace.table.height) == ("azure-llm-2023", 19_366, 19_366)
    assert summary.rate_per_s == pytest.approx(5.53, abs=0.005)
    assert summary.interarrival_cv == pytest.approx(1.09, abs=0.005)
    # 18:15:46.6805900 to 19:14:08.4025270
    assert summary.span_s == pytest.approx(3_501.721937, abs=1e-9)
    assert quantiles(trace.table, "prompt_tokens") == [1_020, 2_734, 4_142, 14_050]
    assert quantiles(trace.table, "output_tokens") == [129, 424, 601, 1_000]


def test_azure_times_keep_their_last_digit() -> None:
    second = read_trace(recorded(AZURE)).table["arrival_s"][1]
    assert second == 4.3145790  # 18:15:50.9951690 − 18:15:46.6805900


def test_mooncake() -> None:
    trace = read_trace(recorded(MOONCAKE))
    table, summary = trace.table, summarise(trace.table)
    assert (trace.format, table.height) == ("mooncake", 12_031)
    assert summary.rate_per_s == pytest.approx(3.40, abs=0.005)
    assert table["arrival_s"].n_unique() == 1_180
    assert table["arrival_s"][-1] == 3_536.999
    assert quantiles(table, "prompt_tokens") == [6_909, 27_367, 85_400, 126_195]
    assert quantiles(table, "output_tokens") == [350, 597, 1_119, 2_000]


def test_mooncake_keeps_file_order_and_blocks() -> None:
    table = read_trace(recorded(MOONCAKE)).table
    assert table["prompt_tokens"].head(5).to_list() == [6_758, 7_322, 7_236, 2_290, 6_760]
    assert table["prefix_blocks"][3].to_list() == [0, 42, 43, 44, 45]
    # one block for each 512 tokens begun, and over a third of them seen before at the same place
    blocks = table["prefix_blocks"].list.len()
    assert (blocks == ((table["prompt_tokens"] + 511) // 512)).all()
    distinct = table["prefix_blocks"].explode().n_unique()
    assert 1 - distinct / blocks.sum() == pytest.approx(0.366, abs=0.001)


def test_gentd26_drops_and_counts_what_did_not_succeed() -> None:
    trace = read_trace(recorded(GENTD26))
    assert trace.rows_in_file == 14_279
    assert trace.dropped == {"FAILED": 233, "PENDING": 13}
    assert trace.table.height == 14_279 - 233 - 13
    assert trace.table["images"].max() == 8
    assert trace.table["size"].max() == (trace.table["steps"] * trace.table["images"]).max()


def test_gentd26_unfinished_requests_on_demand() -> None:
    trace = read_trace(recorded(GENTD26), options=TraceOptions(keep_unfinished=True))
    table, summary = trace.table, summarise(trace.table)
    assert trace.dropped == {"PENDING": 13}  # these do not tell their steps
    assert table["model"].n_unique() == 76
    assert quantiles(table, "recorded_s") == [22, 46, 88, 567]
    assert table["adapter"].is_not_null().mean() == pytest.approx(0.15, abs=0.005)
    assert summary.span_s == 15 * 86_400 + 6 * 3_600 + 45 * 60 + 14  # 15 Nov 16:57:50 to 30 Nov 23:43:04
    assert summary.counts[2].peak_rate_per_s == pytest.approx(13 / 60)  # 13 in the busiest minute


@pytest.mark.parametrize("name", [AZURE, MOONCAKE, GENTD26])
def test_progress_ends_with_the_whole_file(name: str) -> None:
    calls: list[tuple[int, int]] = []
    read_trace(recorded(name), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == recorded(name).stat().st_size
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("name", "file"), [("azure-llm-2023-conv", AZURE), ("mooncake-conversation", MOONCAKE)]
)
def test_the_catalogue_knows_the_published_files(name: str, file: str) -> None:
    published = gzip.decompress(recorded(file).read_bytes())
    assert hashlib.sha256(published).hexdigest() == public_trace(name).sha256
