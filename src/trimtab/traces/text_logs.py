"""Logs that are lines of text: access logs of nginx and Envoy; which log a file is of.

nginx: the combined format, alone or with the request time in seconds after it (`$request_time`, or `rt=`,
`request_time=`). Envoy: the default format. vLLM: see `vllm_log`.

What clients send stands in quotes: a number there is never a time. Of a path, what follows `?` is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.text_log import TextLog, lines_of
from trimtab.traces.vllm_log import VLLM, is_vllm

_OUTSIDE: Final = r'(?:[^"]|"[^"]*")*?'  # a part of a line that does not end within quotes
_NGINX_PATTERN: Final = (
    r"^(?P<remote_addr>\S+) \S+ (?P<remote_user>\S+) \[(?P<time_local>[^\]]+)\] "
    r'"(?P<method>[A-Z]+) (?P<path>[^" ?]*)[^"]*" (?P<status>\d{3}) (?P<body_bytes_sent>\d+|-)'
    # By its name, else the first number with three decimals that stands alone.
    rf'(?:{_OUTSIDE}[ ,](?:rt|request_time)[=:]"?(?P<request_time>\d+\.\d{{3}})(?:[" ,].*)?$'
    rf"|{_OUTSIDE}[\s|](?P<bare_time>\d+\.\d{{3}})(?:[\s|].*)?$|.*$)"
)
_ENVOY_PATTERN: Final = (
    r'^\[(?P<start_time>[^\]]+)\] "(?P<method>\S+) (?P<path>[^\s?]+)\S* [^"]*" (?P<response_code>\d+) '
    r'(?P<response_flags>\S+) (?:(?:[^\s"]+|"[^"]*") )*?'
    r"(?P<bytes_received>\d+) (?P<bytes_sent>\d+) (?P<duration>\d+) "
    # The agent is written as it came, with quotes in it; the last three fields are the proxy's.
    r'(?:\d+|-) "[^"]*" ".*" "(?P<request_id>[^"]*)" "(?P<authority>[^"]*)" "(?P<upstream_host>[^"]*)"[^"]*$'
)


def _matched(pattern: str) -> Callable[[str], pl.DataFrame]:
    def parse(text: str) -> pl.DataFrame:
        return lines_of(text).select(pl.col("line").str.extract_groups(pattern)).unnest("line")

    return parse


def _names(pattern: str) -> tuple[str, ...]:
    return tuple(part.split(">", 1)[0] for part in pattern.split("(?P<")[1:])


def _nginx_rows(text: str) -> pl.DataFrame:
    rows = _matched(_NGINX_PATTERN)(text)
    return rows.with_columns(request_time=pl.coalesce("request_time", "bare_time")).drop("bare_time")


NGINX: Final = TextLog(
    "nginx", _names(_NGINX_PATTERN)[:-1], _nginx_rows, "lines of the combined format of access logs"
)
ENVOY: Final = TextLog(
    "envoy", _names(_ENVOY_PATTERN), _matched(_ENVOY_PATTERN), "lines of the default format of access logs"
)


@dataclass(frozen=True, slots=True)
class _Unread:
    """A log that is known and tells too little of requests."""

    name: str
    line: str  # pattern of a line
    lacks: str
    instead: str


_IN_FRONT: Final = "the log of a gateway or proxy in front of it, or a recording of trimtab's gateway"
_UNREAD: Final = (
    _Unread(
        "TensorRT-LLM",
        r"^\[[\d/]+-[\d:]+\] \[TRT-LLM\] \[[A-Z]\] ",
        "its lines tell no tokens",
        f"what /perf_metrics of `trtllm-serve` returns with `return_perf_metrics: true` (as JSONL, with a "
        f"column mapping), {_IN_FRONT}",
    ),
    _Unread(
        "KServe",
        r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}[.,]\d+ \d+ kserve[\w.]* ",
        "its lines tell no answers with token ids",
        f"vLLM's own lines in it (`--enable-log-requests --enable-log-outputs`), {_IN_FRONT}",
    ),
)
_SHOWN_LINES: Final = 2_000  # of the beginning, in which a server tells of its start


def text_log_of(path: Path, lines: Sequence[str]) -> TextLog | None:
    """The log that these first lines of a file are of; None for other text.

    Raises:
        TraceError: they are of a log from which no requests can be read.
    """
    head = [line for line in lines if line.strip()][:_SHOWN_LINES]
    for log in (ENVOY, NGINX):
        rows = log.parse("\n".join(head[:20]))
        if not rows[:, 0].is_null().all():
            return log
    if is_vllm("\n".join(head)):
        return VLLM
    text = pl.Series(head[:20])
    for known in _UNREAD:
        if text.str.contains(known.line).any():
            problem = f"a log of {known.name}: {known.lacks}"
            raise TraceError(problem, file=str(path), expected=known.instead)
    return None
