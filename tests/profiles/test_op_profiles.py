"""Iterations put together from operations, each by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.profiles.fit_profile import Measurements
from trimtab.profiles.model_shapes import ModelShape
from trimtab.profiles.op_profiles import Operations, measurements_of

SHAPE = ModelShape(1e9, 10, 1024, 8, 8, 64)
EXPERTS = ModelShape(1e9, 10, 1024, 8, 8, 64, experts=8, experts_per_token=2)


def table(head: str, *rows: str) -> dict[str, list[str]]:
    """Columns of a file with these lines."""
    return dict(
        zip(head.split(","), map(list, zip(*(row.split(",") for row in rows), strict=True)), strict=True)
    )


ATTENTION = table(
    "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
    "0,0,1,100,20",
    "0,0,1,200,30",
    "0,0,4,100,40",
    "0,0,4,200,80",
    "100,0,4,100,90",
    "100,100,0,0,50",
    "0,0,4,8000,3200",
    "16,0,4,100,999",
)
DENSE = table(
    "layer,tokens,time_us",
    *("embedding,1,5", "embedding,201,5", "final_layernorm,1,1", "final_layernorm,201,1"),
    *("layernorm,1,2", "layernorm,201,2", "qkv_proj,1,100", "qkv_proj,201,300"),
)
PER_SEQUENCE = table("layer,sequences,time_us", "lm_head,1,50", "lm_head,101,150")


def measured(
    ranks: int = 1, shape: ModelShape = SHAPE, kv_tokens: int = 1000, **more: object
) -> Measurements:
    ops = Operations(ATTENTION, DENSE, PER_SEQUENCE, **more)  # type: ignore[arg-type]
    return measurements_of(ops, shape, ranks, kv_tokens, 2048)


def test_layers_and_what_is_once_in_an_iteration() -> None:
    found = measured()
    assert found.dense_s == pytest.approx({1: 1e-6 * (5 + 1 + 10 * (4 + 100)), 201: 1e-6 * (6 + 10 * 304)})
    assert found.sequence_s == pytest.approx({1: 50e-6, 101: 150e-6})
    rows = found.rows  # without a context beyond 4,096 tokens, and a prompt of fewer than 32
    np.testing.assert_array_equal(rows.decoding, [1, 1, 4, 4, 4, 0])
    np.testing.assert_array_equal(rows.pairs[-2:], [5000, 100 * 150])
    mixed = 10 * 90 + 6 + 10 * (4 + 100 + 103) + 50 + 4
    np.testing.assert_allclose(rows.seconds[4], 1e-6 * mixed)


def test_what_does_not_fit_the_kv_memory_is_left_out() -> None:
    np.testing.assert_array_equal(measured(kv_tokens=450).rows.context, [100, 200, 400, 0])


def test_unequal_contexts() -> None:
    skew = table(
        "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples",
        *("0,n<=4,sr<=70%,kvB<=1k,kp=0,0.5,2", "0,n<=4,sr>70%,kvB<=1k,kp=0,9,1"),
    )
    rows, equal = measured(skew=skew).rows, measured().rows
    np.testing.assert_allclose(rows.seconds[:2], equal.seconds[:2])  # one row has one context
    # Of four the largest has 1.5 times the mean: 20 µs more at 100 tokens, 40 µs at 200.
    np.testing.assert_allclose(rows.seconds[2:4] - equal.seconds[2:4], [10 * 10e-6, 10 * 20e-6])


def test_all_reduces_of_a_layer() -> None:
    reduce = table(
        "size,num_workers,time_stats.all_reduce.median",
        *("0,2,0.01", "411648,2,0.03", "411648,2,0.05", "411648,4,9"),
    )
    found = measured(2, all_reduce=reduce)
    alone = measured().dense_s
    assert found.dense_s is not None
    assert alone is not None
    assert found.dense_s[201] - alone[201] == pytest.approx(10 * 2 * 40e-6)  # 201 tokens of 1,024 values


def test_experts_of_a_rank() -> None:
    experts = table(
        "tokens,activated_experts,time_us", *("1,2,10", "1,4,20", "201,2,30", "201,4,60", "201,8,120")
    )
    alone, both = measured(1, EXPERTS, experts=experts), measured(2, EXPERTS, experts=experts)
    without = measured().dense_s
    assert alone.dense_s is not None
    assert both.dense_s is not None
    assert without is not None
    assert alone.dense_s[1] - without[1] == pytest.approx(10 * 10e-6)  # one token reaches two of eight
    assert alone.dense_s[201] - without[201] == pytest.approx(10 * 120e-6)
    half = 20 + (100.5 - 1) / 200 * 40  # four experts, half of the tokens
    assert both.dense_s[201] - without[201] == pytest.approx(10 * half * 1e-6)
