from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from support.serving_replica import BLOCK_TOKENS, BLOCKS, Replica, chat
from trimtab.errors import UsageError
from trimtab.profiles import LatencyProfile, load_profile
from trimtab.profiles.fit_profile import FittedProfile, iteration_s
from trimtab.profiles.iteration_rows import IterationRows
from trimtab.profiles.mean_iterations import TimedRequests, is_metrics, of_pages, of_requests, pages_of
from trimtab.profiles.roofline import Gpu, roofline
from trimtab.profiles.sources import Described, fit_files

MODEL = "meta-llama/Llama-3.1-8B"
TRUTH = load_profile("rtx4090-llama-3.1-8b")
BASE = roofline(Gpu("RTX 4090", 24.0, 1.008e12, 165e12, 32e9), MODEL, 1)  # up to 51 % off
RATES = (0.3, 0.8, 1.3, 1.8, 0.5, 1.5)  # a second, for 300 s each: up to 25 rows decode


@pytest.fixture(scope="module")
def replica() -> Replica:
    serving = Replica(TRUTH, period_s=2.0)
    serving.serve(chat(RATES, 300.0, seed=1))
    return serving


def fitted(folder: Path, text: str, name: str = "served.txt") -> FittedProfile:
    file = folder / name
    file.write_text(text)
    return fit_files([file], Described("RTX 4090", MODEL, 24.0), base=BASE)


def worst(profile: LatencyProfile, prompt: int) -> float:
    """The largest relative error of iterations with up to 16 rows."""
    rows = [(n, n * c, prompt > 0, prompt, prompt**2 / 2, 1) for n in (1, 8, 16) for c in (300, 1500)]
    asked = IterationRows(*np.array(rows, float).T)
    return float(np.abs(iteration_s(profile, asked) / iteration_s(TRUTH, asked) - 1.0).max())


def test_requests_tell_the_seconds_of_iterations(tmp_path: Path, replica: Replica) -> None:
    found = fitted(tmp_path, replica.table(), "requests.csv")
    assert worst(found.profile, 0) < 0.03  # the roofline: 25 %
    assert worst(found.profile, 512) < 0.15  # 47 %
    assert worst(found.profile, 2000) < 0.05  # 51 %
    assert all(part.is_measured for part in found.parts)
    assert found.mixed_error is not None
    assert found.mixed_error.median < 0.01


def test_pages_of_vllm_tell_the_seconds_of_iterations(tmp_path: Path, replica: Replica) -> None:
    found = fitted(tmp_path, "\n".join(replica.pages))
    assert worst(found.profile, 0) < 0.04
    assert worst(found.profile, 512) < 0.20
    assert worst(found.profile, 2000) < 0.15
    assert found.profile.kv_capacity == BLOCK_TOKENS * BLOCKS


def test_pages_of_sglang_count_no_iterations(tmp_path: Path, replica: Replica) -> None:
    text = "\n".join(replica.pages).replace("vllm:num_requests_running", "sglang:num_running_reqs")
    text = text.replace("vllm:kv_cache_usage_perc", "sglang:token_usage")
    text = re.sub("vllm:(iteration_tokens|num_preemptions)_total.*\n", "", text)
    text = text.replace("vllm:cache_config_info", "x").replace("vllm:", "sglang:")
    found = fit_files(
        [_written(tmp_path, text)],
        Described("RTX 4090", MODEL, 24.0, kv_tokens=BLOCK_TOKENS * BLOCKS),
        base=BASE,
    )
    assert worst(found.profile, 0) < 0.06


def test_parts_that_traffic_does_not_tell_stay_as_they_were(tmp_path: Path) -> None:
    alone = Replica(TRUTH)
    alone.serve((30.0 * k, 100, 50) for k in range(40))
    found = fitted(tmp_path, alone.table(), "requests.csv")
    parts = {part.name: part for part in found.parts}
    assert parts["weights and fixed time"].is_measured
    assert not parts["prompts"].is_measured
    assert parts["prompts"].multiple == pytest.approx(1.0, abs=0.3)


def test_what_is_beside_a_request() -> None:
    columns = [[0.0, 10.0], [1.0, 12.0], [21.0, 22.0], [100, 40], [80, 40], [11, 6]]
    means = of_requests(TimedRequests(*(np.array(column, float) for column in columns)), 2048)
    # In the 10 gaps of the first, of 2 s each, the second makes 4.5 tokens and its prompt is read.
    np.testing.assert_allclose(means.rows.decoding, [1.45, (5 + 4.5) / 5])
    np.testing.assert_allclose(means.rows.prompt_tokens, [4.0, 0.0])
    np.testing.assert_allclose(means.rows.seconds, [2.0, 2.0])
    np.testing.assert_allclose(means.prompt_frac, [-np.expm1(-0.1), 0.0])


def test_prompts_that_were_read_alone() -> None:
    start_s = 100.0 * np.arange(12)
    of = [start_s, start_s + 3.0, start_s + 3.0, np.full(12, 5000.0), np.full(12, 4200.0), np.ones(12)]
    rows = of_requests(TimedRequests(*of), 2048).rows
    np.testing.assert_allclose(rows.prompt_tokens, np.full(12, 1400.0))  # in three iterations
    np.testing.assert_allclose(rows.pairs, np.full(12, (4200 * 800 + 4200**2 / 2) / 3))  # 800 were cached
    np.testing.assert_allclose(rows.seconds, np.ones(12))


def test_pages_of_a_server_that_began_anew_or_preempted(replica: Replica) -> None:
    pages = replica.pages[500:504]  # in the fourth of the rates
    assert len(of_pages(pages_of("\n".join(pages)), 1000, 2048).rows) == 3
    anew = pages[3].replace("1.7e+09", "1.8e+09")
    assert len(of_pages(pages_of("\n".join([*pages[:3], anew])), 1000, 2048).rows) == 2
    pages[3] = pages[3].replace('preemptions_total{engine="0"} 0.0', 'preemptions_total{engine="0"} 2.0')
    assert len(of_pages(pages_of("\n".join(pages[::-1])), 1000, 2048).rows) == 2
    assert is_metrics(pages[0])
    assert not is_metrics("node,start_s")


def _written(folder: Path, text: str, name: str = "served.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def _recording(answers: int, **changed: object) -> str:
    head = {"record": "head", "at_s": 0.0, "format": 1, "recording": "x", "worker": 0, "process": 1}
    head |= {"policy": "random", "seed": 0, "classes": [], "options": {}, "started_utc": "x"}
    nodes = [("a", "gpu"), ("b", "cpu")]
    head |= {"nodes": [{"idx": i, "name": name, "type": kind} for i, (name, kind) in enumerate(nodes)]}
    rows = [
        {"arrival_s": 2.0 * k, "started_s": 2.0 * k, "first_byte_s": 2.0 * k + 0.05 + 1e-5 * k}
        | {"service_s": 1.0, "finish_s": 2.0 * k + 1.0, "prompt_tokens": 500 + k, "cached_tokens": 16}
        | {"output_tokens": 41, "outcome": "done", "node": k % 2, "class": "chat"}
        | changed
        for k in range(answers)
    ]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in (head, *rows))


def test_a_recording_of_the_gateway(tmp_path: Path) -> None:
    file = _written(tmp_path, _recording(40), "one.jsonl")
    found = fit_files([file], Described("gpu", MODEL, 24.0), base=BASE)
    assert len(found.held_back) == 40  # twenty answers, and as many prompts that were read alone
    assert found.held_back.seconds[0] == pytest.approx(0.95 / 40)
    with pytest.raises(UsageError, match=r"--gpu: no such node type \(got 'H9'\); expected 'cpu', 'gpu'"):
        fit_files([file], Described("H9", MODEL, 24.0), base=BASE)
    _written(tmp_path, _recording(40, output_tokens=None), "none.jsonl")
    with pytest.raises(UsageError, match="no requests with tokens and times"):
        fit_files([tmp_path / "none.jsonl"], Described("gpu", MODEL, 24.0), base=BASE)


HEAD = "node,start_s,first_token_s,finish_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "a,0,1,3,10,20\n", r"served: too few rows with tokens \(got 1\); expected 10 or more"),
        (HEAD + "a,0,-1,3,10,20\n", r"line 2: first_token_s: cannot be used \(got '-1'\)"),
        (
            HEAD + "a,0,2,1,10,20\n",
            r"row 1: times that cannot be \(got \[0.0, 2.0, 1.0\]\); expected start_s ≤",
        ),
        (HEAD.replace("finish_s,", "") + "a,0,1,1,1\n", "expected also the columns finish_s"),
        ("# HELP up x\nup 1\n", "metrics are missing; expected also 'vllm:inter_token_latency_seconds_sum'"),
    ],
)
def test_bad_input(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(tmp_path, text, "served")


def test_a_base_is_needed_and_forms_do_not_mix(tmp_path: Path, replica: Replica) -> None:
    page, table = _written(tmp_path, replica.pages[0]), _written(tmp_path, replica.table(), "r.csv")
    for file in (page, table):
        with pytest.raises(
            UsageError, match="--base: is needed for what a server served; expected a profile"
        ):
            fit_files([file], Described("RTX 4090", MODEL, 24.0))
    with pytest.raises(UsageError, match=r"r\.csv: is no page of metrics; expected files of one form"):
        fit_files([page, table], Described("RTX 4090", MODEL, 24.0), base=BASE)
