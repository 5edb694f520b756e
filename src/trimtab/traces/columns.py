"""The request table: the columns of a trace in memory, and their meaning."""

from __future__ import annotations

from typing import Final

import polars as pl

COLUMNS: Final[dict[str, pl.DataType]] = {
    "arrival_s": pl.Float64(),  # seconds from the start of the trace, never decreasing
    "size": pl.Float64(),  # work units of the format, > 0
    "class": pl.String(),  # service class
    "model": pl.String(),  # model that must be resident
    "adapter": pl.String(),  # null: none
    "tenant": pl.String(),  # owner of the request
    "priority": pl.Int64(),  # higher is more urgent
    "deadline_s": pl.Float64(),  # relative to the arrival
    "images": pl.Int64(),  # images to make
    "steps": pl.Int64(),  # denoising steps per image
    "prompt_tokens": pl.Int64(),  # length of the prompt
    "output_tokens": pl.Int64(),  # length of the answer
    "payload_gib": pl.Float64(),  # moved to the node before service
    "session": pl.String(),  # requests of a session should meet the same node
    "recorded_s": pl.Float64(),  # execution time in the recorded system
    "prefix_blocks": pl.List(pl.Int64()),  # ids of the prompt's prefix-cache blocks
    "content": pl.String(),  # equal = the same deterministic request asked again; null: never the same
}
"""Canonical column → type. Only `arrival_s` is always there; the order is that of written files."""

AT_LEAST: Final[dict[str, int]] = {
    "arrival_s": 0,
    "deadline_s": 0,
    "images": 1,
    "steps": 1,
    "prompt_tokens": 0,
    "output_tokens": 0,
    "payload_gib": 0,
    "recorded_s": 0,
}
"""Smallest value a numeric column may hold; `size` is apart, since it must be greater than 0."""


def token_size(prompt_token_frac: float) -> pl.Expr:
    """Size of a language-model request: output tokens + `prompt_token_frac` × prompt tokens."""
    return pl.col("output_tokens") + prompt_token_frac * pl.col("prompt_tokens").fill_null(0)


def image_size() -> pl.Expr:
    """Size of an image-generation request: denoising steps × images."""
    return (pl.col("steps") * pl.col("images")).cast(pl.Float64)
