from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from support.trace_files import written
from trimtab.traces import TraceMapping, TraceOptions, read_trace
from trimtab.traces import source as source_module

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:50.9951691,0,1
"""
MOONCAKE = """{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 100, "output_length": 7, "hash_ids": []}
{"timestamp": 3001, "input_length": 20, "output_length": 9, "hash_ids": [7]}
"""
GENTD26 = (
    "gmt_create,predict_type,predict_status,exec_time_seconds,groupId,prompt_length,negative_prompt_length,"
    "num_images_per_prompt,num_inference_steps,checkpoint_model_version_id,num_lora\n"
    "2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32.0,G0,63.0,26.0,2.0,30.0,M0,0\n"
    "2024-11-15 16:57:50,TXT_2_IMG,PENDING,0.0,G0,,,,,,0\n"
    "2024-11-15 16:58:00,IMG_2_IMG,FAILED,3.0,G1,9.0,,1.0,30.0,M1,1\n"
    "2024-11-16 16:57:50,INPAINTING,SUCCEED,9.0,G1,9.0,,1.0,40.0,M1,2\n"
)


def test_azure_by_hand(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "a.csv", AZURE), options=TraceOptions(prompt_token_frac=0.5)).table
    assert table["arrival_s"].to_list() == [0.0, 4.314579, 4.3145791]
    assert table["size"].to_list() == [44 + 187, 109 + 198, 1]


def test_mooncake_by_hand(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "m.jsonl", MOONCAKE), "mooncake").table
    assert table["arrival_s"].to_list() == [0.0, 0.0, 3.001]
    assert table["output_tokens"].to_list() == [5, 7, 9]
    assert table["prefix_blocks"].to_list() == [[0, 1], [], [7]]


def test_gentd26_by_hand(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "g.csv", GENTD26))
    table = trace.table
    assert trace.dropped == {"PENDING": 1, "FAILED": 1}
    assert table["arrival_s"].to_list() == [0.0, 86_400.0]
    assert table["size"].to_list() == [60.0, 40.0]
    assert table["adapter"].to_list() == [None, "lora-2"]
    assert table["class"].to_list() == ["TXT_2_IMG", "INPAINTING"]
    assert table["recorded_s"].to_list() == [32.0, 9.0]


def test_windows_line_ends_byte_order_mark_blank_lines_and_gzip_change_nothing(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path, "a.csv", AZURE)).table
    dressed = tmp_path / "named_as_it_likes"
    text = "\ufeff" + AZURE.rstrip().replace("\n", "\r\n") + "\r\n\r\n"
    dressed.write_bytes(gzip.compress(text.encode()))
    assert read_trace(dressed).table.equals(plain)


@pytest.mark.parametrize("block_bytes", [1, 40, 1000])
@pytest.mark.parametrize("text", [AZURE, MOONCAKE, GENTD26])
def test_the_size_of_the_blocks_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block_bytes: int
) -> None:
    path = written(tmp_path, "t", text)
    whole = read_trace(path)
    monkeypatch.setattr(source_module, "BLOCK_BYTES", block_bytes)
    assert read_trace(path).table.equals(whole.table)
    assert read_trace(path).dropped == whole.dropped


def test_quoted_line_ends_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 1)
    path = written(tmp_path, "t.csv", 'arrival_s,tenant\n0,"a\nb, ""c"""\n1,d\n')
    assert read_trace(path).table["tenant"].to_list() == ['a\nb, "c"', "d"]


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", "1700000000.25 1700000001.5"),
        ("ms", "1700000000250 1700000001500"),
        ("us", "1700000000250000 1700000001500000"),
        ("ns", "1700000000250000000 1700000001500000000"),
        ("datetime", "2023-11-14T22:13:20.25Z 2023-11-14T22:13:21.5Z"),
        ("datetime", "2023-11-14T22:13:20.25Z 2023-11-15T00:13:21.500+02:00"),
        ("datetime", "2023-11-14T22:13:20.250000000 2023-11-14T16:43:21.5-0530"),
    ],
)
def test_every_time_unit(tmp_path: Path, unit: str, times: str) -> None:
    path = written(tmp_path, "t.csv", "when\n" + times.replace(" ", "\n"))
    table = read_trace(path, mapping={"columns": {"arrival_s": "when"}, "time_unit": unit}).table
    assert table["arrival_s"].to_list() == [0.0, 1.25]


def test_nanoseconds_are_exact(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", "t\n1700000000000000001\n1700000000000000002")
    mapping = TraceMapping.model_validate({"columns": {"arrival_s": "t"}, "time_unit": "ns"})
    assert read_trace(path, mapping=mapping).table["arrival_s"].to_list() == [0.0, 1e-9]


def test_mapping_scales_and_origin(tmp_path: Path) -> None:
    path = written(tmp_path, "t.tsv", "t\tkilobytes\tname\n5\t2\tx\n7\t3\ty\n")
    columns = {"arrival_s": "t", "size": {"column": "kilobytes", "scale": 1e3}, "model": "name"}
    table = read_trace(path, mapping={"columns": columns, "origin": "zero"}).table
    assert table.to_dict(as_series=False) == {
        "arrival_s": [5.0, 7.0],
        "size": [2000.0, 3000.0],
        "model": ["x", "y"],
    }


@pytest.mark.parametrize(
    ("columns", "size"),
    [
        ({"output_tokens": "a"}, 6.0),
        ({"output_tokens": "a", "prompt_tokens": "b"}, 6.0 + 0.05 * 40),
        ({"steps": "a", "images": "b"}, 240.0),
        ({"output_tokens": "a", "size": "b"}, 40.0),
    ],
)
def test_size_follows_from_what_is_mapped(tmp_path: Path, columns: dict[str, str], size: float) -> None:
    path = written(tmp_path, "t.csv", "t,a,b\n0,6,40\n")
    assert read_trace(path, mapping={"arrival_s": "t", **columns}).table["size"].to_list() == [size]


def test_without_anything_to_size_by_there_is_no_size(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "t.csv", "arrival_s,steps\n0,6\n")).table
    assert table.columns == ["arrival_s", "steps"]


def test_parquet_with_typed_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    times = pl.Series([0, 1_500_000], dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))
    pl.DataFrame({"at": times, "blocks": [[1, 2], None], "p": [3, -1]}).write_parquet(path)
    mapping = {"arrival_s": "at", "prefix_blocks": "blocks", "priority": "p"}
    table = read_trace(path, mapping=mapping).table
    assert table["arrival_s"].to_list() == [0.0, 1.5]
    assert table["prefix_blocks"].to_list() == [[1, 2], None]
    assert table["priority"].to_list() == [3, -1]


def test_keys_of_jsonl_may_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "t.jsonl", '{"arrival_s": 0}\n{"arrival_s": 1.5, "adapter": "a"}\n')
    assert read_trace(path).table["adapter"].to_list() == [None, "a"]


def test_a_first_line_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    blocks = list(range(20_000))
    line = f'{{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": {blocks}}}\n'
    table = read_trace(written(tmp_path, "t.jsonl", line * 2)).table
    assert table["prefix_blocks"].to_list() == [blocks, blocks]
