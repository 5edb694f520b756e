from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.profiles.measurement_files import (
    distserve_fields,
    iteration_rows,
    read_measurements,
    served_rows,
    splitwise_rows,
)

SPLITWISE = "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time\n"
SERVED = (
    "model_path,system,precision,backend,mode,tp_size,pp_size,attention_dp_size,moe_ep_size,"
    "silicon_data_source,isl,osl,silicon_tpot_ms\n"
)


def written(folder: Path, text: str, name: str = "my.csv") -> Path:
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz"])
def test_iterations(tmp_path: Path, name: str) -> None:
    text = "seconds,batch,context,prompt_tokens,host\n0.02,4,4000,0,a\n0.05,4,4000,100,a\n"
    rows = iteration_rows(read_measurements(written(tmp_path, text, name)))
    np.testing.assert_array_equal(rows.decoding, [4, 4])
    np.testing.assert_array_equal(rows.prompt_rows, [0, 1])
    np.testing.assert_array_equal(rows.pairs, [0, 5000])
    np.testing.assert_array_equal(rows.seconds, [0.02, 0.05])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "batch,context,seconds\n1,2,3\n",
            r"my\.csv: unknown columns .*expected also the columns prompt_tokens",
        ),
        ("a,b\n1,2\n", "expected columns such as batch,context,prompt_tokens,seconds"),
        ("batch,context,prompt_tokens,seconds\n", "no rows"),
        ("batch,context,prompt_tokens,seconds\n1,2,0,-3\n", r"line 2: seconds: cannot be used \(got '-3'\)"),
        ("batch,context,prompt_tokens,seconds\n1,2,0,x\n", r"seconds: cannot be used \(got 'x'\)"),
        ("batch,context,prompt_tokens,seconds\n1,2\n", r"prompt_tokens: cannot be used \(got ''\)"),
    ],
)
def test_errors_name_file_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_measurements(written(tmp_path, text))


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.csv: cannot be read"):
        read_measurements(tmp_path / "gone.csv")
    (tmp_path / "broken.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, match=r"broken\.csv\.gz: cannot be read"):
        read_measurements(tmp_path / "broken.csv.gz")


def test_splitwise(tmp_path: Path) -> None:
    text = SPLITWISE + "llama,a100,2,512,4,128,800,60\nllama,a100,2,512,8,128,0,62\nllama,h100,2,1,1,1,1,1\n"
    file = read_measurements(written(tmp_path, text))
    rows = splitwise_rows(file, "llama", "a100", 2)
    np.testing.assert_array_equal(rows.decoding, [4, 8, 0])
    np.testing.assert_array_equal(rows.context, [4 * 576, 8 * 576, 0])
    np.testing.assert_array_equal(rows.prompt_tokens, [0, 0, 2048])
    np.testing.assert_allclose(rows.seconds, [0.060, 0.062, 0.8])
    with pytest.raises(UsageError, match=r"got 'llama a100 4'\); expected 'llama a100 2', 'llama h100 2'"):
        splitwise_rows(file, "llama", "a100", 4)


def test_servers(tmp_path: Path) -> None:
    told = "x; silicon_concurrency=64; y"
    text = SERVED + f"m,h100,fp8,vllm,agg,4,1,2,,{told},1000,500,20\n"
    text += f"m,h100,fp8,vllm,disagg,4,1,2,,{told},1000,500,20\nm,h100,fp8,vllm,agg,4,1,2,,x,1000,500,20\n"
    found = served_rows(read_measurements(written(tmp_path, text)))
    assert [str(c) for c in found] == ["m h100 fp8 vllm tp4 pp1 ep1 dp2"]
    (rows,) = found.values()
    np.testing.assert_allclose(rows.decoding, [32])
    np.testing.assert_allclose(rows.context, [32 * 1250])
    np.testing.assert_allclose(rows.prompt_tokens, [64])
    np.testing.assert_allclose(rows.pairs, [64 * 500])
    np.testing.assert_allclose(rows.seconds, [0.020])


def test_distserve(tmp_path: Path) -> None:
    of = {"decoding_large_small_bs_threshold": 95, "prefill": [18, 0.1, 7e-6]}
    of |= {"decoding_smallbs": [20, 6e-4, 0.04], "decoding_largebs": [7, 5e-4, 0.16]}
    file = written(tmp_path, json.dumps({"opt": {"1": of}}), "x.json")
    fields = distserve_fields(file, "opt", 1)
    assert fields["attention_s"][95] == pytest.approx(0.0238)
    assert fields["attention_s"][96] == pytest.approx(0.02236)
    assert (fields["mixed_s"], fields["mixed_token_s"]) == pytest.approx((0.018, 1e-4))
    assert fields["pair_s"] * 1000**2 / 2 == pytest.approx(0.007)  # a prompt of 1,000 tokens
    with pytest.raises(UsageError, match=r"no such model \(got 'opt 2'\); expected 'opt 1'"):
        distserve_fields(file, "opt", 2)
    with pytest.raises(UsageError, match="is no table of DistServe"):
        distserve_fields(written(tmp_path, "x", "y.json"), "opt", 1)
