"""Logs that are lines of text: access logs of nginx and Envoy, and the server log of vLLM.

nginx: the combined format, alone or with the request time in seconds after it (`$request_time`, or `rt=`).
Envoy: the default format. vLLM: `--enable-log-requests --enable-log-outputs`; a request is joined from its
lines *Received request* and *Generated response*, whose token ids are counted. vLLM's times have no year, and
whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl


@dataclass(frozen=True, slots=True)
class TextLog:
    """How the lines of a log become rows.

    Attributes:
        name: of the format.
        columns: of the rows.
        parse: text of whole lines → rows; a line that is no request is a row without values.
        row: what a row is called in messages: "line" where each line is one.
        is_whole: whether the file is parsed as a whole, because a request spans several lines.
    """

    name: str
    columns: tuple[str, ...]
    parse: Callable[[str], pl.DataFrame]
    row: str = "line"
    is_whole: bool = False


_NGINX_PATTERN: Final = (
    r"^(?P<remote_addr>\S+) \S+ (?P<remote_user>\S+) \[(?P<time_local>[^\]]+)\] "
    r'"(?P<method>[A-Z]+) (?P<path>[^" ]*)[^"]*" (?P<status>\d{3}) (?P<body_bytes_sent>\d+|-)'
    # Not a part of an address: the first number with three decimals.
    r'(?: "[^"]*" "[^"]*")?(?:.*?[^.\d](?P<request_time>\d+\.\d{3})(?:[^.\d]|$))?'
)
_ENVOY_PATTERN: Final = (
    r'^\[(?P<start_time>[^\]]+)\] "(?P<method>\S+) (?P<path>\S+) [^"]*" (?P<response_code>\d+) '
    r"(?P<response_flags>\S+) (?:.*? )?(?P<bytes_received>\d+) (?P<bytes_sent>\d+) (?P<duration>\d+) "
    r'(?:\d+|-) "[^"]*" "[^"]*" "(?P<request_id>[^"]*)" "(?P<authority>[^"]*)" "(?P<upstream_host>[^"]*)"'
)
_VLLM_LINE: Final = r"\b(?:INFO|DEBUG) (\d{2}-\d{2} \d{2}:\d{2}:\d{2})"
_VLLM_COLUMNS: Final = ("request_id", "received", "finished", "prompt_tokens", "output_tokens", "max_tokens")
_LEAP_YEAR: Final = "2000-"  # any day and month has a date in it


def _matched(pattern: str) -> Callable[[str], pl.DataFrame]:
    def parse(text: str) -> pl.DataFrame:
        lines = pl.Series("line", text.removesuffix("\n").split("\n")).str.strip_suffix("\r").to_frame()
        return lines.select(pl.col("line").str.extract_groups(pattern)).unnest("line")

    return parse


def _names(pattern: str) -> tuple[str, ...]:
    return tuple(part.split(">", 1)[0] for part in pattern.split("(?P<")[1:])


def _vllm_rows(text: str) -> pl.DataFrame:
    """One row for each request that was received, from the lines of its id."""
    line = pl.col("line")
    lines = pl.Series("line", text.split("\n")).to_frame().lazy()
    request_id = line.str.extract(r"(?:Received request|Generated response|Request) (\S+?)(?: details)?[: ]")
    found = lines.with_columns(
        request_id=request_id,
        time=pl.concat_str(pl.lit(_LEAP_YEAR), line.str.extract(_VLLM_LINE)),
        is_received=line.str.contains("Received request ", literal=True),
        is_done=line.str.contains("Generated response ", literal=True),
        prompt=_counted(line.str.extract(r"prompt_token_ids: \[([^\]]*)\]")),
        output=_counted(line.str.extract(r"output_token_ids: \[([^\]]*)\]")),
        max_tokens=line.str.extract(r"max_tokens=(\d+)"),
    ).filter(pl.col("request_id").is_not_null())
    is_received = pl.col("is_received")
    rows = found.group_by("request_id", maintain_order=True).agg(
        received=pl.col("time").filter(is_received).first(),
        finished=pl.col("time").filter("is_done").last(),
        prompt_tokens=pl.col("prompt").max(),
        # Of a stream each line has the ids since the line before.
        output_tokens=pl.col("output").filter("is_done").sum(),
        max_tokens=pl.col("max_tokens").filter(is_received).first(),
    )
    kept = rows.filter(pl.col("received").is_not_null()).select(_VLLM_COLUMNS)
    return kept.with_columns(pl.all().cast(pl.String)).collect()


def _counted(ids: pl.Expr) -> pl.Expr:
    """How many ids a list of them holds; null where there is no list."""
    return pl.when(ids == "").then(0).otherwise(ids.str.count_matches(",", literal=True) + 1)


NGINX: Final = TextLog("nginx", _names(_NGINX_PATTERN), _matched(_NGINX_PATTERN))
ENVOY: Final = TextLog("envoy", _names(_ENVOY_PATTERN), _matched(_ENVOY_PATTERN))
VLLM: Final = TextLog("vllm", _VLLM_COLUMNS, _vllm_rows, row="request", is_whole=True)
_SHOWN_LINES: Final = 2_000  # of the beginning, in which a server tells of its start


def text_log_of(lines: Sequence[str]) -> TextLog | None:
    """The log that these first lines of a file are of; None for other text."""
    head = [line for line in lines if line.strip()][:_SHOWN_LINES]
    for log in (ENVOY, NGINX):
        rows = log.parse("\n".join(head[:20]))
        if not rows[:, 0].is_null().all():
            return log
    return VLLM if any("Received request " in line for line in head) else None
