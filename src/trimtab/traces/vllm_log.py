"""The server log of vLLM: `--enable-log-requests --enable-log-outputs`.

A request is joined from its lines *Received request*, *Generated response* and *Request … details*, whose
token ids are counted. A line is a prefix (level, time, place in the source), what it tells of, an id, and
fields with commas between them. What users and models wrote stands there in quotes, as Python shows text; it
is cut out before a field is looked for. KServe's own logger writes the same lines after another prefix.

Times have no year: it is one without 29 February unless the log has that day, and the next one begins where
times go back by half a year. Embeddings get no line of an answer.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from trimtab.traces.text_log import QUOTED, TextLog, lines_of

_COLUMNS: Final = (
    *("request_id", "received", "finished", "prompt_tokens", "output_tokens", "max_tokens"),
    *("params", "answers", "is_cut"),
)
_HEAD: Final = (
    r"^(?:\d{4}-)?(\d{2}-\d{2} \d{2}:\d{2}:\d{2}(?:[.,]\d{1,6})?) (?:\[?[\w./-]+:\d+\]|\d+ [\w.]+) "
    r"(Received request|Generated response|Request) (\S+?)"
    r"( \(streaming delta\)| \(streaming complete\))?(?: details)?: (.*)$"
)
"""Time, message, id, kind of stream and fields, from the level of a line on."""
_HEAD_NAMES: Final = ("time", "message", "request_id", "stream", "rest")
_HEAD_CHARS: Final = 600
_LEVEL: Final = r"^[^'\"]*?\b(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)$"
"""What follows the first level of a line: before it is what collectors of logs write."""
_OWN_LINE: Final = (
    r"^(?:\([^()]*\) )?(?:INFO|DEBUG|WARNING) \d{2}-\d{2} \d{2}:\d{2}:\d{2}(?:\.\d+)? \[?[\w./-]+:\d+\] "
)
_CUT_OPTION: Final = "max_log_len"
_CUT: Final = re.compile(
    rf"{_OWN_LINE}(?:non-default )?args: [^\n]*?\b{_CUT_OPTION}'?[=:] ?(\d+)", re.MULTILINE
)
_COLOURS: Final = r"\x1b\[[0-9;]*m"
_ANSWER, _DELTA = "Generated response", " (streaming delta)"
_YEAR: Final = {True: "2000-", False: "2001-"}  # whether it has a 29 February
_HALF_A_YEAR: Final = pl.duration(days=180)


def _rows(text: str) -> pl.DataFrame:
    """One row for each request that was received, from the lines of its id."""
    found = _fields(_heads(text)).lazy()
    is_received = pl.col("message") == "Received request"
    is_answer, is_delta = pl.col("message") == _ANSWER, pl.col("stream") == _DELTA
    whole = pl.col("output").filter(is_answer & ~is_delta.fill_null(value=False))
    # Of a stream each line has the ids since the line before; the one of its end may have all of them.
    streamed = pl.col("output").filter(is_delta.fill_null(value=False))
    rows = found.group_by("request_id", maintain_order=True).agg(
        received=pl.col("time").filter(is_received).first(),
        finished=pl.col("time").filter(is_answer).last(),
        prompt_tokens=pl.col("prompt").max(),
        output_tokens=pl.when(whole.count() > 0)
        .then(whole.sum())
        .when(streamed.count() > 0)
        .then(streamed.sum()),
        max_tokens=pl.col("max_tokens").filter(is_received).first(),
        params=pl.col("params").filter(is_received).first(),
        answers=is_answer.sum(),
        is_cut=pl.any_horizontal(pl.col("prompt", "output") == pl.lit(_most_ids(text), pl.Int64)).any(),
    )
    times = pl.col("received", "finished").dt.to_string("%Y-%m-%d %H:%M:%S%.6f")
    kept = rows.filter(pl.col("received").is_not_null()).with_columns(times).select(_COLUMNS)
    return kept.with_columns(pl.all().cast(pl.String)).collect()


def _most_ids(text: str) -> int | None:
    """Where lists of ids are cut off, as the server tells of its options when it starts; None: nowhere."""
    at = text.find(_CUT_OPTION)
    while at >= 0:
        begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        found = _CUT.match(text, begin)
        if found is not None or end < 0:
            return int(found[1]) if found else None
        at = text.find(_CUT_OPTION, end)
    return None


def _heads(text: str) -> pl.DataFrame:
    """The lines that tell of requests: time, message, id, stream and what follows."""
    line = pl.col("line")
    told = (" Received request ", " Generated response ", " details: ")
    lines = lines_of(text).filter(line.str.contains_any(list(told)))
    plain = lines.with_columns(line.str.replace_all(_COLOURS, ""))
    # Patterns see the beginnings alone: lists of ids and prompts may be long.
    start = plain["line"].str.head(_HEAD_CHARS).alias("start")
    from_level = pl.coalesce(pl.col("start").str.extract(_LEVEL), "start")
    heads = start.to_frame().select(from_level.str.extract_groups(_HEAD)).unnest("start")
    named = heads.rename(dict(zip(heads.columns, _HEAD_NAMES, strict=True)))
    before = start.str.len_chars() - named["rest"].str.len_chars()
    whole = plain.select(line.str.slice(before)).to_series()
    return _with_years(named.with_columns(rest=whole).filter(pl.col("request_id").is_not_null()))


def _with_years(heads: pl.DataFrame) -> pl.DataFrame:
    time = heads["time"].str.replace(",", ".", literal=True)
    is_leap = bool(time.str.starts_with("02-29").any())
    dated = (_YEAR[is_leap] + time).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    years = (pl.col("time").diff() < -_HALF_A_YEAR).fill_null(value=False).cum_sum()
    later = pl.col("time").dt.offset_by(pl.format("{}y", years))
    return heads.with_columns(dated.alias("time")).with_columns(later)


def _fields(heads: pl.DataFrame) -> pl.DataFrame:
    """The fields of each line; counts of token ids are null where there is no list."""
    rest = pl.col("rest")
    return heads.with_columns(rest.str.replace_all(QUOTED, "")).with_columns(
        prompt=_counted("prompt_token_ids"),
        output=_counted("output_token_ids"),
        params=rest.str.extract(r"(?:^|, )params: (\w+)\("),
        max_tokens=rest.str.extract(r"[(, ]max_tokens=(\d+)"),
    )


def _counted(field: str) -> pl.Expr:
    """How many ids the list of a field holds; null where there is no list."""
    listed = pl.col("rest").str.extract(rf"(?:^|, ){field}: [(\[]([\d, ]*)[)\]]")
    return pl.when(listed.is_not_null()).then(listed.str.count_matches(r"\d+"))


def is_vllm(text: str) -> bool:
    """Whether lines of vLLM are among these: of requests, or what it tells before there are any."""
    lines = lines_of(text)["line"].str.replace_all(_COLOURS, "")
    return bool(lines.str.contains(_OWN_LINE).any()) or len(_heads(text)) > 0


VLLM: Final = TextLog("vllm", _COLUMNS, _rows, "lines *Received request ID: …*", row="request", is_whole=True)
