"""The request table: the columns of a trace in memory, and their meaning."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
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
    "original_id": pl.String(),  # id of the request in the file that it comes from
    "node": pl.String(),  # node that served it in the recorded system
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

MOST_SIZE: Final = 1e15
"""Largest size: beyond it, times lose their milliseconds."""


def is_bad_size(size: pl.Expr) -> pl.Expr:
    """Whether a size, which is a number of work units, cannot be used."""
    return (size <= 0) | (size > MOST_SIZE)


_ALIASES: Final = {
    "arrival_s": ("arrival", "timestamp", "time"),
    "prompt_tokens": ("input_tokens",),
    "output_tokens": ("completion_tokens",),
    "recorded_s": ("latency_s", "duration_s", "latency"),
    "tenant": ("user", "team"),
    "session": ("session_id",),
    "original_id": ("id", "request_id"),
}
_CANONICAL_OF: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}


def canonical_name(name: str) -> str:
    """The canonical column that people call by this name; the name itself where there is none."""
    return _CANONICAL_OF.get(name, name)


_IDS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        "original_id",
        r"(request|req)_?(id|uuid|guid)",
        r"(call|completion|response|message)_?(id|uuid|guid)",
        "id|uuid|guid",
        r"(trace|span|correlation)_?(id|uuid|guid)",
    )
)
"""Names of the id of a request, those that are surer to differ from row to row first."""


def plain_name(name: str) -> str:
    """A column's name in lower case without accents, words joined by `_`: `Modèle`, `requestId`."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", letters).lower()
    return re.sub(r"[^a-z0-9]+", "_", spaced).strip("_")


def id_column(names: Iterable[str]) -> str | None:
    """The column that by its name holds the ids of requests; None where there is none."""
    plain = {name: plain_name(name) for name in names}
    return next((n for usual in _IDS for n, short in plain.items() if usual.fullmatch(short)), None)


def token_size(prompt_token_frac: float) -> pl.Expr:
    """Size of a language-model request: output tokens + `prompt_token_frac` × prompt tokens."""
    return pl.col("output_tokens") + prompt_token_frac * pl.col("prompt_tokens").fill_null(0)


def image_size() -> pl.Expr:
    """Size of an image-generation request: denoising steps × images."""
    return (pl.col("steps") * pl.col("images")).cast(pl.Float64)
