from __future__ import annotations

import numpy as np
import pytest
from bench.llm_truth import DATA, RUNS, compared
from bench.profiles import BUILTIN, OPERATIONS, profiles

from support.trace_files import RECORDED
from trimtab.errors import UsageError
from trimtab.profiles import load_profile, names, profile_text
from trimtab.profiles.op_profiles import LARGEST_TO_MEAN, ROWS_AT_ONCE, SKEW_RATE
from trimtab.profiles.roofline import Gpu, roofline
from trimtab.traces import read_trace


def needs(path: object) -> pytest.MarkDecorator:
    """Skip where a folder of ../shared/data is absent."""
    return pytest.mark.skipif(not path.exists(), reason=f"{path} is not there")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", names())
def test_built_in_profiles_are_short_and_grow(name: str) -> None:
    profile = load_profile(name)
    tables = (profile.dense_s, profile.sequence_s, profile.attention_s, profile.context_s)
    assert sum(map(len, tables)) <= 60
    assert profile.kv_capacity > 10_000
    at = profile.tables(256, 8192)
    seconds = at.dense_s[1:257] + at.sequence_s[1:] + at.attention_s[1:] + at.context_s[1:] * 200_000
    assert (seconds > 0.001).all()
    assert at.dense_s[8192] > at.dense_s[2048] > at.dense_s[256]


@pytest.mark.data
@needs(OPERATIONS)
def test_built_in_profiles_are_those_of_the_script() -> None:
    made = {name: profile_text(profile) for name, profile in profiles()}
    assert sorted(made) == list(names())
    for name in made:
        written = load_profile(BUILTIN / f"{name}.yaml")
        again = written.model_validate(written.model_dump())
        assert profile_text(again).split("dense_s")[0] == made[name].split("dense_s")[0]
        for field in ("dense_s", "context_s"):
            now = dict(profiles_at(made[name], field))
            assert now == pytest.approx(getattr(written, field), rel=0.02)


def profiles_at(text: str, field: str) -> list[tuple[int, float]]:
    """Points of a field in the text of a file."""
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    pairs = (pair.split(": ") for pair in line.partition("{")[2].removesuffix("}").split(", "))
    return [(int(x), float(y)) for x, y in pairs]


def test_a_roofline_by_hand() -> None:
    gpu = Gpu("G", 80.0, 1e12, 100e12, 100e9)
    profile = roofline(gpu, "meta-llama/Llama-3.1-8B", 1)
    fixed_s = 32 * 9 * 3e-6
    assert profile.source == "roofline"
    assert profile.dense_s[1] == pytest.approx(16.06e9 / 0.8e12 + fixed_s)
    assert profile.dense_s[2048] == pytest.approx(2 * 8.03e9 * 2048 / 70e12 + fixed_s)
    assert profile.context_s[1] == pytest.approx(131072 / 0.8e12)
    both = roofline(gpu, "meta-llama/Llama-3.1-8B", 2)
    sent_s = 1e-5 + 2048 * 4096 * 2 / 100e9
    assert both.dense_s[2048] == pytest.approx(8.03e9 * 2048 / 70e12 + fixed_s + 64 * sent_s)
    with pytest.raises(UsageError, match=r"unknown model .*expected a model whose shape is known"):
        roofline(gpu, "nobody/Nothing", 1)


@pytest.mark.data
@needs(RECORDED / "azure_llm_2023")
def test_contexts_at_once_are_those_of_the_trace() -> None:
    table = read_trace(RECORDED / "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz").table
    prompt, output = (table[name].to_numpy().astype(float) for name in ("prompt_tokens", "output_tokens"))
    pick = np.random.default_rng(0)
    for n, largest, rate in zip(ROWS_AT_ONCE, LARGEST_TO_MEAN, SKEW_RATE, strict=True):
        at = pick.choice(len(prompt), (500, n), p=output / output.sum())
        context = prompt[at] + pick.random((500, n)) * output[at]
        assert (context.max(axis=1) / context.mean(axis=1)).mean() == pytest.approx(largest, rel=0.05)
        if n > 1:
            least = context.min(axis=1)
            range_ = np.maximum(context.max(axis=1) - least, 1.0)
            assert ((context.mean(axis=1) - least) / range_).mean() == pytest.approx(rate, abs=0.03)


@pytest.mark.data
@needs(DATA / "vllm_measured_runs")
@pytest.mark.parametrize(
    ("gpu", "most"),
    [
        ("RTX 4090", {"ttft": 0.03, "tpot": 0.03, "e2e": 0.03}),
        ("RTX PRO 6000", {"ttft": 0.08, "tpot": 0.05, "e2e": 0.05}),
    ],
)
def test_simulated_runs_are_near_the_measured_ones(gpu: str, most: dict[str, float]) -> None:
    found = compared(RUNS[gpu])
    for name, rel in most.items():
        assert found["simulated"][name] == pytest.approx(found["measured"][name], rel=rel), name
