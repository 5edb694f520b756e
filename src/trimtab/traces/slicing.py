"""Selects requests of a trace and scales their rate: slice, sample, rate scale, limit."""

from __future__ import annotations

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from trimtab.errors import TraceError
from trimtab.words import counted


class TraceOptions(BaseModel):
    """How a trace file is turned into a workload. Applied in the order of the fields.

    `keep_unfinished` and `prompt_token_frac` matter only to formats that say so; the default fraction is what
    Llama-2-70B on H100 takes per prompt token over what it takes per output token at batch 16 (0.107 / 2.14
    ms, the profile published with Splitwise, ISCA 2024).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_unfinished: bool = Field(False, description="keep requests that the recorded system did not finish")
    prompt_token_frac: float = Field(
        0.05,
        ge=0,
        allow_inf_nan=False,
        description="work of a prompt token, as a fraction of an output token",
    )
    sample_frac: float = Field(1.0, gt=0, le=1, description="keep each request with this probability")
    seed: int = Field(0, ge=0, description="seed of the sample")
    start_s: float = Field(0.0, ge=0, allow_inf_nan=False, description="start of the slice; becomes time 0")
    stop_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="end of the slice, exclusive")
    rate_scale: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="factor on the arrival rate; divides inter-arrival times"
    )
    limit: int | None = Field(None, ge=1, description="keep at most this many requests")

    @field_validator("stop_s")
    @classmethod
    def _slice_is_not_empty(cls, stop_s: float | None, info: ValidationInfo) -> float | None:
        start_s = info.data.get("start_s", 0.0)
        if stop_s is not None and stop_s <= start_s:
            raise ValueError(f"more than start_s, which is {start_s:g}")
        return stop_s


def apply_options(table: pl.DataFrame, options: TraceOptions) -> pl.DataFrame:
    """Sample, slice, rescale and cut a request table.

    The sample is drawn per row of the whole table: the same seed keeps the same requests under every slice,
    and a larger fraction keeps a superset.

    Raises:
        TraceError: nothing is left.
    """
    arrival = pl.col("arrival_s")
    kept = table.filter(_sampled(table.height, options)).filter(_in_slice(options))
    if kept.is_empty():
        raise _nothing_left(table, options)
    rescaled = kept.with_columns((arrival - options.start_s) / options.rate_scale)
    return rescaled if options.limit is None else rescaled.head(options.limit)


def _sampled(rows: int, options: TraceOptions) -> pl.Series | pl.Expr:
    if options.sample_frac == 1.0:
        return pl.lit(True)
    return pl.Series(np.random.default_rng(options.seed).random(rows) < options.sample_frac)


def _in_slice(options: TraceOptions) -> pl.Expr:
    arrival = pl.col("arrival_s")
    until = pl.lit(True) if options.stop_s is None else arrival < options.stop_s
    return (arrival >= options.start_s) & until


def _nothing_left(table: pl.DataFrame, options: TraceOptions) -> TraceError:
    return TraceError(
        "no request is left after slicing and sampling",
        field="start_s, stop_s, sample_frac",
        value=(options.start_s, options.stop_s, options.sample_frac),
        expected=f"a slice of the {counted(table.height, 'request')} between {table['arrival_s'][0]:g} s "
        f"and {table['arrival_s'][-1]:g} s",
    )
